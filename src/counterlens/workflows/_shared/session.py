"""What a workflow says while it works, and its last act: the report."""

import sys
from collections.abc import Callable

from counterlens.progress import doing
from counterlens.runs import Run

Say = Callable[[str], None]
"""Takes one line of progress."""


def teller(quiet: bool) -> Say:
    """Lines to standard error, or silence."""
    if quiet:
        return lambda line: None
    return _say


def _say(line: str) -> None:
    doing(line.rstrip("."))
    print(line, file=sys.stderr, flush=True)


def write_report(run: Run, say: Say) -> None:
    """Render the run's report; a machine without the libraries of a page says so and goes on."""
    try:
        from counterlens.report import render

        render(run)
    except ImportError as error:
        say(f"no report: {error}. Write it later: counterlens report {run.folder}")
