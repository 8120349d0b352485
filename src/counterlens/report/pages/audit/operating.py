"""The section on operating points of an audit: thresholds, what they promise, what they do."""

from collections.abc import Mapping, Sequence
from typing import Any

from counterlens.report.kit.blocks import Block, Cell, Column, Section, Table
from counterlens.report.kit.parts import number_list
from counterlens.runs import Run
from counterlens.runs.keys import meaning, show

TABLES = ("operating", "operating_groups")
_WORDS = {
    "coverage": "Coverage",
    "risk": "Selective risk",
    "recall": "Recall",
    "precision": "Precision",
    "fpr": "False positive rate",
}


def section(run: Run) -> Section | None:
    """Thresholds with their measured rates, and the same by group."""
    rows = run.table("operating")
    costs = {k: n for k, n in run.numbers.items() if k.startswith("operating.costs.")}
    if not rows and not costs:
        return None
    blocks: list[Block] = []
    for kinds in (("coverage", "risk"), ("recall", "precision", "fpr")):
        own = [row for row in rows if kinds[0] in row]
        if own:
            blocks.append(_table("Thresholds", own, kinds))
        by_group = [row for row in run.table("operating_groups") if kinds[0] in row]
        if by_group:
            blocks.append(_table("The same by group", by_group, kinds, folded=True))
    if costs:
        blocks.append(number_list(costs, caption="Costs"))
    lead = (
        "Thresholds on the softmax probability at temperature 1, chosen on calibration images and "
        "evaluated on the images reported on."
    )
    return Section("operating", "Operating points", blocks, lead)


def _table(
    caption: str, rows: Sequence[Mapping[str, Any]], kinds: Sequence[str], *, folded: bool = False
) -> Table:
    grouped = "group" in rows[0]
    body = []
    for row in rows:
        threshold = "none" if row["threshold"] is None else f"{row['threshold']:.4g}"
        why = row["reason"] or ("" if grouped else row["guarantee"])
        cells = [Cell(str(row["target"]), str(row["group"]) if grouped else str(why))]
        if grouped:
            cells.append(Cell(f"{row['n']:,}", sort=row["n"]))
        else:
            cells.append(Cell(threshold, f"from {row['calibration']:,} images", row["threshold"]))
        cells += [_rate(row, kind) for kind in kinds]
        body.append(cells)
    second = Column("n", numeric=True) if grouped else Column("Threshold", numeric=True)
    columns = [Column("Target"), second, *(Column(_WORDS[kind], numeric=True) for kind in kinds)]
    return Table(caption, columns, body, sortable=grouped, folded=folded)


def _rate(row: Mapping[str, Any], kind: str) -> Cell:
    value, low, high = (row[f"{kind}{end}"] for end in ("", "_low", "_high"))
    ends = "" if low is None else f"[{100 * low:.1f}, {100 * high:.1f}]"
    return Cell(show(value, meaning(f"operating.{kind}").unit), ends, value)
