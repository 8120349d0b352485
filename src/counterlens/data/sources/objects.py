"""Sets of images from objects: data sets of torch and Hugging Face, loaders, arrays, lists.

`as_image_set` takes what `open_set` takes and any such object. What is lazy stays lazy: an image is
read on request. Labels are read without decoding images where the object allows it.

The fingerprint of arrays covers all pixels and labels. That of a lazy object covers its length, all
labels, the class names, and the pixels of 16 images spread over it: reading all would take as long
as measuring them.
"""

import hashlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64
from torch.utils import data as torch_data

from counterlens import images
from counterlens.data.open import open_set
from counterlens.data.sets import array_set, printable, sample_rows, subset, unique
from counterlens.data.sources.items import (
    ItemLabel,
    behind,
    class_names_of,
    label_of,
    numbered_labels,
    split_item,
    stored_labels,
)
from counterlens.data.sources.pixels import as_array, as_batch, as_pixels
from counterlens.data.targets import with_targets
from counterlens.errors import CounterlensError, InputError, first_line
from counterlens.images import ImageSet, Pixels

_Rows = Int64[np.ndarray, "n"]
PROBES = 16
"""Images of a lazy object that are read when it is opened."""
MOST = 50_000
"""Images that are read at most from an object that can only be read once, in order."""
EXPECTED = (
    "a spec such as photos/ or sample:cifar10, a torch Dataset or DataLoader, a Hugging Face "
    "dataset, (images, labels) arrays or tensors, a list of images, or an ImageSet"
)


def as_image_set(
    source: object,
    *,
    name: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    size: tuple[int, int] = (32, 32),
    channels: int = 3,
    classes: Sequence[str] | None = None,
) -> ImageSet:
    """The set of images behind a spec or an object.

    >>> pixels = np.zeros((4, 8, 8, 3), np.uint8)
    >>> as_image_set((pixels, [0, 1, 1, 0]), classes=["cat", "dog"]).classes
    ('cat', 'dog')

    Args:
        source: a spec or path (see `open_set`); an ImageSet; a torch Dataset or DataLoader of
            (image, label); a Hugging Face dataset with a column of images; (images, labels) as
            arrays or tensors, channels first or last; such images alone; a list of Pillow images,
            arrays, tensors or paths, or of (image, label). Images are uint8 or float in [0, 1].
            An object that can only be read in order is read once into memory, at most 50,000
            images or `limit`.
        name: what keys and reports call the set.
        limit: at most so many images, drawn without replacement by `seed`.
        size, channels: of images that a spec makes by code (noise, textures).
        classes: class names in the order of the labels; else those the object carries, else
            the labels' own names or numbers.
    """
    if isinstance(source, str | Path) and not _is_picture(source):
        image_set = open_set(str(source), limit=limit, seed=seed, size=size, channels=channels)
        return _renamed(image_set, name, classes)
    if isinstance(source, ImageSet):
        image_set = _renamed(source, name, classes)
        return subset(image_set, sample_rows(len(image_set), limit, seed))
    source, labels = _parted(source)
    called = name or _name(source)
    batch = None if isinstance(source, str | list | tuple) else as_array(source)
    if batch is not None and batch.ndim == 4:
        pixels = as_batch(source, called)
        image_set = _array_set(called, pixels, labels, classes)
        return subset(image_set, sample_rows(len(image_set), limit, seed))
    if isinstance(source, torch_data.DataLoader):
        source = behind(source)
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
        return _read_once(source, called, limit, classes)
    if isinstance(source, Mapping):
        raise InputError(
            f"data is a {type(source).__name__} with the keys {', '.join(map(str, source))}, "
            f"expected one set of images: give one of its parts, data[{next(iter(source), '')!r}]."
        )
    rows = sample_rows(len(source), limit, seed)
    return _lazy_set(source, called, rows, labels, classes)


