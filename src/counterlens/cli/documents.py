"""Commands that write documents of a run for other people and other programs: evidence, export."""

from pathlib import Path
from typing import Annotated

import typer

from counterlens.cli.commands import command
from counterlens.cli.options import app
from counterlens.workflows.documents.options import FORMS, EvidenceOptions, ExportOptions

Finished = Annotated[Path, typer.Argument(metavar="RUN", help="A finished run folder.")]


@command(app, EvidenceOptions, example='runs/first --purpose "triage of skin photographs"')
def evidence(run: Finished, options: EvidenceOptions) -> None:
    """Write an audit as one document, Markdown and PDF, for those who approve it."""
    from counterlens.workflows.documents.evidence import evidence as write

    print(write(run, options=options))


@command(app, ExportOptions, example="runs/first model-card --write-to README.md")
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run, or a frozen set.")],
    form: Annotated[str, typer.Argument(metavar="FORM", help=f"{', '.join(FORMS)}.")],
    options: ExportOptions,
) -> None:
    """Write a run or a frozen set as other programs read it: model card, Croissant, …"""
    from counterlens.workflows.documents.export import export as write

    print(write(run, form, options=options))
