"""Commands that make a paper's results again: reproduce."""

from typing import Annotated

import typer

from counterlens.cli.options import (
    Device,
    Json,
    Out,
    Quiet,
    Resume,
    Seed,
    app,
    finish,
    refuse_unused,
)


@app.command()
def reproduce(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            help="ratio-table1; ratio-figure1, -figure2, -figure5, -figure7, -figure13; "
            "digin-figure13."
        ),
    ],
    model: Annotated[
        list[str], typer.Option(help="Models to compare, plain first. May be repeated.")
    ] = ["zoo:cifar10-plain-small", "zoo:cifar10-ratio-small"],
    data: Annotated[str, typer.Option(help="Test images of their classes.")] = "sample:cifar10",
    ood: Annotated[
        list[str], typer.Option(help="Images of other things. May be repeated for a table.")
    ] = [],
    count: Annotated[int, typer.Option(help="How many images to show.")] = 4,
    steps: Annotated[int, typer.Option(help="Steps of the search.")] = 500,
    radius: Annotated[list[float], typer.Option(help="l2 budget. May be repeated.")] = [],
    masks: Annotated[
        str | None,
        typer.Option(help="For digin-figure13: folder of masks. Default: the set's own, or drawn."),
    ] = None,
    generator: Annotated[
        str | None, typer.Option(help="For drawn pictures. Default: the shipped generator.")
    ] = None,
    rerun: Annotated[
        str | None,
        typer.Option(metavar="NAME[=MODEL]", help="Row of a table to audit again, by its recipe."),
    ] = None,
    calibrate: Annotated[
        str, typer.Option(help="Images to fit the temperature of that row on.")
    ] = "sample:cifar10-calibration",
    points: Annotated[
        int | None, typer.Option(help="Images of that row to attack. Default: as its card says.")
    ] = None,
    out: Out = None,
    resume: Resume = False,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Regenerate a figure or a table of a paper with the shipped models."""
    if name == "ratio-table1":
        rows = () if rerun else ("data", "ood", "calibrate", "points")
        unused = ("model", "count", "steps", "radius", "masks", "generator", "resume", *rows)
        refuse_unused(context, f"{name}{'' if rerun else ' without --rerun'}", *unused)
        from counterlens.cli.show.tables import show_table1
        from counterlens.workflows.reproduce.table1 import table1

        run = table1(
            rerun=rerun,
            data=data,
            ood=ood,
            calibrate=calibrate,
            points=points,
            out=out,
            seed=seed,
            device=device,
            quiet=quiet,
        )
        if not quiet:
            show_table1(*(run.table(t) for t in ("table1", "table1_rows", "differences")))
        finish(run, as_json=as_json, quiet=True)
        return
    refuse_unused(context, name, "rerun", "calibrate", "points")
    if name == "digin-figure13":
        refuse_unused(context, name, "ood", "steps", "radius")
        from counterlens.workflows.reproduce.digin_figure13 import figure13

        shown = figure13(
            model[0],
            data=data,
            masks=masks,
            generator=generator,
            count=count,
            out=out,
            resume=resume,
            seed=seed,
            device=device,
            quiet=quiet,
        )
        finish(shown.run, as_json=as_json, quiet=quiet)
        return
    refuse_unused(context, name, "masks", "generator")
    from counterlens.workflows.reproduce.figures import reproduce as run_reproduce

    made = run_reproduce(
        name,
        model=model,
        data=data,
        ood=ood[0] if ood else "sample:textures",
        count=count,
        steps=steps,
        radius=radius,
        out=out,
        resume=resume,
        seed=seed,
        device=device,
        quiet=quiet,
    )
    finish(made.run, as_json=as_json, quiet=quiet)
