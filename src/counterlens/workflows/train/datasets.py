"""The pictures of a training: decoded once and held on the device, or streamed by workers.

The batch of an update is a function of the seed and the update's number, so a run that was
stopped continues with the batches it would have seen.
"""

import hashlib
import math
import mmap
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from counterlens.data import name_of, open_set, subset
from counterlens.data.augment import augment
from counterlens.errors import InputError
from counterlens.images import ImageSet, prepare
from counterlens.runs import atomic
from counterlens.types import Preprocess
from counterlens.workflows.train.recipe import Recipe

IN_MEMORY = 8 * 2**30  # bytes of pixels up to which a set is held on the device


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
    shape = (len(images), 3, *preprocess.size)
    shared = mmap.mmap(-1, max(1, math.prod(shape)))  # child processes write into it
    pixels = np.frombuffer(shared, np.uint8, math.prod(shape)).reshape(shape)
    _decode(images, preprocess, pixels)
    if file is not None:
        with atomic(file) as part, part.open("wb") as opened:
            np.save(opened, pixels)
    return torch.from_numpy(pixels)


def _decode(images: ImageSet, preprocess: Preprocess, pixels: np.ndarray) -> None:
    """Fill the array, by forked processes where that is safe and worth it."""

    def fill(rows: range) -> None:
        for i in rows:
            pixels[i] = prepare(images.read(i), preprocess)

    count = os.cpu_count() or 1
    safe = not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if len(images) < 10_000 or not safe or sys.platform != "linux":
        fill(range(len(images)))
        return
    context = multiprocessing.get_context("fork")
    team = [
        context.Process(target=fill, args=(range(i, len(images), count),)) for i in range(count)
    ]
    with warnings.catch_warnings():  # children of a process with threads only decode here
        warnings.simplefilter("ignore", DeprecationWarning)
        for process in team:
            process.start()
    for process in team:
        process.join()
    for i, process in enumerate(team):
        if process.exitcode:
            fill(range(i, len(images), count))  # again here, to say what was wrong


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
    chosen = torch.tensor(sorted(order[count:]), dtype=torch.long)
    return chosen, held


@dataclass
class Sets:
    """What a training sees: images inside, held out, and outside.

    Args:
        x: training images as bytes on the device, or the set itself if it is to be streamed.
        y: their labels.
        held_x, held_y: held-out training images and labels.
        out: images from outside, like x; None where the loss wants none.
        held_outside: held-out images from outside.
        classes: class names.
        facts: what the card says about the data.
    """

    x: Tensor | ImageSet
    y: Tensor
    held_x: Tensor
    held_y: Tensor
    out: Tensor | ImageSet | None
    held_outside: Tensor | None
    classes: tuple[str, ...]
    facts: dict[str, Any]

    @classmethod
    def open(cls, recipe: Recipe, data: str, out_data: str | None, cache: Path) -> "Sets":
        """Open and decode what the recipe needs."""
        images = open_set(data)
        check_labels(images)
        count = recipe.held_out
        if not 1 < count < len(images):
            raise InputError(f"held_out is {count}, expected 2 … {len(images) - 1} of {data}.")
        chosen, held = hold_out(images, count, recipe.held_out_rule)
        labels = torch.from_numpy(images.labels)
        facts: dict[str, Any] = {
            "in": {"name": name_of(data), "n": len(chosen), "fingerprint": images.fingerprint},
            "held_out": {"n": len(held), "rule": recipe.held_out_rule},
        }
        x, held_x = _parts(images, chosen, held, recipe, cache)
        out, held_outside = None, None
        if out_data is not None:
            pool = open_set(out_data)
            if len(pool) < count:
                raise InputError(f"{out_data} has {len(pool)} images, expected {count} or more.")
            rest, some = hold_out(pool, count // 2)
            out, held_outside = _parts(pool, rest, some, recipe, cache)
            facts["out"] = {
                "name": name_of(out_data),
                "n": len(rest),
                "fingerprint": pool.fingerprint,
            }
        return cls(
            x, labels[chosen], held_x, labels[held], out, held_outside, images.classes, facts
        )

    def to(self, device: torch.device) -> "Sets":
        """Move everything that is held to the device that trains."""
        for name in ("x", "y", "held_x", "held_y", "out", "held_outside"):
            value = getattr(self, name)
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))
        return self


def check_labels(images: ImageSet) -> None:
    """Refuse sets without classes or with images whose class is unknown."""
    if len(images.classes) < 2:
        raise InputError(
            f"{images.name} has {len(images.classes)} classes, expected 2 or more: a folder with "
            "a sub-folder per class, or a packed file with labels."
        )
    if (images.labels < 0).any():
        missing = int((images.labels < 0).sum())
        raise InputError(f"{images.name} has {missing} images without a label, expected none.")


