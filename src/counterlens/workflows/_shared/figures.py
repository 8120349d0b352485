"""Images and figures that workflows write into a run."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.explanations.figure import Format, Panel, grid
from counterlens.images import write_png
from counterlens.runs import Run, atomic


def save(run: Run, name: str, image: Float[Tensor, "c h w"]) -> str:
    """Write a picture into the run unless it is there; its path inside the run."""
    path = run.path("images", name)
    if not path.exists():
        write_png(path, image)
    return f"images/{name}"


def save_figure(run: Run, name: str, rows: list[list[Panel]], **settings: Any) -> str:
    """Write a grid as PNG and PDF; the PNG's path inside the run."""
    kinds: tuple[Format, ...] = ("png", "pdf")
    for kind in kinds:
        data = grid(rows, format=kind, **settings)
        with atomic(run.path("images", f"{name}.{kind}")) as part:
            part.write_bytes(data)
    return f"images/{name}.png"


def difference(z: Float[Tensor, "c h w"], x: Float[Tensor, "c h w"]) -> Float[Tensor, "c h w"]:
    """The change as a picture: grey where there is none, scaled to its largest value."""
    change = z - x
    largest = change.abs().max()
    return 0.5 + change / (2 * largest) if largest > 0 else torch.full_like(x, 0.5)
