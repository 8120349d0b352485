"""A curation: its funnel, the images it chose, what was set aside, copies that were found."""

from collections.abc import Mapping, Sequence
from typing import Any

from counterlens.report.kit import plots
from counterlens.report.kit.blocks import Block, Cell, Column, Section, Table, Text
from counterlens.report.kit.parts import galleries, number_list, plain_table
from counterlens.runs import Run

TABLES = (
    *("funnel", "shortlist", "gallery", "aside", "aside_counts", "copies", "fate", "matching"),
    *("suspects", "proposal"),
)
_HIDDEN = ("image", "row", "sha256", "answers", "counterfactual")


def sections(run: Run) -> list[Section]:
    """The sections for which the run has something to show."""
    parts = [
        _funnel(run),
        _shortlist(run),
        _rows(run, "suspects", "Labels to doubt", "Every model says something else, and is sure."),
        _rows(run, "proposal", "Proposed classes", "Edit the list, then pass it as --classes."),
        _screens(run),
        _excluded(run),
        _rows(run, "matching", "Which class is which", ""),
    ]
    return [section for section in parts if section]


def _funnel(run: Run) -> Section | None:
    rows = run.table("funnel")
    if not rows:
        return None
    most = max(1, rows[0]["kept"])
    body = [
        [
            Cell(row["stage"]),
            Cell(row["rule"]),
            Cell(f"{row['dropped']:,}", sort=row["dropped"]),
            Cell(f"{row['kept']:,}", sort=row["kept"], bar=plots.share_bar(row["kept"] / most)),
        ]
        for row in rows
    ]
    columns = [
        Column("Stage"),
        Column("What stays", long=True),
        Column("Dropped", numeric=True),
        Column("Left", numeric=True),
    ]
    steps = " → ".join(f"{row['kept']:,}" for row in rows)
    table = Table("Funnel", columns, body, quiet=True)
    return Section("funnel", "Funnel", [Text(f"{steps}."), table], _protocol(run))


def _protocol(run: Run) -> str:
    protocol = str(run.manifest.get("protocol", ""))
    return f"Answers are counted over {protocol}." if protocol else ""


def _shortlist(run: Run) -> Section | None:
    rows = run.table("shortlist")
    if not rows:
        return None
    blocks: list[Block] = [*galleries(run, ["shortlist"], {"shortlist": "First of the shortlist"})]
    blocks += plain_table("shortlist", [_row(row) for row in rows], drawn=False)
    lead = f"{len(rows):,} images to review: counterlens curate review {run.folder.name}."
    return Section("shortlist", "Shortlist", blocks, lead)


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in _HIDDEN}


def _rows(run: Run, name: str, title: str, lead: str) -> Section | None:
    rows: Sequence[Mapping[str, Any]] = run.table(name)
    if not rows:
        return None
    blocks: list[Block] = [*galleries(run, [name], {name: title})]
    blocks += plain_table(name, [_row(row) for row in rows], drawn=False)
    return Section(name, title, blocks, lead)


def _screens(run: Run) -> Section | None:
    screens = {key: n for key, n in run.numbers.items() if key.startswith("screen.")}
    copies = run.table("copies")
    blocks: list[Block] = [number_list(screens, caption="Screens")] if screens else []
    if copies:
        blocks += plain_table("copies", copies, drawn=False)
    lead = (
        "A set that colour, edges and codec alone tell from other images tests these, not what "
        "the images show: 50 % means that they cannot tell."
    )
    return Section("screens", "Screens", blocks, lead) if blocks else None


def _excluded(run: Run) -> Section | None:
    counts = run.table("aside_counts")
    if not counts:
        return None
    blocks = [*plain_table("why", counts, drawn=False)]
    blocks += plain_table("files", run.table("aside"), drawn=False)
    return Section("aside", "Set aside", blocks)
