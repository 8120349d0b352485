"""The command that trains."""

from pathlib import Path
from typing import Annotated

import typer

from counterlens.cli.shared import Device, Json, Out, Quiet, Resume, Seed, app, finish


@app.command()
def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe of --list, or a YAML file of settings.")
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
        from counterlens.workflows.recipes import about

        for name, line in about().items():
            print(f"{name:32} {line}")
        return
    if recipe is None or data is None:
        raise typer.BadParameter("expected RECIPE --data SPEC; list the recipes with --list")
    from counterlens.workflows.train import train as run_train

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
