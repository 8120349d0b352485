"""Commands that generate images: disagree."""

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
def disagree(
    first: Annotated[str, typer.Argument(metavar="A", help="A model, or the old version of one.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another model, or the new version.")],
    classes: Annotated[
        list[str],
        typer.Option("--class", help="Class by name or number, or all. May be repeated."),
    ] = [],
    count: Annotated[int, typer.Option(help="Images per class and way.")] = 10,
    generator: Annotated[
        str | None,
        typer.Option(help="Diffusers folder or hub id. Default: the shipped generator."),
    ] = None,
    verify: Annotated[
        str | None, typer.Option(help="Real labelled images on which findings are checked.")
    ] = None,
    judge: Annotated[
        list[str],
        typer.Option("--with", help="A further model: whom does it side with? May be repeated."),
    ] = [],
    persist: Annotated[
        list[str],
        typer.Option(help="Another second model to repeat the search with. May be repeated."),
    ] = [],
    require: Annotated[
        list[str],
        typer.Option(
            metavar="RULE",
            help='Release gate, e.g. "disagree.first.real.high<=0.02". May be repeated.',
        ),
    ] = [],
    updates: Annotated[int, typer.Option(help="Updates of the generator's inputs.")] = 15,
    steps: Annotated[int, typer.Option(help="Steps of the diffusion chain.")] = 25,
    guidance: Annotated[float, typer.Option(help="How strongly the text guides.")] = 3.0,
    score: Annotated[
        str, typer.Option(help="What is raised: difference or logarithms of confidences, or auto.")
    ] = "auto",
    changes: Changes = [],
    memory: Annotated[
        str | None, typer.Option(help="Memory to use, e.g. 12GB. Default: most of what is free.")
    ] = None,
    half: Annotated[bool, typer.Option("--half", help="Generator in half precision.")] = False,
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
    """Generate images that one model takes for a class and another does not.

    With an old model, then the new one, --class all and --verify DATA: a release check.
    """
    check_models(first, second, *judge, *persist)
    from counterlens.workflows.disagree.run import disagree as run_disagree

    made = run_disagree(
        first,
        second,
        classes=classes,
        count=count,
        generator=generator,
        verify=verify,
        judge=judge,
        persist=persist,
        require=require,
        updates=updates,
        steps=steps,
        guidance=guidance,
        score=score,
        changes=changes,
        memory=memory,
        half=half,
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
    if any(not row["passed"] for row in made.run.table("gates")):
        raise typer.Exit(1)
