"""Counterfactual digits: masks that held, sheets to look at, and Table 3 beside the papers'."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from counterlens.report.kit.blocks import Block, Cell, Column, Figure, Section, Table, Text
from counterlens.report.kit.parts import embed, number_list, plain_table
from counterlens.runs import Run
from counterlens.runs.keys import show

TABLES = ("gallery", "excluded", "classifiers", "baselines", "sizes", "attempts", "independence")
_NAMES = {
    "original": "Original",
    "gan": "GAN",
    "cgn": "CGN",
    "original+gan": "Original + GAN",
    "original+cgn": "Original + CGN",
}
# Table 3: accuracy of the study and of the paper it repeats, both with generators picked by hand.
_PUBLISHED = {
    "coloured": {
        "original": (37.6, 35.9), "gan": (32.5, 40.7), "cgn": (92.3, 95.1),
        "original+gan": (41.5, 40.7), "original+cgn": (95.9, 95.1),
    },
    "double-coloured": {
        "original": (10.5, 10.3), "gan": (10.6, 10.8), "cgn": (86.5, 89.0),
        "original+gan": (10.0, 10.8), "original+cgn": (85.5, 89.0),
    },
    "wildlife": {
        "original": (10.8, 10.1), "gan": (11.2, 10.4), "cgn": (81.4, 85.7),
        "original+gan": (11.1, 10.4), "original+cgn": (62.8, 85.7),
    },
}  # fmt: skip
_METRICS = {
    "test": "Test",
    "train": "Training",
    "counterfactual": "New ones",
    "iou": "CAM IoU, mean of digit and background",
    "object_iou": "CAM IoU, digit",
    "flips_object": "Object flips",
    "flips_background": "Ground flips",
}

_MAPS = {
    "corner": "one hot pixel in the corner",
    "centre": "a disc in the centre",
    "uniform": "the same value everywhere",
}


def sections(run: Run) -> list[Section]:
    """What the run holds, the answer first."""
    sections = [
        _table(run),
        _sizes(run),
        _masks(run),
        _photographs(run),
        _pictures(run),
        _independence(run),
    ]
    return [section for section in sections if section]


def _table(run: Run) -> Section | None:
    rows = run.table("classifiers")
    if not rows:
        return None
    published = _PUBLISHED.get(str(run.manifest["settings"].get("set")), {})
    metrics = [key for key in _METRICS if key in rows[0]]
    body = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        here = [row for row in rows if row["arm"] == arm]
        cells = [_median(here, key) for key in metrics]
        known = published.get(arm)
        theirs = [Cell(f"{value:.1f}" if known else "–") for value in known or (0.0, 0.0)]
        body.append([Cell(_NAMES.get(arm, arm)), cells[0], *theirs, *cells[1:]])
    columns = [
        Column("Trained on"),
        Column("Test", numeric=True),
        Column("Study", numeric=True),
        Column("Paper", numeric=True),
        *(Column(_METRICS[key], numeric=True) for key in metrics[1:]),
    ]
    lead = (
        "Medians over the seeds, last epoch; below each value all seeds in order. The test "
        "pictures have colours and textures drawn independently of the digit. Study and paper "
        "used generators picked by hand; these were trained from scratch. New ones: accuracy on "
        "new counterfactuals. CAM IoU: overlap of the heat map with the digit "
        "alone, and the mean of that and of the overlap of the cold part with the background; "
        "compare both with the trivial maps below. Flips: answers that change when the object or "
        "the ground alone does."
    )
    blocks: list[Block] = [Table("Accuracy and what it rests on", columns, body)]
    blocks += _trivial(run)
    blocks += plain_table("every classifier", rows, drawn=False)
    return Section("table", "Do they look at the shape?", blocks, lead)


def _trivial(run: Run) -> list[Block]:
    """What heat maps that ignore the image score on the same masks."""
    rows = run.table("baselines")
    body = [
        [Cell(_MAPS.get(row["map"], row["map"]))]
        + [Cell(show(row[key], "share"), sort=row[key]) for key in ("iou", "object_iou")]
        for row in rows
    ]
    columns = [
        Column("Heat map"),
        *(Column(_METRICS[key], numeric=True) for key in ("iou", "object_iou")),
    ]
    return [Table("What trivial heat maps score", columns, body)] if rows else []


def _median(rows: Sequence[Mapping[str, Any]], key: str) -> Cell:
    values = [float(row[key]) for row in rows]
    middle = sorted(values)[(len(values) - 1) // 2]
    every = ", ".join(f"{100 * value:.1f}" for value in values)
    return Cell(show(middle, "share"), sub=every if len(values) > 1 else "", sort=middle)


def _sizes(run: Run) -> Section | None:
    rows = run.table("sizes")
    if not rows:
        return None
    ratios = sorted({row["ratio"] for row in rows})
    body = []
    for size in sorted({row["size"] for row in rows}):
        cells = []
        for ratio in ratios:
            here = [row for row in rows if row["size"] == size and row["ratio"] == ratio]
            cells.append(_median(here, "test") if here else Cell("–"))
        body.append([Cell(f"{size:,}"), *cells])
    columns = [Column("Counterfactuals"), *(Column(f"Ratio {r}", numeric=True) for r in ratios)]
    lead = "Test accuracy by number of counterfactuals and pictures per mask; medians, all seeds."
    return Section("sizes", "How many, how varied?", [Table("Sizes", columns, body)], lead)


def _masks(run: Run) -> Section | None:
    rows = run.table("attempts")
    if not rows or "collapsed" not in rows[0]:
        return None
    masks = {k: n for k, n in run.numbers.items() if k.startswith("cgn.masks.")}
    blocks: list[Block] = [number_list(masks, caption="Intact masks", keys=True)]
    blocks += plain_table("every try", rows, drawn=False)
    lead = "Every training of every seed, those that collapsed among them."
    return Section("masks", "Did the masks hold?", blocks, lead)


def _photographs(run: Run) -> Section | None:
    """Masks of photographs, what is doubtful about them, and what was left out."""
    areas = ("compose.", "natural.")
    numbers = {key: one for key, one in run.numbers.items() if key.startswith(areas)}
    if not numbers:
        return None
    blocks: list[Block] = [number_list(numbers, caption="Masks and flags")]
    blocks += plain_table("excluded", run.table("excluded"), drawn=False)
    lead = (
        "Flagged images stay in the set: each carries its flags in the manifest. Examples of "
        "every flag stand below."
        if "compose.mask.area" in numbers
        else "Masks below a tenth, above nine tenths, or with more than half a bit per pixel "
        "have collapsed: shape and background are no longer apart."
    )
    return Section("photographs", "Are the masks any good?", blocks, lead)


def _pictures(run: Run) -> Section | None:
    blocks: list[Block] = []
    for row in run.table("gallery"):
        embedded = embed(run, row["image"])
        if embedded:
            # sheets of digits are enlarged, drawings and photographs are not
            drawn = "figure" in row["image"] or row["group"] == "photographs"
            style = "max-width:100%" if drawn else "width:100%;image-rendering:pixelated"
            image = f'<img src="{embedded[0]}" alt="{escape(row["label"])}" style="{style}">'
            blocks.append(Figure(str(row["label"]), Markup(image)))
    return Section("pictures", "Pictures", blocks) if blocks else None


def _independence(run: Run) -> Section | None:
    rows = run.table("independence")
    if not rows:
        return None
    lead = Text("χ² tests of the test set's factors: a very small p would say that they depend.")
    return Section(
        "independence", "Is the test fair?", [lead, *plain_table("independence", rows, drawn=False)]
    )
