"""The command that shows what drives a network's units: neurons."""

from pathlib import Path
from typing import Annotated

import typer

from counterlens.cli.options import (
    Changes,
    Device,
    Json,
    On,
    Out,
    Quiet,
    Resume,
    Seed,
    TrustRemote,
    Workers,
    app,
    check_models,
    finish,
)


@app.command()
def neurons(
    model: Annotated[str, typer.Argument(help="The model, e.g. timm:resnet18.")],
    unit: Annotated[
        list[int], typer.Option(help="Penultimate unit, by number. May be repeated.")
    ] = [],
    npca: Annotated[
        list[str],
        typer.Option(
            metavar="CLASS[:COMPONENT]",
            help="Component of a class, or its first four, or all. Needs --data. May be repeated.",
        ),
    ] = [],
    logit: Annotated[
        list[str], typer.Option(help="Class whose logit is raised. May be repeated.")
    ] = [],
    image: Annotated[
        list[str],
        typer.Option(
            help="Picture to show the features on; by diffusion it is changed, mostly around the "
            "object. May be repeated."
        ),
    ] = [],
    spurious: Annotated[
        bool,
        typer.Option("--spurious", help="Rank features that live on the background of --data."),
    ] = False,
    masks: Annotated[
        str | None,
        typer.Option(
            help="Objects: a folder of PNG files, key:NAME of a packed set, attention, or cam."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="How many images of --data.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of the search.")] = 256,
    method: Annotated[
        str, typer.Option(help="pixel, or diffusion: pictures drawn by a generator.")
    ] = "pixel",
    data: Annotated[
        str | None,
        typer.Option(
            help="Real images: for --npca and --spurious; with diffusion to compare with."
        ),
    ] = None,
    generator: Annotated[
        str | None, typer.Option(help="With diffusion: diffusers folder or hub id.")
    ] = None,
    count: Annotated[int, typer.Option(help="With diffusion: pictures per unit.")] = 4,
    similar: Annotated[
        int, typer.Option(help="With diffusion: so many units like each one, too.")
    ] = 0,
    words: Annotated[
        Path | None, typer.Option(help="With diffusion: further candidate words, one a line.")
    ] = None,
    captioner: Annotated[
        str | None,
        typer.Option(help="With diffusion: hub id or folder; its captions are candidates, too."),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="With diffusion: memory to use, e.g. 12GB.")
    ] = None,
    changes: Changes = [],
    on: On = "here",
    workers: Workers = None,
    out: Out = None,
    resume: Resume = False,
    seed: Seed = 0,
    device: Device = "auto",
    trust_remote_code: TrustRemote = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Picture what drives units and components of a model, and which live on the background."""
    check_models(model)
    from counterlens.workflows.neurons.run import neurons as run_neurons

    made = run_neurons(
        model,
        unit=unit,
        npca=npca,
        logit=logit,
        image=image,
        spurious=spurious,
        masks=masks,
        limit=limit,
        steps=steps,
        method=method,
        data=data,
        generator=generator,
        count=count,
        similar=similar,
        words=words,
        captioner=captioner,
        memory=memory,
        changes=changes,
        on=on,
        workers=workers,
        out=out,
        resume=resume,
        seed=seed,
        device=device,
        trust_remote_code=trust_remote_code,
        quiet=quiet,
    )
    finish(made.run, as_json=as_json, quiet=quiet)
