"""What documents of a run can be asked for."""

from pathlib import Path

from counterlens.workflows._shared.options import option, record

FORMS = ("model-card", "croissant", "fiftyone", "label-studio")


@record
class EvidenceOptions:
    """Options of evidence."""

    purpose: str | None = option(
        None, help="What the model is for, in a sentence.", unit="TEXT", group="Document"
    )
    users: str | None = option(None, help="Who uses it, and where.", unit="TEXT", group="Document")
    folder: Path | None = option(
        None,
        help="Where evidence.md and evidence.pdf are written. Default: the run folder.",
        unit="FOLDER",
        group="Document",
        scope="run",
    )


@record
class ExportOptions:
    """Options of export."""

    write_to: Path | None = option(
        None,
        help="File or folder to write. Default: in or beside the run.",
        unit="PATH",
        group="Document",
        scope="run",
    )
