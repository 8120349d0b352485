"""Commands that generate images: disagree."""

from typing import Annotated

import typer

from counterlens.cli.commands import command
from counterlens.cli.options import app, check_classes, check_models, finish
from counterlens.workflows.disagree.options import DisagreeOptions


@command(
    app,
    DisagreeOptions,
    example="zoo:cifar10-plain-small zoo:cifar10-ratio-small --class cat --count 2",
)
def disagree(
    first: Annotated[str, typer.Argument(metavar="A", help="A model, or the old version of one.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another model, or the new version.")],
    options: DisagreeOptions,
) -> None:
    """Generate images that one model takes for a class and another does not.

    With an old model, then the new one, --class all and --verify DATA: a release check.
    """
    check_models(first, second, *options.judge, *options.persist)
    check_classes(first, options.classes, ("all",))
    from counterlens.workflows.disagree.run import disagree as run_disagree

    result = run_disagree(first, second, options=options)
    finish(result, as_json=options.json, quiet=options.quiet)
    if any(not row["passed"] for row in result.table("gates")):
        raise typer.Exit(1)
