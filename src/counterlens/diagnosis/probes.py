"""Images to examine a classifier with: the user's, or patchworks of shipped photographs.

A patchwork is a grid of shipped 32-pixel photographs, magnified 1 to 7 times and cut to the
classifier's size. Its local statistics (contrast, edges, colours) are those of photographs at any
size, which is what the first layers of a network trained on photographs were adjusted to.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from counterlens.classifier import Classifier
from counterlens.data import open_set
from counterlens.diagnosis.pixels import pixels
from counterlens.errors import InputError
from counterlens.images import ImageSet, prepare
from counterlens.label_spaces import match_classes
from counterlens.types import Images, Labels

SAMPLE = "cifar10"
MAGNIFICATIONS = (1, 2, 3, 4, 7)
MINED = ("subset", "imagenet-a")
"""Label spaces of images selected because models get them wrong (frozen sets, ImageNet-A). Any
other way to feed a model meets more of their labels, so the labels are no evidence."""


@dataclass(frozen=True)
class Probes:
    """What the classifier is shown.

    Args:
        x: images in [0, 1] of the classifier's size, on its device.
        labels: the model's class of each image, −1 where unknown.
        source: the user's data, a shipped sample the model has the classes of, or patchworks.
        unmatched: classes of the data that the model does not know.
        raw: the pictures as they were read, to look at their pixels.
        mined: whether the images were selected because models get them wrong; their labels are
            then left out.
    """

    x: Images
    labels: Labels
    source: Literal["data", "sample", "patchwork"]
    unmatched: tuple[str, ...] = ()
    raw: tuple[np.ndarray, ...] = ()
    mined: bool = False

    @property
    def labelled(self) -> int:
        """How many images have a label the model knows."""
        return int((self.labels >= 0).sum())


def rows_for(size: tuple[int, int]) -> int:
    """How many images to look at: fewer where each is dear."""
    area = size[0] * size[1]
    return 192 if area <= 64**2 else 64 if area <= 128**2 else 48


def gather(classifier: Classifier, images: ImageSet | None, *, seed: int) -> Probes:
    """The images to examine: the user's; else a shipped sample of the same classes; else made."""
    source: Literal["data", "sample"] = "data"
    if images is None and classifier.channels == 3:
        sample = open_set(f"sample:{SAMPLE}")
        if {_plain(c) for c in sample.classes} == {_plain(c) for c in classifier.classes}:
            images, source = sample, "sample"
    count = rows_for(classifier.preprocess.size)
    if images is None:
        return synthetic(classifier, count, seed=seed)
    chosen = np.random.default_rng(seed).permutation(len(images))[:count]
    pictures = [images.read(int(i)) for i in chosen]
    if pixels(pictures).status == "fail":  # cannot be shown; the finding says so
        return replace(synthetic(classifier, count, seed=seed), raw=tuple(pictures))
    x = stack(classifier, pictures)
    known, unmatched = _known_labels(classifier.classes, images)
    mined = images.space in MINED
    labels = torch.from_numpy(np.full(len(chosen), -1) if mined else known[chosen]).to(x.device)
    return Probes(x, labels, source, unmatched, tuple(pictures), mined)


def pictures_of(classifier: Classifier, images: ImageSet | None, *, seed: int) -> list[np.ndarray]:
    """Pictures of the data, or patchworks, as uint8 RGB."""
    if images is None:
        sheets = patchwork(classifier, rows_for(classifier.preprocess.size), seed=seed)
        rows = (sheets * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
        return list(np.repeat(rows, 3, axis=3) if rows.shape[3] == 1 else rows)
    count = rows_for(classifier.preprocess.size)
    chosen = np.random.default_rng(seed).permutation(len(images))[:count]
    return [images.read(int(i)) for i in chosen]


def synthetic(classifier: Classifier, count: int, *, seed: int) -> Probes:
    """Patchworks alone, without labels."""
    x = patchwork(classifier, count, seed=seed)
    return Probes(x, torch.full((len(x),), -1, device=x.device), "patchwork")


def patchwork(classifier: Classifier, count: int, *, seed: int) -> Images:
    """Patchworks of shipped photographs, of the classifier's size and colours."""
    generator = torch.Generator().manual_seed(seed)
    height, width = classifier.preprocess.size
    photos = photographs()
    side = photos.shape[-1]
    scales = [s for s in MAGNIFICATIONS if side * s <= max(height, width)] or [1]
    out = torch.empty(count, 3, height, width)
    for i in range(count):
        tile = side * scales[i % len(scales)]
        rows, columns = math.ceil(height / tile), math.ceil(width / tile)
        chosen = torch.randint(len(photos), (rows * columns,), generator=generator)
        tiles = photos[chosen]
        if tile != side:
            tiles = functional.interpolate(tiles, size=(tile, tile), mode="bicubic")
        sheet = tiles.view(rows, columns, 3, tile, tile).permute(2, 0, 3, 1, 4)
        sheet = sheet.reshape(3, rows * tile, columns * tile).clamp(0, 1)
        top = int(torch.randint(rows * tile - height + 1, (1,), generator=generator))
        left = int(torch.randint(columns * tile - width + 1, (1,), generator=generator))
        out[i] = sheet[:, top : top + height, left : left + width]
    if classifier.channels == 1:
        out = out.mean(1, keepdim=True)
    return out.to(classifier.mean.device)


@lru_cache(maxsize=1)
def photographs() -> Float[Tensor, "n 3 h w"]:
    """The shipped photographs, in [0, 1]."""
    sample = open_set(f"sample:{SAMPLE}")
    pixels = np.stack([sample.read(i) for i in range(len(sample))])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255


def stack(classifier: Classifier, pictures: Sequence[np.ndarray]) -> Images:
    """Pictures of any size as the classifier's input."""
    ready = [
        prepare(picture, classifier.preprocess, channels=classifier.channels)
        for picture in pictures
    ]
    return torch.from_numpy(np.stack(ready)).to(classifier.mean.device).float() / 255


def _known_labels(
    classes: Sequence[str], images: ImageSet
) -> tuple[Int64[np.ndarray, "n"], tuple[str, ...]]:
    """The model's class of each picture, −1 for none, and the data's classes it does not know."""
    unknown = np.full(len(images), -1, dtype=np.int64)
    if not images.classes or not (images.labels >= 0).any():
        return unknown, ()
    try:
        matching = match_classes(classes, images.classes, images.space)
    except InputError:
        return unknown, tuple(images.classes)
    groups = matching.map.groups
    single = [
        group[0] if len(group) == 1 else -1 for group in groups
    ]  # coarse groups: no one class
    return np.array([*single, -1])[matching.relabel(images.labels)], matching.unmatched


def _plain(name: str) -> str:
    return name.strip().lower()
