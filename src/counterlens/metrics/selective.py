"""Answering only when sure: accuracy against the share of images answered.

Paper: Hendrycks et al. 2021, arXiv:1907.07174 (area under the response rate accuracy curve).
Differs: images of equal confidence are answered in random order; the expected curve is used, so
    the result does not depend on the order of the images.
"""

import torch
from torch import Tensor

from counterlens.errors import InputError
from counterlens.metrics.calibration import tie_means
from counterlens.metrics.intervals.closed_form import wilson
from counterlens.types import Flags, Scores


def running_accuracy(score: Scores, right: Flags) -> Tensor:
    """Accuracy over the m surest images, for m = 1 … n."""
    if score.ndim != 1 or score.shape != right.shape or not len(score):
        raise InputError(
            f"scores {tuple(score.shape)} and right {tuple(right.shape)} do not fit: "
            "expected one of each per image, at least one image."
        )
    key, order = score.double().cpu().sort(descending=True, stable=True)
    hit = tie_means(key, right.double().cpu()[order])
    return hit.cumsum(0) / torch.arange(1, len(hit) + 1, dtype=torch.float64)


def aurra(score: Scores, right: Flags) -> float:
    """Area under the response rate accuracy curve.

    Equation: nae2021 §5   AURRA = 1/n · Σ_m acc(the m most confident)

    Args:
        score: anything that orders images as the confidence does.
        right: whether the answer is right.

    >>> aurra(torch.tensor([0.9, 0.8]), torch.tensor([True, False]))
    0.75
    """
    return running_accuracy(score, right).mean().item()


def response_rate(score: Scores, right: Flags, *, points: int = 200) -> list[dict[str, object]]:
    """The curve as rows: answering the surest `rate` of the images gives `accuracy`."""
    curve = running_accuracy(score, right)
    n = len(curve)
    at = torch.linspace(1, n, min(points, n), dtype=torch.float64).round().long()
    rows: list[dict[str, object]] = []
    for m in sorted(set(at.tolist())):
        accuracy = curve[m - 1].item()
        low, high = wilson(min(accuracy * m, m), m)
        rows.append({"rate": m / n, "accuracy": accuracy, "low": low, "high": high, "n": m})
    return rows
