"""Images with any number of labels each: a matrix of 1, 0 and −1 (not known) beside the set.

`ImageSet.extra["targets"]` holds it, a column per class of the set; `labels` are −1 then.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Int

from counterlens.errors import InputError
from counterlens.images import ImageSet

KEY = "targets"
SEPARATORS = ("|", ";")
"""Between the names in one cell of a table."""
Targets = Int[np.ndarray, "n k"]


def targets_of(images: ImageSet) -> Targets | None:
    """The matrix of a set whose images have several labels; None for other sets."""
    targets = images.extra.get(KEY)
    return None if targets is None else np.asarray(targets)


def with_targets(images: ImageSet, targets: Targets, classes: Sequence[str]) -> ImageSet:
    """The set with a matrix of labels."""
    matrix = np.asarray(targets)
    if matrix.shape != (len(images), len(classes)) or not np.isin(matrix, (-1, 0, 1)).all():
        raise InputError(
            f"{images.name} has targets of shape {matrix.shape}, expected ({len(images)}, "
            f"{len(classes)}) of 1, 0, or −1 where a label is not known."
        )
    return replace(
        images,
        labels=np.full(len(images), -1, dtype=np.int64),
        classes=tuple(classes),
        extra={**images.extra, KEY: matrix.astype(np.int8)},
    )


def parse_names(cell: str) -> tuple[str, ...]:
    """The names in one cell of the column `labels`.

    >>> parse_names("Effusion|Mass"), parse_names("")
    (('Effusion', 'Mass'), ())
    """
    sign = next((s for s in SEPARATORS if s in cell), SEPARATORS[0])
    return tuple(name.strip() for name in cell.split(sign) if name.strip())


def matrix_of(names: Sequence[Sequence[str]], classes: Sequence[str]) -> Targets:
    """Names per image as a matrix.

    >>> matrix_of([["b"], []], ["a", "b"]).tolist()
    [[0, 1], [0, 0]]
    """
    place = {name: i for i, name in enumerate(classes)}
    out = np.zeros((len(names), len(classes)), dtype=np.int8)
    for row, given in enumerate(names):
        for name in given:
            out[row, place[name]] = 1
    return out


def one_label_set(images: ImageSet, label: str) -> ImageSet:
    """The set as a question of one label: classes "not LABEL" and LABEL; unknown ones are −1."""
    targets = targets_of(images)
    if targets is None or label not in images.classes:
        known = ", ".join(images.classes[:10]) if targets is not None else "one label per image"
        raise InputError(f"{images.name} has no label {label!r} among several. It has {known}.")
    column = targets[:, images.classes.index(label)].astype(np.int64)
    rest = {key: value for key, value in images.extra.items() if key != KEY}
    classes = (f"not {label}", label)
    return replace(
        images, name=f"{images.name} {label}", labels=column, classes=classes, extra=rest
    )