@dataclass(frozen=True)
class ReadItems:
    """Image i of an object that is read by number."""

    source: Any
    rows: _Rows
    name: str
    column: str | None = None

    def __call__(self, i: int) -> Pixels:
        return as_pixels(self.item(i)[0], f"image {int(self.rows[i])} of {self.name}")

    def item(self, i: int) -> tuple[object, object]:
        """Image and label as the object gives them."""
        row = int(self.rows[i])
        try:
            return split_item(self.source[row], self.column, self.name)
        except CounterlensError:
            raise
        except Exception as error:
            raise InputError(
                f"{self.name}: reading image {row} failed ({type(error).__name__}: "
                f"{first_line(error)})."
            ) from error


@dataclass(frozen=True)
class ReadList:
    """Image i of a list in memory."""

    pixels_of: tuple[Pixels, ...]

    def __call__(self, i: int) -> Pixels:
        return self.pixels_of[i]


def _parted(source: Any) -> tuple[Any, object]:
    """Images and labels of a pair of them; one image becomes a list of it."""
    if _is_image(source):
        return [source], None
    if isinstance(source, tuple | list) and len(source) == 2:
        one, two = source
        marks = as_array(two)
        single = isinstance(two, int | str | np.integer) or (marks is not None and marks.ndim == 0)
        if isinstance(source, tuple) and single and _is_image(one) and not _is_picture(two):
            return [one], [two]
        several = isinstance(one, list) or getattr(one, "ndim", 0) in (3, 4)
        if several and (isinstance(two, list | tuple) or (marks is not None and marks.ndim <= 2)):
            batch = None if isinstance(one, list) else as_array(one)
            if batch is not None and batch.ndim == 3:  # grey, n × height × width
                return batch[..., None], two
            return one, two
    batch = None if isinstance(source, str | list | tuple) else as_array(source)
    if batch is not None and batch.ndim == 3:
        return batch[..., None], None
    return source, None


def _is_image(value: Any) -> bool:
    """Whether an object is one image rather than several."""
    if _is_picture(value) or images.is_pillow(value):
        return True
    if not hasattr(value, "dtype"):  # tables have a shape, too: rows × columns
        return False
    shape: tuple[int, ...] = tuple(getattr(value, "shape", ()))
    return len(shape) == 2 or (len(shape) == 3 and (shape[2] in (1, 3, 4) or shape[0] in (1, 3)))


def _is_picture(value: object) -> bool:
    return isinstance(value, str | Path) and Path(value).suffix.lower() in images.SUFFIXES


def _name(source: Any) -> str:
    """The last folder of a data set of files, else the type of the object."""
    inner = source
    while isinstance(inner, torch_data.Subset | torch_data.DataLoader):
        inner = inner.dataset
    root = getattr(inner, "root", None)
    if isinstance(root, str | Path) and hasattr(inner, "samples"):
        return Path(root).resolve().name
    plain = isinstance(inner, list | tuple) or as_array(inner) is not None
    return "images" if plain else type(inner).__name__.lower()


def _renamed(image_set: ImageSet, name: str | None, classes: Sequence[str] | None) -> ImageSet:
    if classes is not None and len(classes) < len(image_set.classes):
        raise InputError(
            f"got {len(classes)} class names for {image_set.name}, expected "
            f"{len(image_set.classes)}."
        )
    return replace(
        image_set,
        name=name or image_set.name,
        classes=tuple(classes) if classes is not None else image_set.classes,
    )


def _array_set(
    name: str, pixels: np.ndarray, labels: object, classes: Sequence[str] | None
) -> ImageSet:
    matrix = None if labels is None or isinstance(labels, list | tuple) else as_array(labels)
    if matrix is not None and matrix.ndim == 2:
        return _several(
            array_set(name, pixels, [-1] * len(pixels), (), where=name), matrix, classes
        )
    given = None if labels is None else [label_of(one, name) for one in _each(labels)]
    marks, names = numbered_labels(given or [None] * len(pixels), classes, name)
    return array_set(name, pixels, marks, names, where=name)


