"""Which classes a curated set should have: not rare, not overlapping, not coarse, not backdrops.

Paper: Hendrycks et al. 2021, Natural Adversarial Examples (section 3: 200 classes were chosen by
    hand, without fine-grained, overlapping, rare, coarse and backdrop-like ones).
Differs: a proposal by rules, which a person edits. Overlap is measured between the rows of a
    model's last layer; backdrops are WordNet's natural objects (seashore, valley, cliff), told by
    their ids, which WordNet numbers file by file.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int64

from counterlens.label_spaces import imagenet, imagenet_index
from counterlens.label_spaces.imagenet import plain

COSINE = 0.45
_BACKDROPS = ("n09186", "n09504")  # WordNet's file of natural objects; people follow


@dataclass(frozen=True)
class Choice:
    """A class with the verdict on it.

    Args:
        name: of the class.
        images: how many the pool has.
        keep: whether it should be one of the set's classes.
        why: the rule that dropped it; empty where it stays.
        other: the class it overlaps with or contains; empty where there is none.
        cosine: with the nearest class in the model's last layer.
    """

    name: str
    images: int
    keep: bool
    why: str
    other: str
    cosine: float


def propose(
    classes: Sequence[str],
    counts: Int64[np.ndarray, "k"],
    rows: Float[np.ndarray, "k d"],
    *,
    least: int,
    cosine: float = COSINE,
) -> list[Choice]:
    """A verdict on every class, in their order.

    Equation: nae2021 §3   no class that is rare, overlapping, coarse or a backdrop

    Args:
        classes: names.
        counts: images of each in the pool.
        rows: the rows of the model's last layer that stand for them.
        least: images that a class must have.
        cosine: rows this near or nearer overlap; of two the one with fewer images goes.
    """
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    near = unit @ unit.T
    np.fill_diagonal(near, -1)
    coarse, backdrops = _coarse(classes), _backdrops(classes)
    why = [""] * len(classes)
    other = [-1] * len(classes)
    for k in range(len(classes)):
        if counts[k] < least:
            why[k] = "rare"
        elif k in backdrops:
            why[k] = "backdrop"
        elif k in coarse:
            why[k], other[k] = "coarse", coarse[k]
    for k in sorted(range(len(classes)), key=lambda k: (-counts[k], k)):  # the larger one stays
        if why[k]:
            continue
        for j in np.flatnonzero(near[k] >= cosine).tolist():
            if not why[j]:
                why[j], other[j] = "overlaps", k
    return [
        Choice(
            name,
            int(counts[k]),
            not why[k],
            why[k],
            classes[other[k]] if other[k] >= 0 else "",
            float(near[k].max()),
        )
        for k, name in enumerate(classes)
    ]


def _coarse(classes: Sequence[str]) -> dict[int, int]:
    """Classes whose whole name stands within the name of another: crane, and crane bird."""
    names = [f" {plain(name.split(',')[0])} " for name in classes]
    found = {}
    for k, name in enumerate(names):
        longer = [j for j, text in enumerate(names) if j != k and name in text and name != text]
        if longer and name.strip():
            found[k] = longer[0]
    return found


def _backdrops(classes: Sequence[str]) -> set[int]:
    labels = imagenet_index(classes)
    if labels is None:
        return set()
    synsets = imagenet()
    low, high = _BACKDROPS
    return {k for k, i in enumerate(labels) if i >= 0 and low <= synsets[i].wnid < high}
