"""The section on the heads of an audited classifier: shape, texture, background, their mean."""

from collections.abc import Mapping
from typing import Any

from counterlens.report.kit.blocks import Block, Cell, Column, Section, Table
from counterlens.runs import Run
from counterlens.runs.keys import show

TABLES = ("heads",)
_COLUMNS = {
    "accuracy": "Right (shape)",
    "texture": "Class of the texture",
    "background": "Class of the background",
    "shape_bias": "Shape bias",
}


def section(run: Run) -> Section | None:
    """A row for each head; None where the network has no heads."""
    rows = run.table("heads")
    if not rows:
        return None
    measured = [key for key in _COLUMNS if key in rows[0]]
    body = [[Cell(str(row["head"])), *(_cell(row, key) for key in measured)] for row in rows]
    columns = [Column("Head"), *(Column(_COLUMNS[key], numeric=True) for key in measured)]
    lead = (
        "Each head answers by itself; the ensemble is the mean of their logits. On counterfactuals "
        "the columns say which factor an answer names; by chance one in K agrees with each."
    )
    blocks: list[Block] = [Table("Heads", columns, body)]
    return Section("heads", "Heads", blocks, lead)


def _cell(row: Mapping[str, Any], key: str) -> Cell:
    if row.get(key) is None:
        return Cell("–")
    bounds = f"[{show(row[f'{key}_low'], 'share')}, {show(row[f'{key}_high'], 'share')}]"
    return Cell(show(row[key], "share"), sub=f"{bounds}, n = {row[f'{key}_n']:,}", sort=row[key])
