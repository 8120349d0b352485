"""Can the confidence tell known from unknown images?

Paper: Augustin, Meinke, Hein 2020 (section 4, AUC and MMC); Hendrycks et al. 2021,
    arXiv:1907.07174 (AUPR on ImageNet-O); Hendrycks & Gimpel 2017, arXiv:1610.02136.
Differs: nothing in the definitions; the scores given should be the log-odds of `answers`, which
    do not saturate. In AUROC and FPR95 the known (in-distribution) images are the positives, in
    AUPR the unknown ones are, each as in its paper.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.errors import InputError
from counterlens.types import Scores

Others = Float[Tensor, "o"]
"""Scores of another set of images, of its own length."""


def auroc(inside: Scores, outside: Others) -> float:
    """Chance that a known image gets a higher score than an unknown one; ties count half.

    Equation: ratio2020 §4   AUC = P(s_in > s_out) + ½ P(s_in = s_out)

    >>> auroc(torch.tensor([2.0, 3.0]), torch.tensor([1.0, 2.0]))
    0.875
    """
    known, unknown = _pair(inside, outside)
    ordered = unknown.sort().values
    below = torch.searchsorted(ordered, known)
    upto = torch.searchsorted(ordered, known, right=True)
    return ((below + upto).double().sum() / (2 * len(known) * len(unknown))).item()


def aupr(inside: Scores, outside: Others, *, ratio: float | None = None) -> float:
    """Average precision of finding the unknown images by low score; the unknown are positive.

    Equation: nae2021 §5   AUPR = Σ_τ (R_τ − R_τ₋₁) · P_τ, one step per distinct score

    Args:
        inside: scores of known images, higher = more confident.
        outside: scores of unknown images.
        ratio: unknown images per known image to report at; None keeps the given counts.
            Precision depends on it: a useless score reaches ratio / (1 + ratio).

    >>> aupr(torch.tensor([1.0, 1.0]), torch.tensor([1.0]))
    0.3333333333333333
    """
    known, unknown = _pair(inside, outside)
    share = ratio if ratio is not None else len(unknown) / len(known)
    if not share > 0:
        raise InputError(f"ratio is {ratio}, expected unknown images per known image, above 0.")
    at = torch.unique(torch.cat([known, unknown]))  # ascending: the least confident first
    recall = torch.searchsorted(unknown.sort().values, at, right=True).double() / len(unknown)
    false = torch.searchsorted(known.sort().values, at, right=True).double() / len(known)
    step = torch.diff(recall, prepend=recall.new_zeros(1))
    precision = share * recall / (share * recall + false)
    return (step * precision)[step > 0].sum().item()


def fpr95(inside: Scores, outside: Others, *, keep: float = 0.95) -> float:
    """Share of unknown images accepted when the threshold accepts 95 % of the known ones.

    The threshold is the highest score that at least `keep` of the known images reach; an
    unknown image that equals it is accepted.

    >>> fpr95(torch.arange(20.0), torch.tensor([0.0, 1.0, 5.0, -3.0]))
    0.5
    """
    known, unknown = _pair(inside, outside)
    rank = accepted_count(len(known), keep)
    threshold = known.sort(descending=True).values[rank - 1]
    return (unknown >= threshold).double().mean().item()


def accepted_count(n: int, keep: float) -> int:
    """How many of n known images must be accepted: the smallest m with m / n ≥ keep.

    >>> accepted_count(20, 0.95), accepted_count(21, 0.95), accepted_count(1, 0.95)
    (19, 20, 1)
    """
    if not 0 < keep <= 1:
        raise InputError(f"keep is {keep}, expected a share in (0, 1].")
    m = round(n * keep)  # 0.95 · 20 must be 19, whatever binary fractions make of it
    return max(1, m if m >= n * keep - 1e-9 else m + 1)


def mmc(confidence: Scores) -> float:
    """Mean maximal confidence.

    Equation: ratio2020 §4   MMC = 1/n · Σ_i max_k p_k(x_i)
    """
    return confidence.double().mean().item()


def confidence_hist(confidence: Scores, *, name: str, bins: int = 20) -> list[dict[str, object]]:
    """Histogram rows of the confidences of one set, over [0, 1]; n is the count in the bin."""
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    index = torch.bucketize(confidence.double().cpu(), edges[1:-1])
    counts = torch.bincount(index, minlength=bins).tolist()
    total = max(1, len(confidence))
    return [
        {
            "set": name,
            "bin_low": edges[b].item(),
            "bin_high": edges[b + 1].item(),
            "share": counts[b] / total,
            "n": counts[b],
        }
        for b in range(bins)
    ]


def _pair(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    for name, score in (("inside", inside), ("outside", outside)):
        if score.ndim != 1 or not len(score):
            raise InputError(f"{name} has shape {tuple(score.shape)}, expected (images,), n ≥ 1.")
        if torch.isnan(score).any():
            raise InputError(f"{name} holds NaN scores.")
    return inside.double().cpu(), outside.double().cpu()