def _parts(
    images: ImageSet, chosen: Tensor, held: Tensor, recipe: Recipe, cache: Path
) -> tuple[Tensor | ImageSet, Tensor]:
    """The training images, held or to be streamed, and the held-out ones at the final size."""
    stored = recipe.stored or recipe.size
    wide, exact = Preprocess((stored, stored)), Preprocess((recipe.size, recipe.size))
    streamed = recipe.stream
    if streamed == "auto":
        streamed = len(images) * 3 * stored**2 > IN_MEMORY
    held_x = decoded(subset(images, held.numpy()), exact, cache=cache)
    if streamed:
        return subset(images, chosen.numpy()), held_x
    return decoded(images, wide, cache=cache)[chosen], held_x


class Batches:
    """The batch of each update, augmented on the device."""

    def __init__(
        self,
        sets: Sets,
        recipe: Recipe,
        *,
        seed: int,
        generator: torch.Generator,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        """`share`: the number of this process and how many there are."""
        self.sets, self.seed, self.generator, self.share = sets, seed, generator, share
        self.recipe = recipe
        self.batch = recipe.batch
        self.outer = recipe.out_batch or self.batch
        self.per_epoch = len(sets.x) // self.batch
        if not self.per_epoch:
            raise InputError(f"batch is {self.batch}, more than the {len(sets.x)} images.")
        if sets.out is not None and len(sets.out) < self.outer:
            raise InputError(f"out_batch is {self.outer}, more than the {len(sets.out)} images.")
        if self.batch % share[1] or self.outer % share[1]:
            raise InputError(f"batch {self.batch} does not divide by {share[1]} processes.")
        self._orders: dict[str, tuple[int, Tensor]] = {}
        self._streams: dict[str, _Stream] = {}

    def __call__(self, step: int) -> dict[str, Tensor]:
        """Augmented images of this process's share of the batch."""
        rows = self.rows("in", step)
        batch = {"x": self.images("in", rows, step), "y": self.sets.y[rows.to(self.sets.y.device)]}
        if self.sets.out is not None:
            batch["out"] = self.images("out", self.rows("out", step), step)
        return batch

    def images(self, which: str, rows: Tensor, step: int) -> Tensor:
        """Augmented images in [0, 1] on the device."""
        source = self.sets.x if which == "in" else self.sets.out
        if isinstance(source, Tensor):
            pixels = source[rows]
        else:
            assert source is not None
            if which not in self._streams:
                stored = self.recipe.stored or self.recipe.size
                self._streams[which] = _Stream(
                    source, Preprocess((stored, stored)), lambda s: self.rows(which, s).tolist()
                )
            pixels = self._streams[which](step).to(self.sets.y.device, non_blocking=True)
        fill = self.recipe.fill
        return augment(
            self.recipe.augment,
            pixels,
            self.generator,
            fill=fill or None,
            size=self.recipe.size,
        )

    def rows(self, which: str, step: int) -> Tensor:
        """Rows of the set that this process sees in this update; each pass is shuffled anew."""
        source = self.sets.x if which == "in" else self.sets.out
        assert source is not None
        size = self.batch if which == "in" else self.outer
        whole, part = divmod(step, len(source) // size)
        if self._orders.get(which, (-1,))[0] != whole:
            shuffler = torch.Generator().manual_seed(
                (self.seed * 1_000_003 + whole) * 2 + (which == "out")
            )
            order = torch.randperm(len(source), generator=shuffler)
            if isinstance(source, Tensor):
                order = order.to(source.device)
            self._orders[which] = (whole, order)
        number, processes = self.share
        start = part * size + number * (size // processes)
        return self._orders[which][1][start : start + size // processes]


class _Stream:
    """Pictures read by worker processes before the updates that use them."""

    def __init__(
        self, images: ImageSet, preprocess: Preprocess, rows: Callable[[int], list[int]]
    ) -> None:
        self.pictures, self.rows = _Pictures(images, preprocess), rows
        self.next = -1
        self._loader: Iterator[Tensor] = iter(())

    def __call__(self, step: int) -> Tensor:
        """The pictures of an update; asking out of turn starts the workers anew."""
        if step != self.next:
            loader = DataLoader(
                self.pictures,
                batch_sampler=_From(self.rows, step),
                num_workers=max(1, (os.cpu_count() or 2) - 1),
                pin_memory=torch.cuda.is_available(),
            )
            self._loader = iter(loader)
        self.next = step + 1
        return next(self._loader)


@dataclass(frozen=True)
class _Pictures(Dataset[Tensor]):
    images: ImageSet
    preprocess: Preprocess

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> Tensor:
        return torch.from_numpy(prepare(self.images.read(i), self.preprocess))


@dataclass(frozen=True)
class _From(Sampler[list[int]]):
    """The rows of update after update, without end."""

    rows: Callable[[int], list[int]]
    start: int

    def __iter__(self) -> Iterator[list[int]]:
        step = self.start
        while True:
            yield self.rows(step)
            step += 1
