"""Which edits a repair makes of its images, and pairs of them for people to judge."""

from typing import Any

import numpy as np

from counterlens.errors import InputError
from counterlens.images import read, write_png
from counterlens.progress import doing
from counterlens.runs import Run, user_path
from counterlens.workflows._shared.masks import masks_by
from counterlens.workflows.repair.data import Data, Opened
from counterlens.workflows.repair.edits.judged import run_edit
from counterlens.workflows.repair.edits.made import (
    Edited,
    background_edit,
    box_edit,
    column_edit,
    files_edit,
    parse_box,
    parse_pairs,
    patch_edit,
)
from counterlens.workflows.repair.edits.stylised import stylised_edit
from counterlens.workflows.repair.groups import Codes, column_texts
from counterlens.workflows.repair.options import RepairOptions

SHOWN = 6
"""Pairs on the page of a plan."""


def pair_column(options: RepairOptions) -> str | None:
    """The column that keeps versions of one picture together; None for other edits."""
    if options.pairs is None:
        return None
    kind, rest = parse_pairs(options.pairs)
    return rest if kind == "column" else None


def edits_of(
    data: Data, opened: Opened, options: RepairOptions, names: tuple[str, ...]
) -> tuple[Edited, ...]:
    """Edits of the images to fit on and of those that choose; none where none was named."""
    if options.pairs is None:
        if data.partners is None or "pairs" not in names:
            return ()
        return tuple(
            column_edit(rows, data.partners, data.fix_by, data.fix)
            for rows in (data.fit, data.choose)
        )
    kind, rest = parse_pairs(options.pairs)
    fit = _edit(data, opened, (kind, rest), data.fit, [options.seed, 21])
    try:
        choose = _edit(data, opened, (kind, rest), data.choose, [options.seed, 22])
    except InputError:
        if kind not in ("files", "run", "column"):
            raise
        choose = none_of(data.choose, fit)  # few versions, all of them of images to fit on
    return fit, choose


def none_of(rows: Codes, edit: Edited) -> Edited:
    """No version of any of these pictures."""
    return Edited(rows[:0], edit.read, edit.unrelated, rows[:0])


def write_pairs(run: Run, data: Data, edits: tuple[Edited, ...], most: int) -> None:
    """Pictures beside their versions, for a review; as many of each split."""
    rows: list[dict[str, Any]] = []
    places = [(edit, j) for edit in edits for j in range(len(edit.rows))]
    rng = np.random.default_rng(0)
    drawn = sorted(rng.permutation(len(places))[:most].tolist())
    for number, (edit, j) in enumerate(places[k] for k in drawn):
        row = int(edit.rows[j])
        doing("writing pairs", number + 1, len(drawn))
        names = [f"pair-{number:04d}-{kind}.png" for kind in ("original", "edited")]
        for name, pixels in zip(names, (data.fix.read(row), edit.read(j)), strict=True):
            write_png(run.path("images", name), pixels)
        label = data.fix_by.classes[int(edit.labels_in(data.fix_by)[j])]
        rows.append(
            {
                "id": str(data.fix.ids[row]),
                "label": data.fix_by.classes[int(data.fix_by.labels[row])],
                "target": label,
                "value": data.fix_by.names[int(edit.values[j])],
                "original": f"images/{names[0]}",
                "image": f"images/{names[1]}",
            }
        )
    run.write_table("pairs", rows)
    shown = [
        {"group": "pairs", "image": row[key], "label": caption, "id": row["id"]}
        for row in rows[:SHOWN]
        for key, caption in (
            ("original", f"{row['label']}, original"),
            ("image", f"{row['target']}, edited: {row['value']}"),
        )
    ]
    run.write_table("gallery", shown)


def _edit(
    data: Data, opened: Opened, edit: tuple[str, str], rows: Codes, seed: list[int]
) -> Edited:
    (kind, rest), rng = edit, np.random.default_rng(seed)
    if kind == "patch":
        file, _, box = rest.rpartition("@")
        patch = (read(user_path(file)), parse_box(box))
        return patch_edit(data.fix, rows, data.fix_by, patch, rng)
    if kind == "box":
        return box_edit(data.fix, rows, data.fix_by, parse_box(rest), rng)
    if kind == "files":
        return files_edit(data.fix, rows, data.fix_by, user_path(rest))
    if kind == "run":
        return run_edit(data.fix, rows, data.fix_by, rest)
    if kind == "stylised":
        return stylised_edit(data.fix, rows, data.fix_by, rest, rng)
    if kind == "masks":
        masks = masks_by(rest, opened.specs[0], data.fix)
        return background_edit(data.fix, rows, data.fix_by, masks, rng)
    return column_edit(rows, column_texts(data.fix, rest), data.fix_by, data.fix)
