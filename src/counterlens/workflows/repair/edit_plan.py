"""Which edits a repair makes of its images."""

import numpy as np

from counterlens.images import read
from counterlens.runs import user_path
from counterlens.workflows._shared.masks import masks_by
from counterlens.workflows.repair.data import Data, Opened
from counterlens.workflows.repair.edits import (
    Edited,
    background_edit,
    box_edit,
    column_edit,
    files_edit,
    parse_box,
    parse_pairs,
    patch_edit,
)
from counterlens.workflows.repair.groups import Codes, column_texts
from counterlens.workflows.repair.options import RepairOptions


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
    return tuple(
        _edit(data, opened, (kind, rest), rows, [options.seed, stream])
        for stream, rows in ((21, data.fit), (22, data.choose))
    )


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
    if kind == "masks":
        masks = masks_by(rest, opened.specs[0], data.fix)
        return background_edit(data.fix, rows, data.fix_by, masks, rng)
    return column_edit(rows, column_texts(data.fix, rest), data.fix_by, data.fix)
