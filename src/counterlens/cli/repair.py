"""Command that repairs: repair."""

from typing import Annotated

import typer

from counterlens.cli.commands import command
from counterlens.cli.options import app, check_models, check_sets, finish
from counterlens.workflows.repair.options import RepairOptions

CODES = {"better": 0, "not shown": 4, "worse": 1}


@command(
    app,
    RepairOptions,
    example="my_model.py:make --fix fix.csv --check check.csv --groups column:place",
)
def repair(
    model: Annotated[str, typer.Argument(help="The model; its last layer must be linear.")],
    options: RepairOptions,
) -> None:
    """Replace the last layer for the worst group and prove on other images what changed."""
    check_models(model)
    check_sets(options.fix, options.check)
    from counterlens.workflows.repair.run import repair as run_repair

    result = run_repair(model, options=options)
    rows = result.table("verdict")
    if not options.quiet:
        for line in [row["why"] for row in rows] + [row["note"] for row in result.table("notes")]:
            typer.echo(line, err=True)
        if options.plan:
            for row in result.table("sizes"):
                counts = f"fit {row['fit']}, choose {row['choose']}, check {row['check']}"
                typer.echo(f"{row['group']}: {counts}", err=True)
            for row in result.table("plan"):
                if row["why_not"]:
                    typer.echo(row["why_not"], err=True)
    finish(result, as_json=options.json, quiet=options.quiet)
    for row in rows:
        if CODES[row["verdict"]]:
            raise typer.Exit(CODES[row["verdict"]])
