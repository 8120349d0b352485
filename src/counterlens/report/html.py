"""Render a run as one HTML file: no outside address, readable offline, on a phone and on paper."""

from functools import cache
from importlib import resources
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from counterlens.progress import within
from counterlens.report.page import page
from counterlens.runs import Run, write_text
from counterlens.version import __version__


def render(run: Run) -> Path:
    """Write report.html into the run's folder and return its path."""
    path = run.folder / "report.html"
    with within("writing the report"):
        write_text(path, html(run))
    return path


def html(run: Run) -> str:
    """The report of a run as text."""
    return (
        environment()
        .get_template("page.html")
        .render(
            page=page(run),
            style=Markup(_asset("style.css")),
            script=Markup(_asset("script.js")),
            version=__version__,
        )
    )


@cache
def environment(package: str = "counterlens.report") -> Environment:
    """Where templates are found, and how they are filled.

    Args:
        package: whose templates come before those of the reports.
    """
    homes = dict.fromkeys((package, "counterlens.report"))
    return Environment(
        loader=ChoiceLoader([PackageLoader(home) for home in homes]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _asset(name: str) -> str:
    return (resources.files("counterlens.report") / "templates" / name).read_text(encoding="utf-8")
