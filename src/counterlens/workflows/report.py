"""Render the report of a run again, for instance after the look of reports has changed."""

from pathlib import Path

from counterlens.report import render
from counterlens.runs import Run, reading


def report(run: str | Path) -> Path:
    """Write report.html of a run anew, change nothing else of it, and return its folder."""
    opened = Run.open(Path(run))
    with reading(opened):
        render(opened)
    return opened.folder
