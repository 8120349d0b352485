"""Sheets of composed photographs: each factor, the image put together again, counterfactuals."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64

from counterlens.generators.cgn.model import compose
from counterlens.generators.cgn.photographs import tiled_background
from counterlens.images import tile, write_png
from counterlens.runs import Run, key_part
from counterlens.types import Images
from counterlens.workflows.cgn.compose import Composer, Picks
from counterlens.workflows.cgn.photographs import Sources

ROWS = 10
COLUMNS = ("photograph", "mask", "object", "texture", "background", "put together again",
           "3 counterfactuals")  # fmt: skip
EXAMPLES = 6


def write_sheets(
    run: Run,
    composer: Composer,
    picks: Picks,
    giving: Int64[np.ndarray, "m"],
    rows: Sequence[dict[str, Any]],
    sheets: int,
) -> None:
    """The sheets, ten classes each, and a picture for each flag, as the run's gallery."""
    sources = composer.sources
    classes = [int(k) for k in np.unique(sources.labels)]
    gallery = []
    for number in range(sheets):
        start = ROWS * number
        if start and start >= len(classes):
            break
        part = classes[start : start + ROWS]
        cells = [cell for k in part for cell in sheet_row(composer, picks, giving, k)]
        name = f"sheet-{number + 1}"
        write_png(run.path("images", f"{name}.png"), tile(cells, columns=len(COLUMNS) + 2, gap=3))
        text = ", ".join(sources.classes[k] for k in part)
        label = f"{text}. From left to right: {', '.join(COLUMNS)}"
        gallery.append({"group": "photographs", "image": f"images/{name}.png", "id": name,
                        "label": label})  # fmt: skip
    run.write_table("gallery", [*gallery, *_flagged(run, composer, picks, rows)])


def sheet_row(
    composer: Composer, picks: Picks, giving: Int64[np.ndarray, "m"], k: int
) -> list[Images]:
    """One class: the factors of its photograph of middling area, and three counterfactuals."""
    sources, own = composer.sources, np.flatnonzero(composer.sources.labels == k)
    fit = np.intersect1d(own, giving)
    candidates = fit if len(fit) else own
    areas = np.array([sources.rows[int(i)]["area"] for i in candidates])
    i = int(candidates[np.argsort(areas, kind="stable")[len(areas) // 2]])
    row = torch.tensor([i])
    x, mask = sources.photographs(row)[0], sources.masks(row)[0]
    texture = composer.front(i, i)
    behind = _background(composer, sources, i)
    shown = [x, mask.expand_as(x), compose(mask, x, torch.full_like(x, 0.5)), texture, behind]
    shown.append(compose(mask, texture, behind))
    of_class = np.flatnonzero(sources.labels[picks.shape] == k)[:3]
    chosen = np.resize(of_class, 3) if len(of_class) else None
    if chosen is None:
        return [*shown, *([torch.ones_like(x)] * 3)]
    others = Picks(np.full(3, i), picks.texture[chosen], picks.background[chosen])
    if composer.texture == "own":
        others = Picks(others.shape, others.shape, others.background)
    if composer.background == "own":
        others = Picks(others.shape, others.texture, others.shape)
    return [*shown, *composer(others, 10**6 + i)[0]]


def _background(composer: Composer, sources: Sources, i: int) -> Images:
    """Its background by the composer's way; grey where it has none to give."""
    row = torch.tensor([i])
    if composer.background == "swap":
        tiled = tiled_background(sources.photographs(row)[0], sources.masks(row)[0])
        return torch.full_like(sources.photographs(row)[0], 0.5) if tiled is None else tiled
    return composer.behind(i)


def _flagged(
    run: Run, composer: Composer, picks: Picks, rows: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """For each flag up to six counterfactuals with the photograph and the mask of their shape."""
    gallery = []
    flags = sorted({flag for row in rows for flag in row["flags"].split("; ") if flag})
    for flag in flags:
        hit = np.array([k for k, row in enumerate(rows) if flag in row["flags"].split("; ")])
        some = hit[np.linspace(0, len(hit) - 1, min(EXAMPLES, len(hit))).astype(int)]
        cells = []
        for k in some.tolist():
            one = Picks(picks.shape[k : k + 1], picks.texture[k : k + 1],
                        picks.background[k : k + 1])  # fmt: skip
            x, _, _, mask = composer(one, k)
            photograph = composer.sources.photographs(torch.from_numpy(one.shape))
            cells += [photograph[0], mask[0].expand_as(x[0]), x[0]]
        name = f"flagged-{key_part(flag)}"
        write_png(run.path("images", f"{name}.png"), tile(cells, columns=6, gap=3))
        label = (
            f"flagged as: {flag} ({len(hit)} of {len(rows)}); photograph and mask of the shape, "
            "and the counterfactual"
        )
        gallery.append({"group": "photographs", "image": f"images/{name}.png", "id": name,
                        "label": label})  # fmt: skip
    return gallery
