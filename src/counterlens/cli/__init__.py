"""The command line: parse, import, call, print.

Standard output carries the answer alone: with --json the JSON, else the run folder as its last
line. Everything else goes to standard error. Exit codes: 0 ok · 1 a gate failed · 2 bad input ·
3 the doctor refused · 4 a repair is not shown to help · 70 a crash (its traceback is kept in the
run) · 130 Ctrl-C · 143 SIGTERM.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn, TextIO, cast

import typer

from counterlens.cli import audit as audits
from counterlens.cli import browser, cgn, documents
from counterlens.cli import curate as curation
from counterlens.cli import disagree as generating
from counterlens.cli import explain as explanations
from counterlens.cli import neurons as units
from counterlens.cli import repair as repairs
from counterlens.cli import reproduce as figures
from counterlens.cli import train as training
from counterlens.cli.ending import exit_code
from counterlens.cli.live import live
from counterlens.cli.options import app
from counterlens.progress import Heartbeat, doing, idle

__all__ = [
    "app",
    "audits",
    "browser",
    "cgn",
    "curation",
    "documents",
    "explanations",
    "figures",
    "generating",
    "main",
    "repairs",
    "training",
    "units",
]


START = """counterlens, the debugger for image classifiers. Three commands to start with:

  counterlens audit zoo:cifar10-plain-small sample:cifar10     try it: a shipped model and images
  counterlens doctor my_model.py:make photos/                  is my model wrapped right?
  counterlens audit my_model.py:make photos/                   accuracy, calibration, a report

my_model.py:make is a function of yours that returns the network; photos/ has a folder per class.
All commands: counterlens --help. Options of one: counterlens audit --help."""


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """The debugger for image classifiers: audit, explain, discover, curate, train."""
    if version:
        from counterlens import __version__

        print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(START)


def main() -> NoReturn:
    """Entry point."""
    with _heartbeat(), live():
        code = exit_code(lambda: app(standalone_mode=False))
    sys.exit(code)


@contextmanager
def _heartbeat() -> Iterator[None]:
    """Inside, standard error is never silent for long, unless --quiet asks for it."""
    if {"-q", "--quiet"} & set(sys.argv) or os.environ.get("COUNTERLENS_PROGRESS") == "off":
        yield
        return
    before = sys.stderr
    doing("loading libraries")
    with Heartbeat(before) as stream:
        sys.stderr = cast(TextIO, stream)
        try:
            yield
        finally:
            sys.stderr = before
            idle()
