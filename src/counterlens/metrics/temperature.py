"""One number that softens or sharpens all logits, fitted on images that are not reported.

Paper: Augustin, Meinke, Hein 2020 (appendix: 500 geometric temperatures, lowest ECE);
    Guo et al. 2017, arXiv:1706.04599 (section 4.2: lowest negative log likelihood).
Differs: of several temperatures with the lowest ECE we take the smallest; the papers leave it open.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from counterlens.checks import check_labels
from counterlens.errors import InputError
from counterlens.metrics.answers import check_finite_logits
from counterlens.types import Flags, Labels, Logits

LOWEST, HIGHEST, STEPS, BINS = 0.05, 2.71, 500, 10
_VANISHED = 45.0  # exp(−45) is below a float64 unit in the last place, times a thousand classes


def split_by_id(ids: Sequence[str], share: float = 0.2) -> Bool[np.ndarray, "n"]:
    """Mark about `share` of the images for fitting, by a hash of each id alone.

    The same image lands on the same side whatever else is in the set and in whatever order, so
    a temperature is never fitted on an image that a later, larger audit reports.

    >>> split_by_id([f"img{i}" for i in range(10)], 0.3).tolist()
    [False, False, False, False, False, True, False, True, False, True]
    """
    if not 0 <= share <= 1:
        raise InputError(f"share is {share}, expected a number in [0, 1].")
    digests = (hashlib.sha256(f"hold-out:{i}".encode()).digest() for i in ids)
    draws = [int.from_bytes(digest[:8], "big") / 2**64 for digest in digests]
    return np.array(draws) < share


def grid(low: float = LOWEST, high: float = HIGHEST, steps: int = STEPS) -> Float64[Tensor, "s"]:
    """The paper's temperatures: geometrically spaced, both ends included."""
    if not 0 < low <= high or steps < 1:
        raise InputError(f"temperatures {low} … {high} in {steps} steps: expected 0 < low ≤ high.")
    return torch.from_numpy(np.geomspace(low, high, steps))


def by_ece(
    logits: Logits, labels: Labels, *, temperatures: Tensor | None = None, bins: int = BINS
) -> float:
    """The temperature with the lowest ECE; of equals the smallest.

    Equation: ratio2020 §A   T = argmin over 500 geometric T in [0.05, 2.71] of ECE(softmax(z/T))

    >>> import math
    >>> z = torch.tensor([[2.0, 0.0]]).repeat(10, 1)
    >>> y = torch.tensor([0] * 8 + [1] * 2)
    >>> abs(by_ece(z, y) - 2 / math.log(4)) < 0.01  # softmax(2 / T) = 0.8
    True
    """
    check_finite_logits(logits)
    check_labels(labels, classes=logits.shape[1], rows=len(logits))
    at = grid() if temperatures is None else temperatures.double().sort().values
    right = logits.argmax(1).cpu() == labels.cpu()
    return lowest(at, grid_confidence(logits, at), right, classes=logits.shape[1], bins=bins)


def lowest(
    at: Float64[Tensor, "s"],
    confidence: Float64[Tensor, "s b"],
    right: Flags,
    *,
    classes: int,
    bins: int = BINS,
) -> float:
    """The smallest of the temperatures `at` whose confidences have the lowest ECE."""
    index = bin_index(confidence, classes=classes, bins=bins)
    gap = torch.zeros(len(confidence), bins, dtype=torch.float64)
    gap.scatter_add_(1, index, right.double() - confidence)
    return at[gap.abs().sum(1).argmin()].item()  # torch takes the first of equal minima


def grid_confidence(logits: Logits, at: Float64[Tensor, "s"]) -> Float64[Tensor, "s b"]:
    """Confidence of every image at every temperature, in float64.

    Logits far below the top one add exp(−gap/T) < 1e−19 to a sum of at least 1, that is nothing;
    sorted rows let them be left out, which at a thousand classes saves most of the work.
    """
    parts = []
    for part in torch.split(logits.detach().cpu(), max(1, 1_000_000 // logits.shape[1])):
        ordered = part.double().sort(1, descending=True).values
        gap = ordered[:, :1] - ordered
        near = gap.min(0).values
        rows = [
            torch.exp(gap[:, : int(torch.searchsorted(near, _VANISHED * t))] / -t).sum(1)
            for t in at.tolist()
        ]
        parts.append(torch.stack(rows).reciprocal_())
    return torch.cat(parts, 1)


def bin_index(confidence: Tensor, *, classes: int, bins: int) -> Tensor:
    """Which equal-width bin of [1/K, 1] each confidence falls into; borders belong below."""
    edges = torch.linspace(1 / classes, 1, bins + 1, dtype=torch.float64)
    return torch.bucketize(confidence, edges[1:-1])


def by_nll(logits: Logits, labels: Labels, *, low: float = LOWEST, high: float = 20.0) -> float:
    """The temperature with the lowest negative log likelihood.

    Equation: guo2017 (9)   T = argmin_T −1/n · Σ_i log softmax(z_i / T)_{y_i}

    The loss is convex in β = 1/T; its slope, mean(Σ_k p_k z_k − z_y), is brought to zero by
    bisection. Where it has no zero between the bounds, the better bound is returned.
    """
    check_finite_logits(logits)
    check_labels(labels, classes=logits.shape[1], rows=len(logits))
    if not 0 < low < high:
        raise InputError(f"temperatures {low} … {high}: expected 0 < low < high.")
    z = logits.detach().cpu().double()
    z = z - z.max(1, keepdim=True).values
    own = z.gather(1, labels.cpu()[:, None].long()).mean()

    def slope(beta: float) -> float:
        return ((torch.softmax(z * beta, 1) * z).sum(1).mean() - own).item()

    small, large = 1 / high, 1 / low
    if slope(small) >= 0:
        return high
    if slope(large) <= 0:
        return low
    while large - small > 1e-11 * large:
        middle = (small + large) / 2
        if slope(middle) < 0:
            small = middle
        else:
            large = middle
    return 2 / (small + large)
