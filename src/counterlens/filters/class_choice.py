"""Which classes a curated set should have: not rare, not overlapping, not backdrops.

Paper: Hendrycks et al. 2021, Natural Adversarial Examples (section 3: 200 classes were chosen by
    hand, without fine-grained, overlapping, rare, coarse and backdrop-like ones).
Differs: a proposal by rules, which a person edits; it does not find the paper's classes (of its 200
    the rules keep the same share as of the other 800, see docs/papers/nae2021.md), for what is
    coarse, changed since 2012 or fine-grained is a judgement. Overlap is measured between the rows
    of a model's last layer; backdrops are WordNet's natural objects (seashore, cliff), recognised
    by their ids, which WordNet numbers file by file; groups are WordNet's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int64

from counterlens.label_spaces import imagenet, imagenet_groups, imagenet_index

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
        other: the class it overlaps with, or a larger one of its group; empty where there is none.
        cosine: with the nearest class in the model's last layer.
        group: of classes that WordNet puts close together; empty where it is alone.
    """

    name: str
    images: int
    keep: bool
    why: str
    other: str
    cosine: float
    group: str


def propose(
    classes: Sequence[str],
    counts: Int64[np.ndarray, "k"],
    rows: Float[np.ndarray, "k d"],
    *,
    least: int,
    cosine: float = COSINE,
    per_group: int | None = None,
) -> list[Choice]:
    """A verdict on every class, in their order.

    Equation: nae2021 §3   no class that is rare, overlapping, a backdrop or fine-grained

    Args:
        classes: names.
        counts: images of each in the pool.
        rows: the rows of the model's last layer that stand for them.
        least: images that a class must have.
        cosine: rows this near or nearer overlap; of two the one with fewer images goes.
        per_group: most classes of one WordNet group, those with the most images; None for all.
    """
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    near = unit @ unit.T
    np.fill_diagonal(near, -1)
    backdrops = _backdrops(classes)
    groups = imagenet_groups(classes) or ("",) * len(classes)
    taken: dict[str, list[int]] = {}
    why = [""] * len(classes)
    other = [-1] * len(classes)
    for k in range(len(classes)):
        if counts[k] < least:
            why[k] = "rare"
        elif k in backdrops:
            why[k] = "backdrop"
    for k in sorted(range(len(classes)), key=lambda k: (-counts[k], k)):  # the larger one stays
        if why[k]:
            continue
        peers = taken.setdefault(groups[k], []) if groups[k] else []
        if per_group is not None and len(peers) >= per_group:
            why[k], other[k] = "group", peers[0]
            continue
        peers.append(k)
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
            groups[k],
        )
        for k, name in enumerate(classes)
    ]


def _backdrops(classes: Sequence[str]) -> set[int]:
    labels = imagenet_index(classes)
    if labels is None:
        return set()
    synsets = imagenet()
    low, high = _BACKDROPS
    return {k for k, i in enumerate(labels) if i >= 0 and low <= synsets[i].wnid < high}
