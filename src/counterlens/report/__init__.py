"""Reports: a run folder in, one self-contained HTML file out. Nothing in here knows torch."""

from counterlens.report.html import render

__all__ = ["render"]
