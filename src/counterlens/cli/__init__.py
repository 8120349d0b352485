"""The command line: parse, import, call, print.

Standard output carries the answer alone: with --json the JSON, else the run folder as its last
line. Everything else goes to standard error. Exit codes: 0 ok · 1 a gate failed · 2 bad input ·
3 the doctor refused · 70 a crash (its traceback is kept in the run) · 130 Ctrl-C · 143 SIGTERM.
"""

import sys
from typing import Annotated, NoReturn

import typer

from counterlens.cli import audit as audits
from counterlens.cli import cgn
from counterlens.cli import curate as curation
from counterlens.cli import disagree as generating
from counterlens.cli import explain as explanations
from counterlens.cli import reproduce as figures
from counterlens.cli import train as training
from counterlens.cli.ending import exit_code
from counterlens.cli.options import app

__all__ = [
    "app",
    "audits",
    "cgn",
    "curation",
    "explanations",
    "figures",
    "generating",
    "main",
    "training",
]


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """The debugger for image classifiers: audit, explain, discover, curate, train."""
    if version:
        from counterlens import __version__

        print(__version__)
        raise typer.Exit


def main() -> NoReturn:
    """Entry point."""
    sys.exit(exit_code(lambda: app(standalone_mode=False)))
