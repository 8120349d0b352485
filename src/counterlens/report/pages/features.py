"""Features on real images: which live on the background, and what components contribute."""

from collections.abc import Mapping, Sequence
from typing import Any

from counterlens.report.kit.blocks import Badge, Block, Cell, Column, Picture, Section, Strip, Table
from counterlens.report.kit.parts import embed, number_matrix
from counterlens.runs import Run
from counterlens.runs.keys import show

TABLES = ("spurious", "components")
ROWS = 15  # before the pictures; all of them are behind an expander


def caption_of(row: Mapping[str, Any]) -> str:
    """What is known of a picture of a feature beside its value."""
    if "confidence" in row:
        before = show(row["confidence_start"], "share")
        return f"{row['class']} {before} → {show(row['confidence'], 'share')}"
    known = f", really {row['label']}" if row.get("label") else ""
    return f"{row['predicted']}{known}" if row.get("predicted") else ""


def sections(run: Run) -> list[Section]:
    """Where features live, what components contribute, what changing a feature does."""
    parts = []
    if rows := run.table("spurious"):
        parts.append(_spurious(run, rows))
    if rows := run.table("components"):
        parts.append(_components(run, rows))
    changed = number_matrix(
        {k: n for k, n in run.numbers.items() if k.startswith("feature.")},
        "feature",
        caption="Means over the pictures",
        subject="Feature",
    )
    if changed:
        lead = (
            "Each picture with the feature raised and lowered. Changes of the object are "
            "penalised; how much of it stays is not measured."
        )
        parts.append(Section("changed", "What changing a feature does", list(changed), lead))
    return parts


def _spurious(run: Run, rows: Sequence[Mapping[str, Any]]) -> Section:
    count = sum(row["verdict"] == "background" for row in rows)
    lead = (
        f"{count} of {len(rows)} features live on the background: the share of their maps outside "
        "the object is surely above the background's own share of the picture (5 % in all "
        f"rows). Masks: {run.manifest.get('masks', 'unknown')}."
    )
    columns = [
        Column("Rank", numeric=True),
        Column("Feature"),
        Column("Outside the object", numeric=True, sub="95 % interval"),
        Column("Background", numeric=True, sub="share of the picture"),
        Column("Outside less background", numeric=True, sub="95 % interval"),
        Column("n", numeric=True),
        Column("Value", numeric=True, sub="mean"),
    ]
    body = [_line(row) for row in rows]
    more = len(rows) > ROWS
    blocks: list[Block] = [
        Table(
            "Features by the share of their maps outside the object",
            columns,
            body[:ROWS],
            sortable=True,
            note=f"The first {ROWS} of {len(rows)}." if more else "",
        ),
        *(_strip(run, row) for row in rows if row.get("pictures")),
    ]
    if more:
        blocks.append(Table(f"All {len(rows)} features", columns, body, sortable=True, folded=True))
    return Section("spurious", "Features on the background", blocks, lead)


def _line(row: Mapping[str, Any]) -> list[Cell]:
    tone = {"background": Badge("background", "bad"), "object": Badge("object", "good")}
    return [
        Cell(str(row["rank"]), sort=row["rank"]),
        Cell(str(row["name"]), badge=tone.get(str(row["verdict"]))),
        _share(row["outside"], row["low"], row["high"]),
        Cell(show(row["background"], "share"), sort=row["background"]),
        _share(row["excess"], row["excess_low"], row["excess_high"]),
        Cell(f"{row['n']:,}", sort=row["n"]),
        Cell(show(row["activation"]), sort=row["activation"]),
    ]


def _share(value: float, low: float, high: float) -> Cell:
    ends = (show(end, "share").rstrip("%").rstrip("\u202f") for end in (low, high))
    return Cell(show(value, "share"), sub=f"[{', '.join(ends)}]", sort=value)


def _strip(run: Run, row: Mapping[str, Any]) -> Strip:
    pictures: list[Picture] = []
    for one in row["pictures"]:
        for key, word in (("image", "the object"), ("map", "the feature")):
            image = embed(run, one[key])
            if image:
                alt = f"{one['id']}: {word}. {row['name']}."
                pictures.append(Picture(image[0], alt, word, str(one["id"]), pixelated=image[1]))
    text = (
        f"{show(row['outside'], 'share')} outside the object, {show(row['background'], 'share')} "
        "of the picture is background"
    )
    return Strip(f"{row['rank']}. {row['name']}", text, pictures, f"spurious-{row['rank']}")


def _components(run: Run, rows: Sequence[Mapping[str, Any]]) -> Section:
    columns = [
        Column("Component"),
        Column("Variance", numeric=True, sub="share of the class's"),
        Column("Spread", numeric=True, sub="of its part of the logit"),
        Column("5 % … 95 %", numeric=True, sub="images of the class"),
        Column("Others", numeric=True, sub="mean on other classes"),
        Column("n", numeric=True),
    ]
    body = [
        [
            Cell(f"{row['class']}, component {row['component']}"),
            Cell(show(row["variance"], "share"), sort=row["variance"]),
            Cell(show(row["spread"]), sort=row["spread"]),
            Cell(f"{show(row['low'])} … {show(row['high'])}", sort=row["high"]),
            Cell(show(row["others_mean"]), sort=row["others_mean"]),
            Cell(f"{row['n']:,}", more=f"{row['others']:,} others", sort=row["n"]),
        ]
        for row in rows
    ]
    blocks: list[Block] = [Table("What each component adds to the logit", columns, body)]
    harm = number_matrix(
        run.numbers, "npca", caption="Images of other classes", subject="Component"
    )
    blocks += harm or ()
    lead = (
        "Contributions are measured from the mean image of the class; all of them and the mean's "
        "logit add up to the logit. A component does harm if images of other classes are taken for "
        "the class because of it."
    )
    return Section("components", "What components contribute", blocks, lead)
