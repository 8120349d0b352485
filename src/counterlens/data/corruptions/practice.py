"""Shifts of practice: JPEG, resizing, colour order, an overlay and occlusion.

Paper: Parmar, Zhang, Zhu 2022 (resizing2022) on resizing filters; the others are what happens to
    images between a camera and a classifier.
Differs: no published constants exist; the levels are ours. Of `resize_filter` and `colour_order`
    the levels are kinds, not strengths.
"""

import numpy as np
from jaxtyping import Float

from counterlens.images import decode, jpeg_bytes, resize
from counterlens.types import Interpolation

_Picture = Float[np.ndarray, "h w c"]
FILTERS: tuple[Interpolation, ...] = ("nearest", "box", "bilinear", "bicubic", "lanczos")
ORDERS = ((2, 1, 0), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1))  # BGR first
GREY = 0.5

PRACTICE_TABLE: dict[str, tuple[tuple[float, ...], ...]] = {
    "jpeg_quality": ((95,), (85,), (75,), (50,), (30,)),
    "resize_filter": ((0,), (1,), (2,), (3,), (4,)),
    "colour_order": ((0,), (1,), (2,), (3,), (4,)),
    "overlay": ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
    "occlusion": ((0.05,), (0.1,), (0.2,), (0.3,), (0.4,)),
}
LEVELS: dict[str, tuple[str, ...]] = {
    "jpeg_quality": tuple(f"quality {int(row[0])}" for row in PRACTICE_TABLE["jpeg_quality"]),
    "resize_filter": tuple(f"half size, {name}" for name in FILTERS),
    "colour_order": tuple("".join("RGB"[k] for k in order) for order in ORDERS),
    "overlay": tuple(f"{row[0]:.0%} of the height" for row in PRACTICE_TABLE["overlay"]),
    "occlusion": tuple(f"{row[0]:.0%} of the area" for row in PRACTICE_TABLE["occlusion"]),
}
"""What the five levels are, for people."""


def jpeg_quality(x: _Picture, rng: np.random.Generator, quality: float) -> _Picture:
    """Written as JPEG of an everyday quality and read again."""
    return decode(jpeg_bytes((x * 255).round().astype(np.uint8), quality=int(quality))) / 255


def resize_filter(x: _Picture, rng: np.random.Generator, which: float) -> _Picture:
    """Made half as large and back, by one filter of Pillow."""
    height, width = x.shape[:2]
    levels = (x * 255).round().astype(np.uint8)
    filter_ = FILTERS[int(which)]
    small = resize(levels, (max(1, height // 2), max(1, width // 2)), filter_)
    return resize(small, (height, width), filter_) / 255


def colour_order(x: _Picture, rng: np.random.Generator, which: float) -> _Picture:
    """The channels in another order."""
    turned: _Picture = x[..., list(ORDERS[int(which)])]
    return turned


def overlay(x: _Picture, rng: np.random.Generator, share: float) -> _Picture:
    """A dark banner with white marks, as of a caption or a time stamp, at the lower edge."""
    height, width = x.shape[:2]
    tall = max(1, round(share * height))
    out = x.copy()
    out[-tall:] = 0.1
    mark, gap = max(1, tall // 3), max(1, tall // 6)
    for left in range(gap, width - mark, mark + gap):
        if rng.random() < 0.7:
            out[height - tall + gap : height - gap, left : left + mark] = 0.95
    return out


def occlusion(x: _Picture, rng: np.random.Generator, share: float) -> _Picture:
    """A grey rectangle of the image's aspect at a random place."""
    height, width = x.shape[:2]
    tall, wide = (max(1, round(side * share**0.5)) for side in (height, width))
    top, left = rng.integers(0, height - tall + 1), rng.integers(0, width - wide + 1)
    out = x.copy()
    out[top : top + tall, left : left + wide] = GREY
    return out
