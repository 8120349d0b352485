"""Flips: images that the first of two models gets right and the other wrong, or the reverse.

Paper: Yan et al. 2021, Positive-Congruent Training: Towards Regression-Free Model Updates, CVPR.
Differs: both rates are over all common images, each with a 95 % Wilson interval, so the difference
    of the accuracies is the positive less the negative rate.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool

from counterlens.runs import LogitSet, Number, key_part
from counterlens.workflows.compare.pairs import right_rows, with_first

KINDS = ("negative", "positive")


def flips(
    before: Bool[np.ndarray, "n"], after: Bool[np.ndarray, "n"]
) -> dict[str, Bool[np.ndarray, "n"]]:
    """Which images flip, by kind: negative is right before and wrong after.

    Equation: yan2021 §3   NFR = 1/n · Σ_i [old right on i and new wrong on i]

    >>> flips(np.array([True, True, False]), np.array([True, False, True]))["negative"].tolist()
    [False, True, False]
    """
    return {"negative": before & ~after, "positive": ~before & after}


def flip_rate(flipped: Bool[np.ndarray, "n"], kind: str, where: str) -> Number:
    """The share of flipped images with its Wilson interval."""
    words = "right before, wrong after" if kind == "negative" else "wrong before, right after"
    return Number.share(int(flipped.sum()), len(flipped), f"{words}, of {where}")


def flip_results(
    logits: Mapping[str, Mapping[str, LogitSet]],
) -> tuple[dict[str, Number], list[dict[str, Any]]]:
    """Flip rates of each later model against the first, and a row per flipped image.

    The keys are flips.negative and flips.positive for two models, flips.NAME.negative for more.
    """
    first = next(iter(logits))
    numbers: dict[str, Number] = {}
    rows: list[dict[str, Any]] = []
    for name, inside, one, two, (left, right) in with_first(logits):
        known = one.labels[left] >= 0
        left, right = left[known], right[known]
        if not len(left):
            continue
        where = f"{len(left):,} images of {inside} that both {first} and {name} saw"
        part = "flips" if len(logits) == 2 else f"flips.{key_part(name)}"
        for kind, flipped in flips(right_rows(one, left), right_rows(two, right)).items():
            numbers[f"{part}.{kind}"] = flip_rate(flipped, kind, where)
            rows += [{"model": name, "flip": kind, "image": one.ids[int(i)]} for i in left[flipped]]
    return numbers, rows
