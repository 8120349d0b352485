"""Features φ(x): what enters the last linear layer, computed once for each image and network.

The store is a folder of small files. An image is known by the hash of its pixels as the network
gets them, a network by the hash of all its weights but those of the last layer: heads that stand
on the same network share their features.
"""

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, UInt8

from counterlens.classifier import Classifier
from counterlens.images import ImageSet, prepared
from counterlens.models import parts
from counterlens.predictions import eval_mode
from counterlens.progress import doing
from counterlens.runs import atomic
from counterlens.workflows.repair.hashing import content_hash

Features = Float32[np.ndarray, "n d"]
BATCH = 32
SHARD = 512  # images per file, so that an interrupted pass loses little


@dataclass(frozen=True)
class FeatureStore:
    """Features of one network, by image.

    Args:
        folder: its files; None computes everything anew and writes nothing.
        known: the features in them.
    """

    folder: Path | None
    known: dict[str, Features]

    @classmethod
    def open(cls, folder: Path | None, classifier: Classifier) -> "FeatureStore":
        """The features that an earlier call computed with the same network."""
        if folder is None:
            return cls(None, {})
        own = folder / f"features-{backbone_hash(classifier)[:24]}"
        known: dict[str, Features] = {}
        for file in sorted(own.glob("*.npz")):
            with np.load(file) as arrays:
                known |= zip(arrays["keys"].tolist(), arrays["features"], strict=True)
        return cls(own, known)

    def add(self, keys: Sequence[str], rows: Features) -> None:
        """Store features under their keys."""
        self.known.update(zip(keys, rows, strict=True))
        if self.folder is None or not keys:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(" ".join(keys).encode()).hexdigest()[:24]
        with atomic(self.folder / f"{name}.npz") as part, part.open("wb") as file:
            np.savez(file, keys=np.array(keys), features=rows)


def backbone_hash(classifier: Classifier) -> str:
    """SHA-256 of the weights before the last layer, of the normalisation and of the structure.

    The printed structure stands for settings that are no weights, such as strides and activations;
    the size of the last layer is not part of it.
    """
    head = parts.head_name(classifier.net, len(classifier.classes))
    digest = hashlib.sha256(type(classifier.net).__qualname__.encode())
    layer = re.escape(repr(classifier.net.get_submodule(head)))
    digest.update(re.sub(layer, "", repr(classifier.net)).encode())
    own = {id(p) for p in classifier.net.get_submodule(head).parameters()}
    for name, value in sorted(classifier.net.state_dict(keep_vars=True).items()):
        if id(value) in own:
            continue
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    for value in (classifier.mean, classifier.std):
        digest.update(value.detach().cpu().float().contiguous().numpy().tobytes())
    return digest.hexdigest()


def compute(
    classifier: Classifier,
    images: ImageSet | Callable[[int], UInt8[np.ndarray, "h w 3"]],
    store: FeatureStore,
    *,
    count: int | None = None,
    name: str = "features",
) -> Features:
    """Features of each image, from the store or by one pass over those that are not in it.

    Args:
        images: a set, or a function that reads image i.
        count: how many images a function reads.
        name: what the progress line says.
    """
    read = images.read if isinstance(images, ImageSet) else images
    total = len(images) if isinstance(images, ImageSet) else int(count or 0)
    keys: list[str] = []
    for part in _parts(total, SHARD):
        planes = [
            prepared(read, i, classifier.preprocess, channels=classifier.channels) for i in part
        ]
        hashes = [content_hash(one) for one in planes]
        new = {key: one for key, one in zip(hashes, planes, strict=True) if key not in store.known}
        if new:
            store.add(list(new), forward(classifier, list(new.values())))
        keys += hashes
        doing(name, len(keys), total)
    if not keys:
        return np.zeros((0, 0), dtype=np.float32)
    return np.stack([store.known[key] for key in keys])


def forward(classifier: Classifier, planes: Sequence[UInt8[np.ndarray, "c h w"]]) -> Features:
    """Features of prepared images, in float32."""
    rows, device = [], classifier.mean.device
    with torch.no_grad(), eval_mode(classifier):
        for part in _parts(len(planes), BATCH):
            batch = np.stack([planes[i] for i in part])
            x = torch.from_numpy(batch).to(device).float() / 255
            rows.append(parts.features(classifier, x).float().cpu().numpy())
    return np.concatenate(rows)


def known_share(
    classifier: Classifier, images: ImageSet, store: FeatureStore, most: int = 32
) -> float:
    """Share of some images of a set whose features are stored."""
    rows = np.linspace(0, len(images) - 1, min(most, len(images))).astype(int).tolist()
    fit, channels = classifier.preprocess, classifier.channels
    keys = [content_hash(prepared(images.read, i, fit, channels=channels)) for i in rows]
    return sum(key in store.known for key in keys) / len(keys)


def seconds_per_image(classifier: Classifier) -> float:
    """Time of one image, measured on a small batch of random pixels."""
    shape = (classifier.channels, *classifier.preprocess.size)
    noise = np.random.default_rng(0).integers(0, 256, (4, *shape), dtype=np.uint8)
    forward(classifier, list(noise))  # the first pass also allocates
    start = time.perf_counter()
    forward(classifier, list(noise))
    return (time.perf_counter() - start) / len(noise)


def _parts(count: int, size: int) -> Iterator[range]:
    for start in range(0, count, size):
        yield range(start, min(start + size, count))
