"""One pass over the data: pictures in, logits out; every metric is a function of them.

Pictures are decoded in worker processes, travel as uint8 and become float on the device. The
order is preserved. What does not fit into memory is tried again in smaller pieces.
"""

import math
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from counterlens.checks import check_logits
from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.images import ImageSet, prepared, resized
from counterlens.progress import doing, within
from counterlens.runs import atomic
from counterlens.types import Labels, Logits, Preprocess

Auto = Literal["auto"]
Show = Callable[[int], None]
"""Callback that takes the number of pictures done."""
LARGE = 2 * 2**30  # logits above this many bytes live in a file
_PATIENCE = 10.0  # seconds to the first progress line when nobody watches a terminal


@dataclass(frozen=True)
class Predictions:
    """The logits of a classifier on a set of pictures, in the order of the set.

    Args:
        logits: float32 on the CPU; memory-mapped when large or when a file was given.
        labels: true classes as the set numbers them, −1 where unknown.
        ids: of the pictures.
        broken: pictures that could not be read, as (id, why); they have no row.
        nonfinite: rows that hold NaN or infinity.
    """

    logits: Logits
    labels: Labels
    ids: tuple[str, ...]
    broken: tuple[tuple[str, str], ...] = ()
    nonfinite: int = 0


@torch.inference_mode()
def predict(
    classifier: Classifier,
    images: ImageSet,
    *,
    batch: int | Auto = "auto",
    workers: int | Auto = "auto",
    amp: bool | None = None,
    progress: bool = True,
    out: Path | None = None,
    skip_broken: bool = False,
) -> Predictions:
    """Run a classifier over a set of pictures once and return the logits.

    Args:
        classifier: runs on the device it is on; its mode is put back afterwards.
        images: the set; each picture is prepared by `classifier.preprocess`.
        batch: pictures per step; "auto" chooses by picture size and device. A step that does not
            fit into memory is halved until it does.
        workers: processes that decode; "auto" starts none where reading is quick.
        amp: half precision on the GPU; None means yes there. A batch that overflows is repeated
            in float32.
        progress: a bar with rate and remaining time on standard error, or a line now and then
            where that is no terminal.
        out: .npy file for the logits, written whole or not at all.
        skip_broken: leave out pictures that cannot be read instead of stopping at the first.
    """
    if not len(images):
        raise InputError(f"{images.name} holds no pictures.")
    place = classifier.mean.device
    size = batch_size(batch, classifier.preprocess, place, len(images))
    source = _Batches(images, classifier.preprocess, classifier.channels, size)
    runner = Runner(classifier, place, place.type == "cuda" if amp is None else amp, size)
    with ExitStack() as stack:
        stack.enter_context(eval_mode(classifier))
        sink = stack.enter_context(_sink(len(images), len(classifier.classes), out))
        show = stack.enter_context(_progress(images.name, len(images), progress))
        rows_read: list[int] = []
        broken: list[tuple[str, str]] = []
        stack.enter_context(within(f"predicting {images.name}"))
        for rows, logits in runner.over(_loader(source, workers, place), images, broken):
            if broken and not skip_broken:
                raise InputError(_one_line(*broken[0]))
            sink[len(rows_read) : len(rows_read) + len(rows)] = logits
            rows_read.extend(rows)
            show(len(rows_read) + len(broken))
            doing(f"predicting {images.name}", len(rows_read) + len(broken), len(images))
        if not rows_read:
            raise InputError(f"none of the {len(images)} pictures of {images.name} can be read.")
        nonfinite = _nonfinite(sink[: len(rows_read)])
        stored = sink[: len(rows_read)]
    if out is not None:
        stored = _reopen(out, len(rows_read))
    return Predictions(
        torch.from_numpy(stored),
        torch.from_numpy(np.asarray(images.labels, dtype=np.int64)[rows_read]),
        tuple(images.ids[i] for i in rows_read),
        tuple(broken),
        nonfinite,
    )


def batch_size(batch: int | Auto, preprocess: Preprocess, place: torch.device, n: int) -> int:
    if batch != "auto":
        if batch < 1:
            raise InputError(f"batch is {batch}, expected 1 or more pictures per step, or auto.")
        return min(batch, n)
    pixels = math.prod(preprocess.size)
    room, most = (2e7, 2048) if place.type == "cuda" else (2e6, 256)
    fitting: int = 2 ** int(math.log2(max(1.0, room / pixels)))
    return min(n, most, fitting)


@dataclass(frozen=True)
class _Loaded:
    rows: list[int]
    pixels: UInt8[Tensor, "b c h w"] | None
    broken: list[tuple[int, str]]


