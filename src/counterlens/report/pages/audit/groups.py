"""The section on groups of an audit: for whom it is worse, and which groups are too small."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from counterlens.report.kit import plots
from counterlens.report.kit.blocks import Badge, Block, Cell, Column, Section, Table, Text, Worry
from counterlens.runs import Run
from counterlens.runs.keys import show

TABLES = ("groups", "group_metrics", "group_values")
SHOWN = 12
"""Rows of the table that are shown at once; the rest is folded."""


def section(run: Run) -> Section | None:
    """Groups with their intervals, judged ones first."""
    rows = run.table("groups")
    if not rows:
        return None
    judged = [row for row in rows if row["judged"]]
    small = [row for row in rows if not row["judged"]]
    blocks: list[Block] = [Text(_summary(judged, small, rows[0]))]
    if judged:
        blocks.append(_table("Judged groups, lowest accuracy first", judged[:SHOWN]))
    if len(judged) > SHOWN:
        blocks.append(_table("The other judged groups", judged[SHOWN:], folded=True))
    other = run.table("group_metrics")
    if other:
        blocks.append(_other_metrics(other))
    if small:
        blocks.append(_small(small))
    lead = "For whom it is worse. Intervals hold for all judged groups together."
    return Section("groups", "Groups", blocks, lead)


def warnings(run: Run) -> Iterator[Worry]:
    """Groups that are clearly worse than the rest, as one worry."""
    clear = [row for row in run.table("groups") if _worse(row)]
    if clear:
        row = min(clear, key=lambda row: float(row["gap"]))
        more = f" {len(clear) - 1} more are clearly worse." if len(clear) > 1 else ""
        text = (
            f"{show(row['accuracy'], 'share')} of {row['n']:,} images are right, "
            f"{show(row['rest'], 'share')} of the others "
            f"(difference {_points(row)}, {row['comparisons']} comparisons).{more}"
        )
        yield Worry("watch", f"Worse for {row['group']}", text, "groups")


def _worse(row: Mapping[str, Any]) -> bool:
    return row["gap_high"] is not None and row["gap_high"] < 0


def _summary(
    judged: Sequence[Mapping[str, Any]], small: Sequence[object], any_row: Mapping[str, Any]
) -> str:
    clear = sum(_worse(row) for row in judged)
    text = (
        f"{len(judged) + len(small)} groups and intersections were looked at, {len(judged)} are "
        f"large enough to be judged: a group needs {any_row['least']} images for an interval of "
        f"±{100 * any_row['half']:g} points."
    )
    if not judged:
        return text
    return (
        f"{text} {clear or 'None'} of them {'are' if clear > 1 else 'is'} clearly worse than the "
        "rest: the Newcombe interval at the Bonferroni level lies below 0."
    )


def _table(caption: str, rows: Sequence[Mapping[str, Any]], *, folded: bool = False) -> Table:
    body = []
    for row in rows:
        bar = plots.interval_bar(row["accuracy"], row["low"], row["high"])
        body.append(
            [
                Cell(str(row["group"])),
                Cell(f"{row['n']:,}", sort=row["n"]),
                Cell(show(row["accuracy"], "share"), _ends(row, ""), row["accuracy"], bar=bar),
                _gap(row),
                Cell(
                    _signed(row["overconfidence"]),
                    _ends(row, "overconfidence_"),
                    row["overconfidence"],
                ),
            ]
        )
    columns = [
        Column("Group"),
        Column("n", numeric=True),
        Column("Accuracy", numeric=True, sub="simultaneous 95 %"),
        Column("Against the rest", numeric=True, sub="points"),
        Column("Confidence − accuracy", numeric=True, sub="points"),
    ]
    return Table(caption, columns, body, sortable=True, folded=folded)


def _gap(row: Mapping[str, Any]) -> Cell:
    if row["gap"] is None:
        return Cell("–", "no other images", tone="muted")
    badge = Badge("worse", "bad") if _worse(row) else None
    if row["gap_low"] > 0:
        badge = Badge("better", "good")
    return Cell(_signed(row["gap"]), _ends(row, "gap_"), row["gap"], badge)


def _other_metrics(rows: Sequence[Mapping[str, Any]]) -> Table:
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    at = {(row["group"], row["metric"]): row for row in rows}
    body = []
    for group in dict.fromkeys(row["group"] for row in rows):
        cells = [Cell(str(group))]
        for metric in metrics:
            row = at.get((group, metric))
            cell = Cell("–", tone="muted")
            if row:
                cell = Cell(show(row["value"], "share"), _ends(row, ""), row["value"])
            cells.append(cell)
        body.append(cells)
    columns = [Column("Group"), *(Column(_words(metric), numeric=True) for metric in metrics)]
    return Table(
        "Under attack and against unknown images", columns, body, sortable=True,
        folded=len(body) > SHOWN,
    )  # fmt: skip


def _words(metric: str) -> str:
    subject, _, kind = metric.rpartition(".")
    words = {"robust": "Robust accuracy", "auroc": "AUROC"}.get(kind, kind)
    return f"{words}, {subject.replace('_', '/') if kind == 'robust' else subject}"


def _small(rows: Sequence[Mapping[str, Any]]) -> Table:
    body = [
        [Cell(str(row["group"])), Cell(f"{row['n']:,}", sort=row["n"])]
        for row in sorted(rows, key=lambda row: -row["n"])
    ]
    columns = [Column("Group"), Column("n", numeric=True)]
    return Table(f"Too small to be judged ({len(rows)})", columns, body, sortable=True, folded=True)


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:+.1f}".replace("-", "−")


def _ends(row: Mapping[str, Any], part: str) -> str:
    low, high = row[f"{part}low"], row[f"{part}high"]
    if low is None or high is None:
        return ""
    return f"[{100 * low:.1f}, {100 * high:.1f}]".replace("-", "−")


def _points(row: Mapping[str, Any]) -> str:
    return f"{_signed(row['gap'])} points {_ends(row, 'gap_')}"