def _several(image_set: ImageSet, matrix: Any, classes: Sequence[str] | None) -> ImageSet:
    """A set with a matrix of labels, one row per image."""
    rows = np.asarray(matrix)
    if ((rows == 1).sum(1) == 1).all() and np.isin(rows, (0, 1)).all():
        raise InputError(
            f"each label of {image_set.name} is a vector with one 1, so an image has one class: of "
            "one-hot labels give labels.argmax(1)."
        )
    named = tuple(classes) if classes is not None else tuple(map(str, range(rows.shape[1])))
    whole = rows.astype(np.int8) if np.array_equal(rows, rows.astype(np.int8)) else rows
    opened = with_targets(image_set, whole, named)
    marks = hashlib.sha256(opened.fingerprint.encode() + np.ascontiguousarray(whole).tobytes())
    return replace(opened, fingerprint=marks.hexdigest()[:16])


def _vectors(read: "ReadItems", labels: object) -> np.ndarray | None:
    """A matrix of labels, where each item of a lazy object carries a vector of them."""
    if labels is not None:
        return None
    first = read.item(0)[1]
    vector = None if isinstance(first, str | int) else as_array(first)
    if vector is None or vector.ndim != 1 or vector.size < 2:
        return None
    watch = _progress(f"{read.name}: reading labels", len(read.rows))
    return np.stack([np.asarray(as_array(read.item(i)[1])) for i in watch(range(len(read.rows)))])


def _each(labels: object) -> Sequence[object]:
    array = None if isinstance(labels, list | tuple) else as_array(labels)
    return list(array) if array is not None else list(labels)  # type: ignore[call-overload]


def _lazy_set(
    source: Any, name: str, rows: _Rows, labels: object, classes: Sequence[str] | None
) -> ImageSet:
    """A set whose images stay where they are until they are read."""
    if not len(rows):
        raise InputError(f"{name} holds no images.")
    column, label_column = _columns(source, name)
    read = ReadItems(source, rows, name, column)
    matrix = None if column else _vectors(read, labels)
    if matrix is not None:
        known = classes if classes is not None else class_names_of(source, label_column)
        ids = unique(_ids(source, rows, name))
        marks = np.full(len(rows), -1, dtype=np.int64)
        plain = ImageSet(name, ids, marks, (), read, fingerprint=_fingerprint(read, marks, ()))
        return _several(plain, matrix, known)
    given = _labels(source, read, labels, label_column)
    known = classes if classes is not None else class_names_of(source, label_column)
    marks, names = numbered_labels(given, known, name)
    return ImageSet(
        name=name,
        ids=unique(_ids(source, rows, name)),
        labels=marks,
        classes=names,
        read=read,
        fingerprint=_fingerprint(read, marks, names),
    )


def _columns(source: Any, name: str) -> tuple[str | None, str | None]:
    """Columns of images and labels of a Hugging Face dataset, by the types of its features."""
    features = getattr(source, "features", None)
    if not isinstance(features, Mapping) or not hasattr(source, "column_names"):
        return None, None
    kinds = {key: type(kind).__name__ for key, kind in features.items()}
    pictures = [key for key, kind in kinds.items() if kind == "Image"]
    if not pictures:
        raise InputError(
            f"{name} has no column of images, only {', '.join(kinds)}. Expected one of type Image."
        )
    labels = [key for key, kind in kinds.items() if kind == "ClassLabel"]
    labels += [key for key in ("label", "labels") if key in kinds]
    return pictures[0], labels[0] if labels else None


def _labels(source: Any, read: ReadItems, labels: object, column: str | None) -> list[ItemLabel]:
    """One label per image: those given, those the object stores, else by reading every item."""
    count = len(read.rows)
    if labels is not None:
        listed = _each(labels)
        if len(listed) != len(source):
            raise InputError(f"{read.name} has {len(source)} images but {len(listed)} labels.")
        return [label_of(listed[int(i)], read.name) for i in read.rows]
    if column is not None:
        values = list(source[column])
        return [label_of(values[int(i)], read.name) for i in read.rows]
    stored = stored_labels(source)
    if stored is not None:
        result = [label_of(stored[int(i)], read.name) for i in read.rows]
        # stored labels may differ from those given out (target_transform): trust them if they agree
        if all(result[i] == label_of(read.item(i)[1], read.name) for i in _probes(count)):
            return result
    if label_of(read.item(0)[1], read.name) is None:
        return [None] * count
    watch = _progress(f"{read.name}: reading labels", count)
    return [label_of(read.item(i)[1], read.name) for i in watch(range(count))]


