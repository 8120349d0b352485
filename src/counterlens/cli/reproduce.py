"""Commands that compute a paper's results again: reproduce figure, reproduce table."""

from typing import Any

import typer

from counterlens.cli.commands import Choices, command
from counterlens.cli.options import app, finish
from counterlens.workflows.reproduce.options import (
    FigureOptions,
    GradientFigureOptions,
    OodFigureOptions,
    Table1Options,
)

reproduce = typer.Typer(
    cls=Choices,
    name="reproduce",
    help="Figures and tables of the papers, with the shipped models; without a name, their list.",
    rich_markup_mode=None,
)
figures = typer.Typer(
    cls=Choices,
    name="reproduce figure",
    help="Draw a figure of a paper again.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
tables = typer.Typer(
    cls=Choices,
    name="reproduce table",
    help="Put a table of a paper beside ours.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(reproduce)
reproduce.add_typer(figures, name="figure")
reproduce.add_typer(tables, name="table")

RATIO_FIGURES: dict[str, tuple[type[Any], str]] = {
    "ratio-figure1": (FigureOptions, "A plain model: sure of any class, with only noise to see."),
    "ratio-figure2": (FigureOptions, "Mistakes, towards the truth and towards the mistake."),
    "ratio-figure5": (OodFigureOptions, "Confidence against radius, inside and outside."),
    "ratio-figure7": (OodFigureOptions, "Images of anything else, towards the class answered."),
    "ratio-figure13": (FigureOptions, "A random panel of mistakes, towards the truth."),
}


@reproduce.callback(invoke_without_command=True)
def overview(context: typer.Context) -> None:
    """Figures and tables of the papers, with the shipped models; without a name, their list."""
    if context.invoked_subcommand is not None:
        return
    for name, (_, about) in RATIO_FIGURES.items():
        print(f"figure {name:16} RATIO: {about}")
    print(f"figure {'digin-figure13':16} DiG-IN: {gradients.__doc__}")
    print(f"table  {'ratio-table1':16} RATIO: {table1.__doc__}")


def _register(name: str, kind: type[Any], about: str) -> None:
    """One figure of the RATIO paper as a command with the options that it uses."""

    def draw(options: Any) -> None:
        from counterlens.workflows.reproduce.figures import figure

        result = figure(name, options=OodFigureOptions(**vars(options)))
        finish(result, as_json=options.json, quiet=options.quiet)

    draw.__annotations__["options"] = kind
    draw.__doc__ = about
    command(figures, kind, name=name, example="--shown 3 --steps 100")(draw)


for _name, (_kind, _about) in RATIO_FIGURES.items():
    _register(_name, _kind, _about)


@command(figures, GradientFigureOptions, name="digin-figure13", example="--shown 4")
def gradients(options: GradientFigureOptions) -> None:
    """Does the gradient lie on the object? Without help, with cut-outs, with noise."""
    from counterlens.workflows.reproduce.digin_figure13 import figure13

    result = figure13(options=options)
    finish(result, as_json=options.json, quiet=options.quiet)


@command(tables, Table1Options, name="ratio-table1", example="--rerun cifar10-ratio-small")
def table1(options: Table1Options) -> None:
    """The paper's Table 1 beside ours, from stored audits; a row can be audited again."""
    from counterlens.workflows.reproduce.table1 import table1 as run_table1

    result = run_table1(options=options)
    if not options.quiet:
        from counterlens.cli.show.tables import show_table1

        show_table1(*(result.table(t) for t in ("table1", "table1_rows", "differences")))
    finish(result, as_json=options.json, quiet=True)
