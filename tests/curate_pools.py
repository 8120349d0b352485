"""Pools and classifiers of known truth for the tests of curate."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from counterlens.classifier import Classifier
from counterlens.images import write_png
from counterlens.types import Preprocess

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220)}
SCALE = 8.0

FACTORY = """
import sys
sys.path.insert(0, {folder!r})
from curate_pools import by_colour, by_corner


def make():
    return by_colour()


def corner():
    return by_corner()
"""


class MeanColour(nn.Module):
    """Logits are the mean red, green and blue of the picture, times a scale."""

    def forward(self, x: Tensor) -> Tensor:
        return SCALE * x.mean((2, 3))


class CornerColour(nn.Module):
    """Logits are the colour of the upper left quarter."""

    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[2] // 2
        return SCALE * x[:, :, :half, :half].mean((2, 3))


def by_colour(crop: float = 1.0) -> Classifier:
    return Classifier(
        MeanColour(), tuple(COLOURS), preprocess=Preprocess((16, 16), crop, "bilinear"), name="mean"
    )


def by_corner() -> Classifier:
    return Classifier(
        CornerColour(), tuple(COLOURS), preprocess=Preprocess((16, 16), 1.0), name="corner"
    )


def flat(colour: str, side: int = 16) -> np.ndarray:
    return np.full((side, side, 3), COLOURS[colour], np.uint8)


def noisy(colour: str, rng: np.random.Generator, side: int = 16) -> np.ndarray:
    """A picture of one colour under so much noise that no two look alike."""
    base = flat(colour, side).astype(int)
    return (base + rng.integers(-90, 91, (side, side, 1))).clip(0, 255).astype(np.uint8)


def make_pool(root: Path, *, honest: int = 6, lying: int = 4, seed: int = 0) -> Path:
    """A folder per colour: so many pictures of that colour, and so many of the next one."""
    rng = np.random.default_rng(seed)
    names = list(COLOURS)
    for k, name in enumerate(names):
        for i in range(honest):
            write_png(root / name / f"honest{i}.png", noisy(name, rng))
        for i in range(lying):
            write_png(root / name / f"lying{i}.png", noisy(names[(k + 1) % 3], rng))
    return root


def factory(folder: Path) -> str:
    """Spec of the classifier by mean colour, as a file that the command line can load."""
    path = folder / "colours.py"
    path.write_text(FACTORY.format(folder=str(Path(__file__).parent)), encoding="utf-8")
    return f"{path}:make"


def literal_ten_crops(x: Tensor, size: int) -> Tensor:
    """Ten crops of c × h × w by plain slicing: the oracle of `images.ten_crops`."""
    _, h, w = x.shape
    t, s = round((h - size) / 2), round((w - size) / 2)
    cuts = [
        x[:, t : t + size, s : s + size],
        x[:, :size, :size],
        x[:, :size, w - size :],
        x[:, h - size :, :size],
        x[:, h - size :, w - size :],
    ]
    return torch.stack(cuts + [torch.flip(cut, [2]) for cut in cuts])
