"""The images of a fine-tuning: which are held out, and the batch of each update."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from counterlens.classifier import Classifier
from counterlens.data.batches import Draws, Fill, crop, flip
from counterlens.errors import InputError
from counterlens.images import ImageSet, prepared
from counterlens.label_spaces.matching import pair_classes
from counterlens.progress import doing
from counterlens.types import Batch, Labels, Preprocess

_Rows = Int64[np.ndarray, "n"]


@dataclass(frozen=True)
class LabelledBytes:
    """Images as bytes at the network's size, and their labels."""

    x: Tensor
    y: Labels

    def part(self, rows: Tensor) -> "LabelledBytes":
        """Some of them."""
        return LabelledBytes(self.x[rows], self.y[rows])


def labels_of(classifier: Classifier, images: ImageSet, wanted: str) -> tuple[_Rows, bool]:
    """Labels as columns of the network's output, and whether its last layer must be new."""
    places = [place for place, _ in pair_classes(classifier.classes, images.classes)]
    unknown = [name for name, place in zip(images.classes, places, strict=True) if place < 0]
    if wanted == "data" or (wanted == "auto" and len(unknown) == len(places)):
        return images.labels.astype(np.int64), True
    if unknown:
        known = ", ".join(classifier.classes[:6]) + (", …" if len(classifier.classes) > 6 else "")
        raise InputError(
            f"{classifier.name} knows {len(places) - len(unknown)} of the {len(places)} classes of "
            f"{images.name}, not {', '.join(unknown[:6])}. Rename them to its classes ({known}), "
            "or train a new last layer for the classes of the data: classes=data."
        )
    return np.array(places, dtype=np.int64)[images.labels], False


def split(labels: _Rows, ids: Sequence[str], share: float | None) -> tuple[Tensor, Tensor]:
    """Rows to train on and rows held out: the same share of each class, chosen by the ids' hashes.

    >>> kept, held = split(np.array([0] * 10 + [1] * 5), [f"{i}.png" for i in range(15)], None)
    >>> len(kept), len(held)
    (12, 3)
    """
    wanted = min(0.2, 2000 / len(labels)) if share is None else share
    held: list[int] = []
    for k in np.unique(labels):
        own = np.flatnonzero(labels == k).tolist()
        if len(own) < 2:
            raise InputError(
                f"a class has {len(own)} image, expected 2 or more of each: one to train on and "
                "one to measure with."
            )
        count = min(len(own) - 1, max(1, round(wanted * len(own))))
        own = sorted(own, key=lambda i: hashlib.sha256(str(ids[i]).encode()).digest())
        held += own[:count]
    rows = torch.tensor(sorted(held))
    others = np.setdiff1d(np.arange(len(labels)), rows.numpy())
    return torch.from_numpy(others), rows


def decode(images: ImageSet, rows: Tensor, preprocess: Preprocess, channels: int) -> Tensor:
    """These images as bytes at the network's size."""
    planes = []
    for number, i in enumerate(rows.tolist(), 1):
        planes.append(prepared(images.read, i, preprocess, channels=channels))
        doing("decoding images", number, len(rows))
    return torch.from_numpy(np.stack(planes))


def batches(
    model: Classifier,
    train: LabelledBytes,
    size: int,
    augment: str,
    seed: int,
    generator: torch.Generator,
) -> Callable[[int], Batch]:
    """The batch of an update as a function of its number: shuffled anew for each epoch.

    Args:
        model: for its size, its device, and its mean, which fills what a shifted image leaves.
        train: the images.
        size: images per batch.
        augment: crop-flip, crop or none; see `FinetuneOptions`.
        seed: of the order.
        generator: of the augmentation.
    """
    mean = tuple(255 * value for value in model.mean.flatten().tolist())
    fill: Fill = (mean * 3)[:3]
    pad = max(1, min(model.preprocess.size) // 8)
    per_epoch, device = len(train.y) // size, model.mean.device

    def batch(step: int) -> Mapping[str, Tensor]:
        epoch, part = divmod(step, per_epoch)
        order = torch.randperm(
            len(train.y), generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        )
        rows = order[part * size : (part + 1) * size]
        x = train.x[rows].to(device).float()
        if augment != "none":
            draws = Draws.make(3, len(rows), x, generator)
            x = crop(x, draws.below(0, 2 * pad + 1), draws.below(1, 2 * pad + 1), pad, fill)
            x = flip(x, draws.uniform[2] < 0.5) if augment == "crop-flip" else x
        return {"x": x / 255, "y": train.y[rows].to(device)}

    return batch


@torch.no_grad()
def mean_loss(model: Classifier, data: LabelledBytes) -> float:
    logits = torch.cat([model(x) for x in _chunks(model, data.x)])
    return float(cross_entropy(logits.double().cpu(), data.y))


@torch.no_grad()
def accuracy(net: nn.Module, model: Classifier, data: LabelledBytes) -> float:
    """Share of images classified right."""
    answers = torch.cat([net(x).argmax(1).cpu() for x in _chunks(model, data.x)])
    return float((answers == data.y).double().mean())


def _chunks(model: Classifier, x: Tensor, size: int = 64) -> list[Tensor]:
    device = model.mean.device
    return [x[a : a + size].to(device).float() / 255 for a in range(0, len(x), size)]
