"""Exact worst case over a stated grid of changes: rotations with translations, and colours.

Paper: Engstrom et al. 2019 (engstrom2019) for 31 rotations × 5 × 5 translations.
Differs: the shift is 3/32 of each side, their 3 of 32 pixels. The colour grid (hue, saturation and
       value in a fixed box) is ours. The number is the worst of the grid and of nothing else: it
       needs no verdict, and says nothing about changes between its points.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from counterlens.errors import InputError
from counterlens.types import Images, Labels

Transform = Callable[[Images], Images]
ANGLES, SHIFTS = 31, 5
LARGEST_ANGLE, LARGEST_SHIFT = 30.0, 3 / 32
HUES = (-0.1, -0.05, 0.0, 0.05, 0.1)  # of the circle
SATURATIONS = (0.5, 0.75, 1.0, 1.25, 1.5)
VALUES = (0.7, 0.85, 1.0, 1.15, 1.3)
GRIDS = ("spatial", "colour")
UNCHANGED = "as it is"


@dataclass(frozen=True)
class GridResult:
    """The worst case of each image over a grid.

    Args:
        right: images answered right at every point of the grid.
        clean: images answered right as they are.
        points: how many changes the grid has.
        worst: index of the first change that breaks an image, -1 where none does.
    """

    right: Tensor
    clean: Tensor
    points: int
    worst: Tensor


def grid_of(name: str) -> list[tuple[str, Transform]]:
    """The changes of a grid, each with its name; the first leaves images as they are.

    >>> len(grid_of("spatial")), len(grid_of("colour"))
    (775, 125)
    """
    if name not in GRIDS:
        raise InputError(f"grid is {name!r}, expected one of {', '.join(GRIDS)}.")
    changes = list(_spatial() if name == "spatial" else _colour())
    return sorted(changes, key=lambda change: change[0] != UNCHANGED)


def _spatial() -> Iterator[tuple[str, Transform]]:
    angles = [2 * LARGEST_ANGLE * k / (ANGLES - 1) - LARGEST_ANGLE for k in range(ANGLES)]
    shifts = [2 * LARGEST_SHIFT * k / (SHIFTS - 1) - LARGEST_SHIFT for k in range(SHIFTS)]
    for angle, down, right in product(angles, shifts, shifts):
        words = f"{angle:+.0f}°, {100 * right:+.0f} % right, {100 * down:+.0f} % down"
        yield UNCHANGED if angle == down == right == 0 else words, _turn(angle, down, right)


def _turn(angle: float, down: float, right: float) -> Transform:
    def change(x: Images) -> Images:
        return rotated(x, angle, down, right)

    return change


def rotated(x: Images, angle: float, down: float, right: float) -> Images:
    """Turned about the centre in degrees, then moved; black where nothing is.

    Args:
        down, right: shares of height and width.
    """
    if angle == down == right == 0:
        return x
    height, width = x.shape[2:]
    turn = math.radians(angle)
    cos, sin, aspect = math.cos(turn), math.sin(turn), height / width
    # where an output pixel comes from: back by the shift, then turned back, in [-1, 1] units
    rows = [
        [cos, sin * aspect, -2 * (cos * right + sin * aspect * down)],
        [-sin / aspect, cos, -2 * (-sin / aspect * right + cos * down)],
    ]
    theta = torch.tensor(rows, dtype=x.dtype, device=x.device).expand(len(x), 2, 3)
    places = nn.functional.affine_grid(theta, list(x.shape), align_corners=False)
    return nn.functional.grid_sample(x, places, mode="bilinear", align_corners=False).clamp(0, 1)


def _colour() -> Iterator[tuple[str, Transform]]:
    for hue, saturation, value in product(HUES, SATURATIONS, VALUES):
        unchanged = (hue, saturation, value) == (0.0, 1.0, 1.0)
        words = f"hue {hue:+.2f}, saturation × {saturation:g}, value × {value:g}"
        yield UNCHANGED if unchanged else words, _tint(hue, saturation, value)


def _tint(hue: float, saturation: float, value: float) -> Transform:
    def change(x: Images) -> Images:
        return tinted(x, hue, saturation, value)

    return change


def tinted(x: Images, hue: float, saturation: float, value: float) -> Images:
    """Hue turned by a share of the circle, saturation and value of HSV scaled and cut at 1."""
    if (hue, saturation, value) == (0.0, 1.0, 1.0):
        return x
    top, low = x.amax(1), x.amin(1)
    span = top - low
    red, green, blue = x.unbind(1)
    safe = span.clamp_min(1e-12)
    sector = torch.where(
        top == red,
        ((green - blue) / safe) % 6,
        torch.where(top == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    turned = ((sector / 6 + hue) % 1) * 6
    depth = (span / top.clamp_min(1e-12) * saturation).clamp(0, 1)
    bright = (top * value).clamp(0, 1)
    planes = []
    for offset in (5.0, 3.0, 1.0):
        k = (offset + turned) % 6
        planes.append(bright * (1 - depth * torch.minimum(k, 4 - k).clamp(0, 1)))
    return torch.stack(planes, 1)


@torch.no_grad()
def worst_of_grid(
    model: Callable[[Images], Tensor], x: Images, y: Labels, name: str, *, batch: int = 256
) -> GridResult:
    """The answer at every change of a grid; an image counts as right if it is at all of them.

    Equation: engstrom2019 worst-of-grid   right(x) = ∀ t ∈ grid: argmax f(t(x)) = y
    """
    if name == "colour" and x.shape[1] != 3:
        raise InputError(f"colour changes need 3 channels, the images have {x.shape[1]}.")
    changes = grid_of(name)
    worst = torch.full_like(y, -1)
    for number, (_, change) in enumerate(changes):
        rows = torch.nonzero(worst < 0).flatten()
        for part in torch.split(rows, batch):
            if len(part):
                wrong = model(change(x[part])).argmax(1) != y[part]
                worst[part[wrong]] = number
    return GridResult(worst < 0, worst != 0, len(changes), worst)
