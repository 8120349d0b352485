"""The section on slices of an audit: what they have in common, and whether other images show it."""

from collections.abc import Mapping, Sequence
from typing import Any

from counterlens.report.kit.blocks import Badge, Block, Cell, Code, Column, Section, Table, Text
from counterlens.report.kit.parts import galleries
from counterlens.runs import Run
from counterlens.runs.keys import show

TABLES = ("slices", "slice_images")


def section(run: Run) -> Section | None:
    """Slices with their excess error, and the most typical pictures of each confirmed one."""
    rows = run.table("slices")
    total = run.numbers.get("slices.confirmed")
    if total is None:
        return None
    confirmed = [row for row in rows if row["confirmed"]]
    text = (
        f"{total.n:,} images were searched: one half made {len(rows)} candidates, the other "
        f"confirmed {len(confirmed) or 'none'}. Errors are compared with other images of the same "
        "classes, so that a slice is more than a hard class. A slice is confirmed where the "
        "interval of its excess lies above 0; the intervals of all candidates hold together."
    )
    blocks: list[Block] = [Text(text)]
    if rows:
        blocks.append(_table(rows))
    titles = {f"slice:{row['slice']}": f"{row['slice']}. {row['name']}" for row in confirmed}
    blocks += galleries(run, list(titles), titles)
    if confirmed:
        number = int(confirmed[0]["slice"])
        blocks.append(Code(f"To go on with slice {number}", _next(run, number), folded=False))
    lead = "Groups that nobody named, on which it errs more."
    return Section("slices", "Slices", blocks, lead)


def _next(run: Run, number: int) -> str:
    """What to type to go on with the first slice."""
    name, model = run.folder.name, str(run.manifest["settings"].get("model", "MODEL"))
    return (
        f"counterlens explain {name} --slice {number}\n"
        f"counterlens curate adversarial slices:{name}#{number} --filter {model}\n"
        f"counterlens audit OTHER_MODEL DATA --groups slices:{name}"
    )


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    body = []
    for row in rows:
        badge = Badge("confirmed", "bad") if row["confirmed"] else Badge("not confirmed", "muted")
        ends = ""
        if row["low"] is not None:
            ends = f"[{100 * row['low']:.1f}, {100 * row['high']:.1f}]".replace("-", "−")
        excess = "–" if row["excess"] is None else f"{100 * row['excess']:+.1f}".replace("-", "−")
        body.append(
            [
                Cell(f"{row['slice']}. {row['name']}", row["differs"], row["slice"], badge),
                Cell(f"{row['images']:,}", f"{row['n']:,} to confirm", row["images"]),
                Cell(show(row["error"], "share"), sort=row["error"]),
                Cell(show(row["expected"], "share"), sort=row["expected"]),
                Cell(excess, ends, row["excess"]),
                Cell(f"{row['again']} of {row['repeats']}", sort=row["again"]),
            ]
        )
    columns = [
        Column("Slice", sub="differences in standard deviations"),
        Column("Images", numeric=True),
        Column("Error", numeric=True),
        Column("Of its classes", numeric=True),
        Column("Excess", numeric=True, sub="points, simultaneous 95 %"),
        Column("Found again", numeric=True, sub="in other halves"),
    ]
    return Table("Candidates, confirmed ones first", columns, body)