def _probes(count: int) -> list[int]:
    return sorted({int(i) for i in np.linspace(0, count - 1, min(PROBES, count))})


def _fingerprint(read: ReadItems, labels: np.ndarray, classes: Sequence[str]) -> str:
    digest = hashlib.sha256(repr((len(labels), tuple(classes))).encode())
    digest.update(labels.tobytes())
    for i in _probes(len(labels)):
        pixels, again = read(i), read(i)
        if not np.array_equal(pixels, again):
            raise InputError(
                f"image {int(read.rows[i])} of {read.name} differs from one reading to the next. "
                "Give the set with its evaluation transform, without random augmentation."
            )
        digest.update(repr(pixels.shape).encode() + np.ascontiguousarray(pixels).tobytes())
    return digest.hexdigest()[:16]


def _ids(source: Any, rows: _Rows, name: str) -> list[str]:
    """Paths below the root where the images are files, else numbers."""
    paths = _paths(source)
    return [printable(paths[int(i)]) if paths else f"{name}/{int(i)}" for i in rows]


def _paths(source: Any) -> list[str] | None:
    if isinstance(source, torch_data.Subset):
        inner = _paths(source.dataset)
        return [inner[int(i)] for i in source.indices] if inner else None
    if isinstance(source, list) and all(isinstance(one, str | Path) for one in source):
        return [str(one) for one in source]
    root, samples = getattr(source, "root", None), getattr(source, "samples", None)
    if not isinstance(root, str | Path) or not isinstance(samples, list):
        return None
    try:
        return [str(Path(one[0]).relative_to(root)) for one in samples]
    except (ValueError, TypeError, IndexError):
        return None


def _read_once(
    source: Any, name: str, limit: int | None, classes: Sequence[str] | None
) -> ImageSet:
    """A set in memory, of an object that can only be read in order."""
    if not hasattr(source, "__iter__"):
        raise InputError(f"data is {type(source).__name__}, expected {EXPECTED}.")
    most = MOST if limit is None else limit
    stream = iter(source)
    column, label_column = _columns(source, name)
    items = [split_item(one, column, name) for one in islice(stream, most)]
    if not items:
        raise InputError(f"{name} holds no images.")
    more = next(stream, None) is not None
    pixels = tuple(as_pixels(one, f"image {i} of {name}") for i, (one, _) in enumerate(items))
    given = [label_of(label, name) for _, label in items]
    known = classes if classes is not None else class_names_of(source, label_column)
    marks, names = numbered_labels(given, known, name)
    digest = hashlib.sha256(repr((names, marks.tolist())).encode())
    for one in pixels:
        digest.update(repr(one.shape).encode() + np.ascontiguousarray(one).tobytes())
    notes = (f"the first {len(items):,} images; there are more",) if more else ()
    ids = [f"{name}/{i}" for i in range(len(items))]
    read = ReadList(pixels)
    return ImageSet(name, ids, marks, names, read, fingerprint=digest.hexdigest()[:16], notes=notes)


def _progress(text: str, total: int) -> Callable[[Iterable[int]], Iterator[int]]:
    """A line on standard error every ten seconds."""

    def watch(rows: Iterable[int]) -> Iterator[int]:
        printed = time.monotonic()
        for done, row in enumerate(rows):
            yield row
            if time.monotonic() - printed > 10:
                printed = time.monotonic()
                print(f"{text}, {done + 1:,} of {total:,}", file=sys.stderr, flush=True)

    return watch
