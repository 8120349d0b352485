"""Render the report of a run again, for instance after the look of reports has changed."""

from pathlib import Path

from counterlens.report import render
from counterlens.runs import Run


def report(run: str | Path) -> Run:
    """Write report.html of an existing run anew; nothing else of the run changes."""
    opened = Run.open(Path(run))
    render(opened)
    return opened
