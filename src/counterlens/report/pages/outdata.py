"""A cleaned pool: what went and why, and whether what stays gives itself away."""

from collections.abc import Mapping
from typing import Any

from counterlens.report.kit import plots
from counterlens.report.kit.blocks import Block, Cell, Column, Section, Table, Text
from counterlens.report.kit.parts import galleries, number_matrix, plain_table
from counterlens.runs import Number, Run
from counterlens.runs.keys import show

TABLES = ("removed", "removed_classes", "telling", "gallery")
_REASONS = {
    "copy": (
        "Copies",
        "the picture, or a part of it, is one of the data's but for size, codec or light",
    ),
    "class name": ("Classes of the same name", "the class is called like one of the data's"),
    "class looks like": (
        "Classes that look like the data",
        "half the class lies as near to the data as its own pictures do",
    ),
    "looks like": (
        "Pictures that look like the data",
        "the picture lies as near to the data as its own pictures do",
    ),
}
_EASY, _HARD = 0.8, 0.6


def sections(run: Run) -> list[Section]:
    """What went, and the test of what stays."""
    return [_removed(run), _low_level(run)]


def _removed(run: Run) -> Section:
    rows, numbers = run.table("removed"), run.numbers
    total = numbers["outdata.kept"].n
    body = []
    for reason, (title, rule) in _REASONS.items():
        n = sum(row["reason"] == reason for row in rows)
        bar = plots.share_bar(n / total)
        share = Cell(show(n / total, "share", digits=2), sort=n / total, bar=bar)
        body.append([Cell(title), Cell(f"{n:,}", sort=n), share, Cell(rule)])
    left = total - len(rows)
    share = Cell(show(left / total, "share", digits=2), bar=plots.share_bar(left / total))
    body.append([Cell("Stays"), Cell(f"{left:,}"), share, Cell(f"in {run.manifest.get('kept')}")])
    columns = [
        Column("What went"),
        Column("Pictures", numeric=True),
        Column("Share", numeric=True),
        Column("Rule", long=True),
    ]
    blocks: list[Block] = [Table("Removed pictures and why", columns, body, quiet=True)]
    classes = run.table("removed_classes")
    if classes:
        blocks += plain_table("classes that went", classes, drawn=False)
    titles = {
        reason: f"{title}: beside it the nearest of the data"
        for reason, (title, _) in _REASONS.items()
    }
    titles["class name"] = _REASONS["class name"][0]
    blocks += galleries(run, _REASONS, titles)
    if rows:
        blocks += plain_table("removed pictures", rows, drawn=False)
    lead = (
        f"Of {total:,} pictures, {left:,} stay. A picture that several rules name is counted "
        "under the first of them."
    )
    return Section("removed", "Removed pictures and why", blocks, lead)


def _low_level(run: Run) -> Section:
    numbers = run.numbers
    blocks: list[Block] = [Text(_sentence(numbers.get("outdata.all.auroc")))]
    matrix = number_matrix(
        {k: n for k, n in numbers.items() if k.endswith(".auroc")},
        "outdata",
        caption="How well low-level statistics tell the sets apart",
        subject="Statistics",
    )
    blocks += matrix or ()
    features = run.table("telling")
    if features:
        body = [[Cell(str(row["feature"])), _gap(row)] for row in features]
        columns = [
            Column("Statistic"),
            Column("Pool less data, in standard deviations", numeric=True),
        ]
        blocks.append(Table("Where the means differ most", columns, body))
    lead = (
        "A network that can tell the pool from the data by colour, sharpness or codec need not "
        "look at what they show. 50 % is chance, 100 % gives all away."
    )
    return Section(
        "low-level", "Do low-level statistics separate the pool?", blocks, lead, "Low-level traces"
    )


def _sentence(number: Number | None) -> str:
    if number is None or number.value is None:
        return f"Not measured: {number.reason if number else 'no picture was compared'}."
    value = show(number.value, "share")
    if number.value >= _EASY:
        return (
            f"A linear model tells the sets apart with an AUROC of {value}. Much of this is not "
            "content: resize and encode both sets in the same way, then run this again."
        )
    if number.value >= _HARD:
        return (
            f"A linear model tells the sets apart with an AUROC of {value}. Some of this is style "
            "that comes with other subjects; see which statistics lead."
        )
    return f"A linear model hardly tells the sets apart: AUROC {value}."


def _gap(row: Mapping[str, Any]) -> Cell:
    return Cell(f"{row['gap']:+.2f}".replace("-", "−"), sort=abs(row["gap"]))
