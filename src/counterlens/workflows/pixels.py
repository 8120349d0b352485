"""Whole sets as one array of bytes: decoded once, kept on disk, held on the training device."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from counterlens.errors import InputError
from counterlens.images import ImageSet, prepare
from counterlens.runs import atomic
from counterlens.types import Preprocess


def default_cache() -> Path:
    """Where decoded sets are kept: COUNTERLENS_CACHE, else the user's cache folder."""
    return Path(os.environ.get("COUNTERLENS_CACHE", Path.home() / ".cache" / "counterlens"))


def decoded(images: ImageSet, preprocess: Preprocess, *, cache: Path | None) -> Tensor:
    """All pictures as uint8, n × 3 × h × w; from the cache if they were decoded before."""
    key = f"{images.fingerprint}-{len(images)}-{preprocess}"
    file = None
    if cache is not None and images.fingerprint:
        file = cache / f"pixels-{hashlib.sha256(key.encode()).hexdigest()[:24]}.npy"
        if file.is_file():
            return torch.from_numpy(np.load(file))
    pixels = np.empty((len(images), 3, *preprocess.size), np.uint8)

    def fill(part: range) -> None:
        for i in part:
            pixels[i] = prepare(images.read(i), preprocess)

    parts = [range(a, min(a + 256, len(images))) for a in range(0, len(images), 256)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # decoders let other threads run
        list(pool.map(fill, parts))
    if file is not None:
        with atomic(file) as part, part.open("wb") as opened:
            np.save(opened, pixels)
    return torch.from_numpy(pixels)


def hold_out(images: ImageSet, count: int, rule: str = "hash") -> tuple[Tensor, Tensor]:
    """Rows to train on and rows held out: those whose ids have the smallest hashes, or the last.

    "hash" depends on the ids alone, so every model of a comparison holds out the same pictures.
    "last" suits sets in random order: for CIFAR-10 it is what sample:cifar10-calibration holds.
    """
    if rule == "last":
        rows = torch.arange(len(images))
        return rows[: len(rows) - count], rows[len(rows) - count :]
    if rule != "hash":
        raise InputError(f"held_out_rule is {rule!r}, expected hash or last.")
    digests = [hashlib.sha256(str(i).encode()).digest() for i in images.ids]
    order = sorted(range(len(images)), key=digests.__getitem__)
    held = torch.tensor(sorted(order[:count]), dtype=torch.long)
    kept = torch.tensor(sorted(order[count:]), dtype=torch.long)
    return kept, held
