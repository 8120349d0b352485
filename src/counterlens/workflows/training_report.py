"""The last act of a training: its report, where the machine has what a page needs."""

import sys

from counterlens.runs import Run


def write_report(run: Run, *, quiet: bool = False) -> None:
    """Render the run's report; a machine without the libraries of a page says so and goes on."""
    try:
        from counterlens.report import render

        render(run)
    except ImportError as error:
        if not quiet:
            told = f"no report: {error}. Write it later: counterlens report {run.folder}"
            print(told, file=sys.stderr, flush=True)
