"""Evidence: one document of an audit for those who have to approve it, as Markdown and as PDF."""

from pathlib import Path

from counterlens.errors import InputError
from counterlens.report.evidence import document, markdown, title
from counterlens.runs import Run, reading, write_text
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows.documents.options import EvidenceOptions


@takes(EvidenceOptions)
def evidence(run: str | Path | Run | Result, options: EvidenceOptions) -> Path:
    """Write evidence.md and evidence.pdf of a finished audit; returns the Markdown file.

    Args:
        run: a finished audit: its folder, run or result.

    >>> import counterlens as cl
    >>> cl.evidence("runs/mine", purpose="triage of skin photographs")      # doctest: +SKIP
    """
    folder = run.folder if isinstance(run, Run | Result) else Path(run)
    opened = Run.open(folder)
    if opened.manifest["command"] != "audit" or not opened.done:
        raise InputError(
            f"{folder} is no finished audit, expected the run folder of counterlens audit."
        )
    with reading(opened):
        parts = document(opened, purpose=options.purpose, users=options.users)
        heading = title(opened)
        target = options.folder or opened.folder
        write_text(target / "evidence.md", markdown(heading, parts))
        from counterlens.explanations.pages import write_pdf

        tables = [(p.title, p.lines, [(g.head, g.rows) for g in p.grids]) for p in parts]
        write_pdf(target / "evidence.pdf", heading, tables)
    return target / "evidence.md"
