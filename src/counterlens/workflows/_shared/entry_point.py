"""Workflows as commands of their own, `python -m counterlens.workflows.NAME`.

For `accelerate launch`, and for machines that have torch but not the libraries of the command line.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from counterlens.errors import CounterlensError
from counterlens.runs import Run, discard_unstarted


def options(
    about: str | None, *, seed: bool = True, training: bool = False
) -> argparse.ArgumentParser:
    """A parser with the options that all such commands share.

    Args:
        about: docstring of what it runs.
        seed: whether one seed rules everything random.
        training: add what trainings share.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quiet", action="store_true")
    if seed:
        parser.add_argument("--seed", type=int, default=0)
    if training:
        parser.add_argument("--set", action="append", default=[], dest="changes", metavar="K=V")
        parser.add_argument("--max-minutes", type=float)
        parser.add_argument("--cache", type=Path)
    return parser


def command(work: Callable[[], Run]) -> int:
    """Do the work, print the run folder; the exit code. Bad input is one line."""
    try:
        print(work().folder)
    except CounterlensError as error:
        if error.exit_code == 2:
            discard_unstarted()
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0
