"""Command that repairs: repair."""

from typing import Annotated

import typer

from counterlens.cli.options import (
    Device,
    Json,
    Out,
    Quiet,
    Seed,
    TrustRemote,
    app,
    check_models,
    finish,
)

_CODES = {"better": 0, "not shown": 4, "worse": 1}


@app.command()
def repair(
    model: Annotated[str, typer.Argument(help="The model; its last layer must be linear.")],
    fix: Annotated[str, typer.Option(help="Labelled images to fit and choose on.")],
    check: Annotated[str, typer.Option(help="Other labelled images, to prove the repair on.")],
    groups: Annotated[
        str, typer.Option(metavar="COLUMN", help="Column of both manifests, e.g. place.")
    ],
    remedies: Annotated[
        str, typer.Option(help="What to try, of temperature,prior,erase,weights,dfr.")
    ] = "temperature,prior,erase,weights,dfr",
    want: Annotated[
        str, typer.Option(help="What should rise: groups.worst or accuracy.top1.")
    ] = "groups.worst",
    allow: Annotated[
        list[str],
        typer.Option(
            metavar="KEY:CHANGE",
            help='Loss that must be ruled out beyond, e.g. "accuracy.top1:-0.01". May be repeated.',
        ),
    ] = [],
    plan: Annotated[
        bool, typer.Option("--plan", help="Print group sizes and what could be shown; fit nothing.")
    ] = False,
    out: Out = None,
    seed: Seed = 0,
    device: Device = "auto",
    trust_remote_code: TrustRemote = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Refit the last layer for the worst group and prove what changed."""
    check_models(model)
    from counterlens.workflows.repair.run import repair as run_repair

    run = run_repair(
        model,
        fix,
        check,
        groups=groups,
        remedies=tuple(name.strip() for name in remedies.split(",") if name.strip()),
        want=want,
        allow=allow,
        plan=plan,
        out=out,
        seed=seed,
        device=device,
        trust_remote_code=trust_remote_code,
    )
    rows = run.table("verdict")
    if not quiet:
        for line in [row["why"] for row in rows] + [row["placebo"] for row in rows]:
            typer.echo(line, err=True)
        if plan:
            for row in run.table("sizes"):
                typer.echo(f"{row['group']}: fix {row['fix']}, check {row['check']}", err=True)
    finish(run, as_json=as_json, quiet=quiet)
    for row in rows:
        raise typer.Exit(_CODES[row["verdict"]])