class _Batches(Dataset[_Loaded]):
    """Batch j of a set, decoded and cut to size. Errors are carried, for workers garble them."""

    def __init__(self, images: ImageSet, preprocess: Preprocess, channels: int, size: int) -> None:
        self.images, self.preprocess = images, preprocess
        self.channels, self.size = channels, size
        self.array = _whole_array(images, preprocess, channels)

    def __len__(self) -> int:
        return math.ceil(len(self.images) / self.size)

    def picture(self, i: int) -> UInt8[np.ndarray, "c h w"]:
        return prepared(self.images.read, i, self.preprocess, channels=self.channels)

    def __getitem__(self, j: int) -> _Loaded:
        rows = list(range(j * self.size, min((j + 1) * self.size, len(self.images))))
        if self.array is not None:
            part = np.ascontiguousarray(self.array[rows[0] : rows[-1] + 1])
            return _Loaded(rows, torch.from_numpy(part).permute(0, 3, 1, 2), [])
        pictures, rows_read, broken = [], [], []
        for i in rows:
            try:
                pictures.append(self.picture(i))
                rows_read.append(i)
            except (InputError, OSError) as error:
                broken.append((i, str(error)))
        stack = torch.from_numpy(np.stack(pictures)) if pictures else None
        return _Loaded(rows_read, stack, broken)


def _whole_array(
    images: ImageSet, preprocess: Preprocess, channels: int
) -> UInt8[np.ndarray, "n h w 3"] | None:
    """The pixels of a set that lies in one array and already fits: then slicing is reading."""
    pixels = getattr(images.read, "pixels", None)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 4:
        return None
    shape = pixels.shape[1:3]
    fits = shape == tuple(preprocess.size) == resized(shape, preprocess)
    return (
        pixels if fits and channels == pixels.shape[3] == 3 and len(pixels) == len(images) else None
    )


def _loader(source: _Batches, workers: int | Auto, place: torch.device) -> DataLoader[_Loaded]:
    count = _worker_count(source, place) if workers == "auto" else workers
    if count < 0:
        raise InputError(f"workers is {count}, expected 0 or more processes, or auto.")
    count = min(count, len(source))
    return DataLoader(
        source,
        batch_size=None,  # the data set makes whole batches
        num_workers=count,
        pin_memory=place.type == "cuda",
        prefetch_factor=4 if count else None,
        worker_init_fn=_calm if count else None,
    )


