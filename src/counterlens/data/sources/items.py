"""What data sets held as objects give: items, labels, class names; what a loader reads."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64
from torch.utils import data as torch_data

from counterlens import images
from counterlens.data.sets import check_range
from counterlens.data.sources.pixels import as_array
from counterlens.errors import InputError

ItemLabel = int | str | None
"""A class by number or name; None where unknown."""


def label_of(value: Any, name: str) -> ItemLabel:
    """One label as a number or a name.

    >>> label_of(np.int64(3), "x"), label_of("cat", "x"), label_of(None, "x")
    (3, 'cat', None)
    """
    if value is None or isinstance(value, str):
        return None if value is None else str(value)
    array = as_array(value) if not isinstance(value, int) else np.asarray(value)
    if array is not None and array.size == 1:
        one = array.reshape(())
        if one.dtype.kind in "iub":
            return int(one)
        if one.dtype.kind in "US":
            return str(one)
    came = type(value).__name__ if array is None else f"{array.dtype} of shape {array.shape}"
    raise InputError(
        f"a label of {name} is {came}, expected one class number or name per image. "
        "Of one-hot labels give labels.argmax(1)."
    )


def numbered_labels(
    given: Sequence[ItemLabel], classes: Sequence[str] | None, name: str
) -> tuple[Int64[np.ndarray, "n"], tuple[str, ...]]:
    """Labels as numbers, −1 where unknown, and the class names.

    >>> numbered_labels(["dog", "cat", None], None, "x")
    (array([ 1,  0, -1]), ('cat', 'dog'))
    """
    words = sorted({one for one in given if isinstance(one, str)})
    numbers = [one for one in given if isinstance(one, int)]
    if words and numbers:
        raise InputError(f"{name} has both names and numbers as labels, expected one kind.")
    if classes is None:
        names = tuple(words or (str(i) for i in range(max(numbers, default=-1) + 1)))
    else:
        names = tuple(str(one) for one in classes)
    place = {one: i for i, one in enumerate(names)}
    strange = [word for word in words if word not in place]
    if strange:
        raise InputError(
            f"{name} has the label {strange[0]!r}, expected one of {', '.join(names[:10])}."
        )
    marks = [-1 if k is None else k if isinstance(k, int) else place[k] for k in given]
    out = np.asarray(marks, dtype=np.int64)
    check_range(out, len(names), name)
    return out, names


def stored_labels(source: Any) -> Sequence[Any] | None:
    """The labels an object keeps beside its images, read without decoding any of them."""
    if isinstance(source, torch_data.Subset):
        inner = stored_labels(source.dataset)
        return None if inner is None else [inner[int(i)] for i in source.indices]
    if isinstance(source, torch_data.ConcatDataset):
        parts = [stored_labels(part) for part in source.datasets]
        if any(part is None for part in parts):
            return None
        return [label for part in parts if part is not None for label in part]
    if isinstance(source, torch_data.TensorDataset):
        return list(source.tensors[1]) if len(source.tensors) > 1 else None
    for key in ("targets", "labels", "_labels"):
        stored = getattr(source, key, None)
        array = np.asarray(stored) if isinstance(stored, list | tuple) else as_array(stored)
        if array is not None and array.ndim == 1 and array.dtype.kind in "iuU":
            return array.tolist() if len(array) == len(source) else None
    return None


def class_names_of(source: Any, column: str | None = None) -> tuple[str, ...] | None:
    """The class names an object carries: `.classes`, or the names of a ClassLabel feature."""
    if isinstance(source, torch_data.Subset):
        return class_names_of(source.dataset)
    if isinstance(source, torch_data.ConcatDataset):
        known = {class_names_of(part) for part in source.datasets}
        return known.pop() if len(known) == 1 else None
    features = getattr(source, "features", None)
    if isinstance(features, Mapping):
        names = getattr(features.get(column or "label"), "names", None)
        return tuple(map(str, names)) if names else None
    facts = getattr(source, "metadata", None)
    if isinstance(facts, Mapping) and isinstance(facts.get("index2label"), Mapping):  # MAITE
        known_names = {int(index): str(name) for index, name in facts["index2label"].items()}
        return tuple(known_names.get(i, str(i)) for i in range(max(known_names, default=-1) + 1))
    names = getattr(source, "classes", None)
    if isinstance(names, list | tuple) and names and all(isinstance(one, str) for one in names):
        return tuple(names)
    return None


def split_item(item: Any, column: str | None, name: str) -> tuple[object, object]:
    """Image and label of what a data set gives for one number; label None where it has none."""
    if isinstance(item, Mapping):
        keys = [column] if column else [k for k in ("image", "img", "pixel_values") if k in item]
        if not keys:
            raise InputError(
                f"{name} gives the keys {', '.join(map(str, item))}, expected an image under "
                "'image', 'img' or 'pixel_values'."
            )
        label = next((item[k] for k in ("label", "labels", "target") if k in item), None)
        return _encoded(item[keys[0]], name), label
    if isinstance(item, tuple) and len(item) == 3 and isinstance(item[2], Mapping):  # MAITE
        return item[0], _class_of(item[1], name)
    if isinstance(item, tuple | list) and item:
        return item[0], item[1] if len(item) > 1 else None
    return item, None


def _class_of(target: object, name: str) -> object:
    """The class of a MAITE target: a vector with one highest entry."""
    vector = as_array(target)
    if vector is None or vector.ndim != 1 or not vector.size:
        return target
    best = np.flatnonzero(vector == vector.max())
    if len(best) > 1:
        raise InputError(
            f"{name} has a target with {len(best)} equal highest entries, expected one class."
        )
    return int(best[0])


def _encoded(image: Any, name: str) -> object:
    """The image inside a Hugging Face cell that was not decoded."""
    if not isinstance(image, Mapping):
        return image
    return images.decode(image["bytes"], name=name) if image.get("bytes") else image.get("path")


def behind(loader: Any) -> Any:
    """What a loader reads: its data set or the part of it that its sampler visits, in order."""
    inner = loader.dataset
    if isinstance(inner, torch_data.IterableDataset):
        return _flat(loader)
    batches = loader.batch_sampler
    sampler = loader.sampler if batches is None else getattr(batches, "sampler", batches)
    if isinstance(sampler, torch_data.SubsetRandomSampler):
        return torch_data.Subset(inner, sorted(int(i) for i in sampler.indices))
    whole = isinstance(sampler, torch_data.SequentialSampler) or (
        isinstance(sampler, torch_data.RandomSampler) and not sampler.replacement
    )
    if not whole:
        raise InputError(
            f"the loader draws by {type(sampler).__name__}, so it is not known which images are "
            "meant. Give the data set itself, or torch.utils.data.Subset(dataset, rows)."
        )
    return inner


def _flat(loader: Iterable[Any]) -> Iterator[tuple[object, object]]:
    """The items of a loader's batches."""
    for batch in loader:
        pictures, labels = split_item(batch, None, "the loader")
        marks = [None] * len(pictures) if labels is None else labels  # type: ignore[arg-type]
        yield from zip(pictures, marks, strict=True)  # type: ignore[call-overload]
