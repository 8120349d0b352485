"""The commands that train and that make data to train with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from counterlens.cli.options import (
    Device,
    Json,
    Out,
    Quiet,
    Resume,
    Seed,
    app,
    check_models,
    finish,
    refuse_unused,
)

FINETUNE = "Your network, or a shipped one, on your folder: --data FOLDER --set start=MODEL."


@app.command()
def train(
    context: typer.Context,
    recipe: Annotated[
        str | None,
        typer.Argument(help="finetune, a recipe of --list, or a YAML file of settings."),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Training images with their classes.")] = None,
    out_data: Annotated[
        str | None, typer.Option(help="Images of other things, for losses that want them.")
    ] = None,
    changes: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a setting, e.g. epochs=30. May be repeated."
        ),
    ] = [],
    max_minutes: Annotated[
        float | None, typer.Option(help="Stop after so long; --resume goes on.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder for decoded images. Default: the user's cache.")
    ] = None,
    list_recipes: Annotated[bool, typer.Option("--list", help="List the recipes.")] = False,
    out: Out = None,
    resume: Resume = False,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a classifier by a recipe: plain, robust, or RATIO."""
    if list_recipes:
        from counterlens.workflows.train.recipes import about

        print(f"{'finetune':32} {FINETUNE}")
        for name, line in about().items():
            print(f"{name:32} {line}")
        return
    if recipe is None or data is None:
        raise typer.BadParameter("expected RECIPE --data SPEC; list the recipes with --list")
    if recipe == "finetune":
        refuse_unused(context, "finetune", "out_data", "max_minutes", "cache")
        keywords = {"out": out, "resume": resume, "seed": seed, "device": device, "quiet": quiet}
        _finetune(data, changes, keywords, as_json=as_json)
        return
    from counterlens.workflows.train.run import train as run_train

    run = run_train(
        recipe,
        data,
        out_data=out_data,
        changes=changes,
        out=out,
        resume=resume,
        seed=seed,
        device=device,
        max_minutes=max_minutes,
        cache=cache,
        quiet=quiet,
    )
    finish(run, as_json=as_json, quiet=quiet)


def _finetune(
    data: str, changes: Sequence[str], keywords: dict[str, Any], *, as_json: bool
) -> None:
    """The settings of --set are the options of finetune; start is its model."""
    from counterlens.workflows.train.recipes import nested

    settings = nested(changes)
    if "start" in settings:
        check_models(str(settings["start"]))
    from counterlens.workflows.train.finetune import START, finetune

    start = str(settings.pop("start", START))
    result = finetune(data, start, **settings, **keywords)
    finish(result, as_json=as_json, quiet=bool(keywords["quiet"]))


@app.command()
def outdata(
    inside: Annotated[str, typer.Argument(metavar="IN", help="The data with its classes.")],
    pool: Annotated[str, typer.Argument(metavar="POOL", help="Pictures of anything else.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="Classifier whose features say what looks like IN, or none. Default: a shipped "
            "one of the same classes."
        ),
    ] = None,
    drop: Annotated[
        list[str], typer.Option(help="A class of POOL that shows a class of IN. May be repeated.")
    ] = [],
    keep: Annotated[
        list[str], typer.Option(help="A class of POOL to keep in spite of its name or looks.")
    ] = [],
    most_bits: Annotated[
        int, typer.Option(help="Bits of 64 in which the hash of a copy may differ.")
    ] = 10,
    typical: Annotated[
        float,
        typer.Option(
            help="A picture looks like IN if it is as near as this share of IN is to itself."
        ),
    ] = 0.5,
    limit: Annotated[int | None, typer.Option(help="Use only this many pictures of POOL.")] = None,
    out: Out = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Clean a pool of pictures so that it can stand for anything else in training."""
    from counterlens.workflows.curate.outdata import outdata as run_outdata

    run = run_outdata(
        inside,
        pool,
        model=model,
        drop=drop,
        keep=keep,
        most_bits=most_bits,
        typical=typical,
        limit=limit,
        out=out,
        seed=seed,
        device=device,
        quiet=quiet,
    )
    finish(run, as_json=as_json, quiet=quiet)