def _worker_count(source: _Batches, place: torch.device) -> int:
    """None where reading everything takes less than it takes to start a process and more."""
    if source.array is not None:
        return 0
    n = len(source.images)
    tries = sorted({0, n // 3, 2 * n // 3, n - 1})
    started = time.perf_counter()
    for i in tries:
        try:
            source.picture(i)
        except (InputError, OSError):
            continue  # reported when its batch is read
    if (time.perf_counter() - started) / len(tries) * n < 3.0:
        return 0
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return min(8, cores if place.type == "cuda" else max(1, cores // 2))


def _calm(worker: int) -> None:
    torch.set_num_threads(1)  # decoding is serial; idle thread pools only take cores away


class Runner:
    """The classifier on its device, with as many pictures a step as fit."""

    def __init__(self, classifier: Classifier, place: torch.device, amp: bool, size: int) -> None:
        self.classifier, self.place = classifier, place
        self.amp, self.size = amp and place.type == "cuda", size
        if place.type == "cuda":
            with torch.inference_mode(False):
                classifier.to(memory_format=torch.channels_last)  # strides only, values stay

    def over(
        self, loader: DataLoader[_Loaded], images: ImageSet, broken: list[tuple[str, str]]
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Rows and logits batch by batch; one batch is always under way while one is fetched."""
        waiting: deque[tuple[list[int], Tensor, Tensor]] = deque()
        for loaded in loader:
            broken.extend((images.ids[i], why) for i, why in loaded.broken)
            if loaded.pixels is not None:
                pixels = loaded.pixels.to(self.place, non_blocking=True)
                waiting.append((loaded.rows, pixels, self.forward(pixels)))
            if loaded.broken:
                yield [], torch.empty(0, len(self.classifier.classes))
            if len(waiting) > 1:
                yield self.fetch(*waiting.popleft())
        while waiting:
            yield self.fetch(*waiting.popleft())

    def fetch(self, rows: list[int], pixels: Tensor, logits: Tensor) -> tuple[list[int], Tensor]:
        here = logits.float().cpu()
        if self.amp and not torch.isfinite(here).all():
            here = self.forward(pixels, amp=False).float().cpu()  # half precision overflowed
        return rows, here

    def forward(self, pixels: UInt8[Tensor, "b c h w"], *, amp: bool | None = None) -> Logits:
        """Logits of one batch, in smaller pieces where memory runs out."""
        parts: list[Tensor] = []
        done = 0
        while done < len(pixels):
            piece = pixels[done : done + self.size]
            try:
                parts.append(self.step(piece, self.amp if amp is None else amp))
            except RuntimeError as error:
                if not _out_of_memory(error):
                    raise
                self.back_off(len(piece))
                continue
            done += len(piece)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def step(self, pixels: UInt8[Tensor, "b c h w"], amp: bool) -> Logits:
        x = pixels.to(torch.float32, memory_format=torch.channels_last).div_(255)
        with torch.autocast(self.place.type, dtype=torch.float16, enabled=amp):
            logits: Tensor = self.classifier(x)
        check_logits(logits, rows=len(x))
        if logits.shape[1] != len(self.classifier.classes):
            raise InputError(
                f"{self.classifier.name} gave {logits.shape[1]} logits for its "
                f"{len(self.classifier.classes)} class names, expected one each."
            )
        return logits

    def back_off(self, tried: int) -> None:
        if tried == 1:
            raise InputError(
                f"one picture of {self.classifier.preprocess.size} does not fit into the memory "
                f"of {self.place}. Choose another device or a smaller model."
            ) from None
        self.size = tried // 2
        if self.place.type == "cuda":
            torch.cuda.empty_cache()


def _out_of_memory(error: RuntimeError) -> bool:
    text = str(error).lower()
    return (
        isinstance(error, torch.OutOfMemoryError)
        or "out of memory" in text
        or "can't allocate memory" in text
    )


@contextmanager
def eval_mode(classifier: Classifier) -> Iterator[None]:
    modes = [(module, module.training) for module in classifier.modules()]
    classifier.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def _sink(n: int, classes: int, out: Path | None) -> Iterator[np.ndarray]:
    """Where logits go: memory, a nameless file where they are large, or the given file."""
    shape = (n, classes)
    if out is None and n * classes * 4 <= LARGE:
        yield np.empty(shape, np.float32)
        return
    if out is None:
        with tempfile.NamedTemporaryFile(suffix=".npy", delete=os.name != "nt") as file:
            _reserve(file.fileno(), 4 * n * classes)
            yield np.memmap(file, np.float32, "w+", shape=shape)  # outlives its name
        return
    with atomic(Path(out)) as part:
        mapped = np.lib.format.open_memmap(part, "w+", np.float32, shape)
        with part.open("rb+") as file:
            _reserve(file.fileno(), part.stat().st_size)
        yield mapped
        mapped.flush()


def _reserve(file: int, size: int) -> None:
    """Take the space of a mapped file now: on a full disk a later write would kill the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)


def _reopen(out: Path, rows: int) -> np.ndarray:
    """The file as written; without the empty rows at its end where pictures were left out."""
    mapped: np.ndarray = np.load(out, mmap_mode="c")
    if len(mapped) > rows:
        with atomic(out) as part, part.open("wb") as file:
            np.save(file, mapped[:rows])
        mapped = np.load(out, mmap_mode="c")
    return mapped


def _nonfinite(logits: np.ndarray) -> int:
    step = max(1, 10_000_000 // logits.shape[1])
    parts = (logits[i : i + step] for i in range(0, len(logits), step))
    return sum(int((~np.isfinite(part)).any(1).sum()) for part in parts)


def _one_line(name: str, why: str) -> str:
    why = " ".join(why.split())
    return why if name in why else f"{name}: {why}"


@contextmanager
def _progress(name: str, total: int, wanted: bool) -> Iterator[Show]:
    """A bar, a line now and then, or silence."""
    if not wanted:
        yield lambda done: None
    elif sys.stderr.isatty():
        with _bar(name, total) as show:
            yield show
    else:
        yield _lines(name, total, time.monotonic)


@contextmanager
def _bar(name: str, total: int) -> Iterator[Show]:
    from rich import progress as rich
    from rich.console import Console

    columns: Sequence[rich.ProgressColumn] = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TextColumn("{task.fields[rate]}"),
        rich.TimeRemainingColumn(),
    )
    started = time.monotonic()
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=total, rate="")

        def show(done: int) -> None:
            rate = done / max(1e-9, time.monotonic() - started)
            bar.update(task, completed=done, rate=f"{rate:,.0f}/s")

        yield show


def _lines(name: str, total: int, clock: Callable[[], float]) -> Show:
    """Print a line after ten seconds, then ever more rarely, at least every five minutes."""
    started = reported = clock()
    wait = _PATIENCE

    def show(done: int) -> None:
        nonlocal reported, wait
        now = clock()
        if now - reported < wait or not done:
            return
        reported, wait = now, min(2 * wait, 30 * _PATIENCE)
        rate = done / (now - started)
        left = (total - done) / rate
        print(
            f"{name}: {done:,} of {total:,} ({done / total:.0%}), {rate:,.0f} images/s, "
            f"{left:.0f} s left",
            file=sys.stderr,
            flush=True,
        )

    return show
