"""What all kinds of sets share: reading rows, ids without doubles, fingerprints, notes."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from counterlens import images
from counterlens.errors import InputError
from counterlens.images import ImageSet, Pixels, Planes
from counterlens.runs import file_bytes, plain_file
from counterlens.types import Preprocess

Excluded = tuple[str, str]
"""The id of a file that was left out, and why."""

LARGEST = 1 << 30
"""Bytes of a picture file above which a tolerant reading of a set does not open it."""


@dataclass(frozen=True)
class ReadFiles:
    """Picture i of a list of files; pickles as the list."""

    root: Path
    files: tuple[str, ...]

    def __call__(self, i: int) -> Pixels:
        return images.read(self.root / self.files[i])

    def prepared(self, i: int, preprocess: Preprocess, channels: int) -> Planes:
        return images.read_prepared(self.root / self.files[i], preprocess, channels=channels)

    def encoded(self, i: int) -> bytes:
        return file_bytes(self.root / self.files[i], what="picture")


@dataclass(frozen=True)
class ReadArray:
    """Picture i of an array n × h × w [× 3] of uint8 pixels."""

    pixels: np.ndarray

    def __call__(self, i: int) -> Pixels:
        image = np.array(self.pixels[i])  # a copy, so that nobody paints on the data
        return np.repeat(image[..., None], 3, axis=2) if image.ndim == 2 else image


@dataclass(frozen=True)
class ReadRows:
    """Picture i of a choice of rows of another set."""

    base: Callable[[int], Pixels]
    rows: Int64[np.ndarray, "n"]

    def __call__(self, i: int) -> Pixels:
        return self.base(int(self.rows[i]))

    def prepared(self, i: int, preprocess: Preprocess, channels: int) -> Planes:
        return images.prepared(self.base, int(self.rows[i]), preprocess, channels=channels)

    def encoded(self, i: int) -> bytes:
        return encoded(self.base, int(self.rows[i]))


def encoded(read: Callable[[int], Pixels], i: int) -> bytes:
    """Picture i as it is stored, byte by byte; as PNG where it is not stored encoded."""
    direct = getattr(read, "encoded", None)
    if direct is None:
        return images.png_bytes(read(i))
    data: bytes = direct(i)
    return data


def subset(base: ImageSet, rows: Sequence[int] | Int64[np.ndarray, "n"]) -> ImageSet:
    """The set restricted to some rows, in the order given; classes stay as they are."""
    chosen = np.asarray(rows, dtype=np.int64).reshape(-1)
    if np.array_equal(chosen, np.arange(len(base))):
        return base
    ids = tuple(base.ids[int(i)] for i in chosen)
    labels = base.labels[chosen]
    read = ReadRows(base.read, chosen)
    if isinstance(base.read, ReadRows):  # one level of indirection is enough
        read = ReadRows(base.read.base, base.read.rows[chosen])
    return replace(
        base,
        ids=ids,
        labels=labels,
        read=read,
        extra={key: value[chosen] for key, value in base.extra.items()},
        fingerprint=fingerprint(f"{base.fingerprint}/{i}" for i in ids),
    )


def sample_rows(count: int, limit: int | None, seed: int) -> Int64[np.ndarray, "n"]:
    """All rows, or `limit` of them drawn without replacement by `seed`, in their own order."""
    if limit is None or limit >= count:
        return np.arange(count)
    if limit < 1:
        raise InputError(f"got a limit of {limit} pictures, expected 1 or more.")
    return np.sort(np.random.default_rng(seed).choice(count, limit, replace=False))


def file_set(
    name: str,
    root: Path,
    files: Sequence[str],
    labels: Sequence[int] | Int64[np.ndarray, "n"],
    classes: Sequence[str],
    *,
    space: str | None = None,
    ids: Sequence[str] | None = None,
    excluded: list[Excluded] | None = None,
) -> ImageSet:
    """A set of picture files below `root`; the fingerprint covers ids, labels and file sizes.

    Args:
        excluded: where to put files that cannot be read, in place of refusing the whole set.
    """
    marks = np.asarray(labels, dtype=np.int64)
    names = tuple(ids or (printable(f) for f in files))
    if excluded is not None:
        why = [unfit(root / f) for f in files]
        excluded += [(name, reason) for name, reason in zip(names, why, strict=True) if reason]
        fit = [i for i, reason in enumerate(why) if not reason]
        files, names, marks = [files[i] for i in fit], tuple(names[i] for i in fit), marks[fit]
    above = f"{root}{os.sep}"  # text: a million paths take seconds to join as objects
    paths = (f if os.path.isabs(f) else above + f for f in files)  # noqa: PTH117
    sizes = [plain_file(path, what="picture").st_size for path in paths]
    lines = (
        f"{i}\t{size}\t{classes[k] if k >= 0 else ''}"
        for i, size, k in zip(names, sizes, marks.tolist(), strict=True)
    )
    return ImageSet(
        name=name,
        ids=unique(names),
        labels=marks,
        classes=tuple(classes),
        read=ReadFiles(root, tuple(files)),
        space=space,
        fingerprint=fingerprint(lines),
    )


def array_set(
    name: str,
    pixels: np.ndarray,
    labels: Sequence[int] | np.ndarray,
    classes: Sequence[str],
    *,
    space: str | None = None,
    where: str = "the set",
) -> ImageSet:
    """A set held as one array n × h × w [× 3]; the fingerprint covers labels and contents."""
    marks = np.asarray(labels).astype(np.int64).reshape(-1)
    if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4) or pixels.shape[3:] not in ((), (3,)):
        raise InputError(
            f"{where} holds {pixels.dtype} pixels of shape {pixels.shape}, expected uint8 "
            "n × height × width, with 3 channels or none."
        )
    if len(marks) != len(pixels):
        raise InputError(f"{where} holds {len(pixels)} pictures but {len(marks)} labels.")
    check_range(marks, len(classes), where)
    digest = hashlib.sha256(np.ascontiguousarray(pixels).data)
    digest.update(marks.tobytes())
    return ImageSet(
        name=name,
        ids=[f"{name}/{i}" for i in range(len(pixels))],
        labels=marks,
        classes=tuple(classes),
        read=ReadArray(pixels),
        space=space,
        fingerprint=digest.hexdigest()[:16],
    )


def check_range(labels: Int64[np.ndarray, "n"], classes: int, where: str) -> None:
    """Refuse labels outside −1 … classes − 1; −1 says that the class is not known."""
    if len(labels) and (labels.min() < -1 or labels.max() >= classes):
        raise InputError(
            f"{where} has labels {labels.min()} … {labels.max()}, expected 0 … {classes - 1}."
        )


def unique(ids: Sequence[str]) -> Sequence[str]:
    """The ids, the second and later of equal ones marked ~2, ~3, …

    >>> unique(["a", "b", "a", "a"])
    ('a', 'b', 'a~2', 'a~3')
    """
    taken = set(ids)
    if len(taken) == len(ids):
        return ids
    out: list[str] = []
    seen: dict[str, int] = {}
    for i in ids:
        seen[i] = seen.get(i, 0) + 1
        marked = i
        while seen[i] > 1 and (marked := f"{i}~{seen[i]}") in taken:
            seen[i] += 1
        taken.add(marked)
        out.append(marked)
    return tuple(out)


def fingerprint(lines: Iterable[str]) -> str:
    """Sixteen hex digits of the SHA-256 of some lines."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode("utf-8", "backslashreplace") + b"\n")
    return digest.hexdigest()[:16]


def printable(path: str) -> str:
    """A path as text that every file can store, even where its name is not valid UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace").replace(os.sep, "/")


def unfit(path: Path) -> str:
    """Why a file of a pool is not even opened; empty where it may be."""
    try:
        facts = path.stat()
    except (OSError, ValueError) as error:  # ValueError: a NUL in its name
        return f"cannot be read ({getattr(error, 'strerror', None) or error})"
    if not stat.S_ISREG(facts.st_mode):
        return "no plain file"
    return "file above 1 GiB" if facts.st_size > LARGEST else ""
