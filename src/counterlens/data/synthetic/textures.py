"""Procedural textures: pictures without objects, drawn by code, for OOD tests that need no files.

Eight kinds of pattern, each with random colours, scale and direction. They are easy to tell
from photographs; a model that is sure of them is sure of anything.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.ndimage import zoom

from counterlens.data.sets import fingerprint
from counterlens.images import ImageSet, Pixels

KINDS = ("stripes", "checks", "rings", "waves", "dots", "cells", "clouds", "marble")
COUNT = 400

Field = Float[np.ndarray, "h w"]


def textures(name: str, size: tuple[int, int]) -> ImageSet:
    """Four hundred textures, fifty of each kind, the same on every machine and at every time."""
    return ImageSet(
        name=name,
        ids=[f"textures/{KINDS[i % len(KINDS)]}-{i // len(KINDS)}" for i in range(COUNT)],
        labels=np.arange(COUNT) % len(KINDS),
        classes=KINDS,
        read=ReadTexture(size),
        fingerprint=fingerprint([f"textures 1 {size[0]} x {size[1]}"]),
        notes=("drawn by code when read: nothing was photographed",),
    )


@dataclass(frozen=True)
class ReadTexture:
    """Texture i, drawn anew at each call."""

    size: tuple[int, int]

    def __call__(self, i: int) -> Pixels:
        rng = np.random.default_rng([7, i])
        blend = pattern(KINDS[i % len(KINDS)], self.size, rng)[..., None]
        low, high = rng.uniform(0, 1, (2, 3))
        grain = rng.normal(0, 0.02, (*self.size, 3))
        pixels: Pixels = ((low + (high - low) * blend + grain) * 255).round().clip(0, 255)
        return pixels.astype(np.uint8)


def pattern(kind: str, size: tuple[int, int], rng: np.random.Generator) -> Field:
    """One field in [0, 1] of the requested kind."""
    height, width = size
    y, x = np.mgrid[:height, :width] / min(size)
    angle, periods = rng.uniform(0, np.pi), rng.uniform(3, 9)
    along = x * np.cos(angle) + y * np.sin(angle)
    across = y * np.cos(angle) - x * np.sin(angle)
    centre = rng.uniform(0, 1, 2)
    if kind == "stripes":
        return _wave(along * periods)
    if kind == "checks":
        return np.asarray(np.abs(_step(along * periods) - _step(across * periods)))
    if kind == "rings":
        return _wave(np.hypot(x - centre[0], y - centre[1]) * periods)
    if kind == "waves":
        return _wave(along * periods + 0.3 * np.sin(2 * np.pi * across * periods / 2))
    if kind == "dots":
        off = (along * periods % 1 - 0.5) ** 2 + (across * periods % 1 - 0.5) ** 2
        return np.asarray(off < 0.09, dtype=np.float64)
    if kind == "cells":
        points = rng.uniform(-0.1, 1.1, (int(periods**2), 2))
        points *= np.array(size) / min(size)
        near = np.full(size, np.inf)
        for row, column in points:
            near = np.minimum(near, np.hypot(y - row, x - column))
        return np.asarray(near / near.max())
    clouds = _clouds(size, rng)
    return clouds if kind == "clouds" else _wave(along * periods + 2 * clouds)


def _wave(phase: Field) -> Field:
    wave: Field = 0.5 + 0.5 * np.sin(2 * np.pi * phase)
    return wave


def _step(phase: Field) -> Field:
    return np.asarray(phase % 1 < 0.5, dtype=np.float64)


def _clouds(size: tuple[int, int], rng: np.random.Generator) -> Field:
    total = np.zeros(size)
    for octave in range(1, 5):  # each finer and fainter than the one before
        grid = rng.uniform(0, 1, (2**octave + 1, 2**octave + 1))
        scale = (size[0] / grid.shape[0], size[1] / grid.shape[1])
        total += zoom(grid, scale, order=1)[: size[0], : size[1]] / 2**octave
    low, high = total.min(), total.max()
    return np.asarray((total - low) / max(high - low, 1e-9))
