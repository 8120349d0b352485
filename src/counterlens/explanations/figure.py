"""Figures: grids of small pictures with captions, as PNG and PDF."""

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from torch import Tensor

from counterlens.errors import InputError
from counterlens.images import AnyImage, to_pixels

Format = Literal["png", "pdf"]
SIDE, HEAD, CAPTION = 15, 22, 24
"""Characters of a line left of a row, above a column, below a picture."""
COLOURS = {"good": "#00654a", "bad": "#a63c00", "": "#16202c"}


@dataclass(frozen=True)
class Panel:
    """One cell of a grid.

    Args:
        image: the picture; None leaves the cell empty.
        caption: one or two lines below it.
        tone: "good" and "bad" colour the caption, which says it in words too.
    """

    image: AnyImage | Float[Tensor, "c h w"] | None
    caption: str = ""
    tone: Literal["", "good", "bad"] = ""


def canvas(wide: float, high: float) -> Any:
    """An empty matplotlib figure for a plot, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(wide, high), dpi=130, layout="constrained")


def fitted(text: str, width: int, lines: int = 2) -> str:
    """Text broken at words, each line of it into a few; the last ends with … where more follows.

    >>> fitted("towards\\nEnglish springer", 15)
    'towards\\nEnglish\\nspringer'
    >>> fitted("tf_efficientnet_lite0", 10), fitted("a b", 10, lines=1)
    ('tf_efficie\\nntnet_lit…', 'a b')
    """
    out = []
    for line in text.split("\n"):
        parts = textwrap.wrap(line, width, break_on_hyphens=False) or [""]
        if len(parts) > lines:
            parts = [*parts[: lines - 1], parts[lines - 1][: width - 1].rstrip() + "…"]
        out += parts
    return "\n".join(out)


def grid(
    rows: Sequence[Sequence[Panel]],
    *,
    heads: Sequence[str] = (),
    sides: Sequence[str] = (),
    title: str = "",
    format: Format = "png",
    cell: float = 1.15,
) -> bytes:
    """Draw rows of panels.

    Args:
        heads: a few words above each column; broken into lines where they are long.
        sides: a few words left of each row.
        cell: side of a cell in inches.
    """
    from matplotlib.figure import Figure  # a second of import time that --help need not pay

    if not rows or not rows[0]:
        raise InputError("a figure without panels was requested, expected one or more.")
    columns = max(len(row) for row in rows)
    left = 1.0 if any(sides) else 0.1
    rows = [[replace(one, caption=fitted(one.caption, CAPTION)) for one in row] for row in rows]
    heads, sides = [fitted(text, HEAD) for text in heads], [fitted(text, SIDE) for text in sides]
    lines = max(panel.caption.count("\n") + 1 for row in rows for panel in row)
    high = cell + 0.14 * lines + 0.06
    above = max((text.count("\n") for text in heads), default=0)
    top = (0.25 + 0.14 * above if heads else 0.05) + (0.3 if title else 0)
    wide = max(left + columns * (cell + 0.1), 0.1 + 0.085 * len(title))
    size = (wide, top + len(rows) * high)
    figure: Any = Figure(figsize=size, dpi=150)
    if title:
        figure.text(0.01, 1 - 0.2 / size[1], title, fontsize=9, weight="bold", va="center")
    for r, row in enumerate(rows):
        below = size[1] - top - r * high - cell
        if r < len(sides):
            figure.text(
                0.06 / size[0], (below + cell / 2) / size[1], sides[r], fontsize=7.5, va="center"
            )
        for c, panel in enumerate(row):
            box = (left + c * (cell + 0.1), below, cell, cell)
            _draw(figure, panel, box, size, heads[c] if r == 0 and c < len(heads) else "")
    out = io.BytesIO()
    quiet = {"Software": None} if format == "png" else {"CreationDate": None, "Producer": None}
    figure.savefig(out, format=format, metadata=quiet, facecolor="white")
    return out.getvalue()


def _draw(
    figure: Any,
    panel: Panel,
    box: tuple[float, float, float, float],
    size: tuple[float, float],
    head: str,
) -> None:
    x, y, wide, high = box
    axes = figure.add_axes((x / size[0], y / size[1], wide / size[0], high / size[1]))
    axes.set_axis_off()
    if head:
        axes.set_title(head, fontsize=8, pad=3)
    if panel.image is not None:
        pixels = to_pixels(panel.image)
        pixels = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
        axes.imshow(pixels, interpolation="nearest" if max(pixels.shape) < 100 else "antialiased")
    if panel.caption:
        axes.text(
            0.5, -0.04, panel.caption, transform=axes.transAxes, ha="center", va="top",
            fontsize=6.5, color=COLOURS[panel.tone], linespacing=1.15,
        )  # fmt: skip
