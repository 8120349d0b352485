"""Is 80 % sure right 80 % of the time? Calibration errors of the top answer.

Paper: Guo et al. 2017, arXiv:1706.04599 (section 2); Augustin, Meinke, Hein 2020 (appendix on
    temperature); Hendrycks et al. 2021, arXiv:1907.07174 (appendix on RMS calibration error).
Differs: bins are (low, high], so a confidence of exactly 1 shares the last bin and one of exactly
    1/K the first. In the equal-count bins, images of equal confidence share their mean accuracy,
    so the error does not depend on the order of the images. The reference code of Hendrycks et
    al. skips the most confident bin; `rms(last=False)` does too, the default does not.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from counterlens.checks import check_labels, check_probs
from counterlens.errors import InputError
from counterlens.types import Flags, Labels, Probs, Scores

Span = Literal["paper", "common"]
"""What the bins cut up: "paper" [1/K, 1], where confidences can lie; "common" [0, 1]."""
Bars = Float64[Tensor, "m"]


@dataclass(frozen=True)
class Bins:
    """Images sorted into bins by confidence.

    Args:
        n: images in each bin.
        confidence, right: sums over the images of each bin.
        low, high: borders of each bin; for equal-count bins the lowest and highest confidence.
        width: whether the bins have equal width; else they have equal count.
    """

    n: Bars
    confidence: Bars
    right: Bars
    low: Bars
    high: Bars
    width: bool


def width_bins(confidence: Scores, right: Tensor, *, bins: int = 15, start: float = 0.0) -> Bins:
    """Cut [start, 1] into bins of equal width. `right` may be fractional: an expected hit."""
    if bins < 1:
        raise InputError(f"bins is {bins}, expected 1 or more.")
    conf, hit = confidence.double().cpu(), right.double().cpu()
    edges = torch.linspace(start, 1, bins + 1, dtype=torch.float64)
    index = torch.bucketize(conf, edges[1:-1])  # a border belongs to the bin below

    def total(values: Tensor) -> Tensor:
        return torch.zeros(bins, dtype=torch.float64).index_add_(0, index, values)

    ones = torch.ones_like(conf)
    return Bins(total(ones), total(conf), total(hit), edges[:-1], edges[1:], True)


def count_bins(confidence: Scores, right: Tensor, *, size: int = 100) -> Bins:
    """Bins of `size` images in order of confidence; the remainder joins the last bin."""
    if size < 1:
        raise InputError(f"size is {size}, expected 1 image per bin or more.")
    conf, order = confidence.double().cpu().sort(stable=True)
    hit = tie_means(conf, right.double().cpu()[order])
    bins = max(1, len(conf) // size)
    index = (torch.arange(len(conf)) // size).clamp(max=bins - 1)

    def total(values: Tensor) -> Tensor:
        return torch.zeros(bins, dtype=torch.float64).index_add_(0, index, values)

    first = torch.arange(bins) * size
    final = torch.cat([first[1:] - 1, torch.tensor([len(conf) - 1])])
    n = total(torch.ones_like(conf))
    return Bins(n, total(conf), total(hit), conf[first], conf[final], False)


def tie_means(ordered: Tensor, values: Tensor) -> Tensor:
    """Replace values by their mean over runs of equal keys in `ordered`.

    >>> tie_means(torch.tensor([1.0, 2.0, 2.0]), torch.tensor([1.0, 0.0, 1.0])).tolist()
    [1.0, 0.5, 0.5]
    """
    group: Tensor
    counts: Tensor
    _, group, counts = torch.unique_consecutive(ordered, return_inverse=True, return_counts=True)
    if len(counts) == len(ordered):
        return values
    sums = torch.zeros(len(counts), dtype=values.dtype).index_add_(0, group, values)
    return (sums / counts)[group]


def ece_of(bins: Bins) -> float:
    """Expected calibration error of binned images."""
    return ((bins.right - bins.confidence).abs().sum() / bins.n.sum()).item()


def rms_of(bins: Bins, *, last: bool = True) -> float:
    """RMS calibration error of binned images; `last=False` drops the most confident bin."""
    square = (bins.right - bins.confidence) ** 2 / bins.n.clamp(min=1)
    used = square if last else square[:-1]
    return (used.sum() / bins.n.sum()).sqrt().item()


def ece(probs: Probs, labels: Labels, *, bins: int = 15, span: Span = "paper") -> float:
    """Expected calibration error of the top answer.

    Equation: guo2017 (3)   ECE = Σ_m |B_m|/n · |acc(B_m) − conf(B_m)|
    Equation: ratio2020 §A   the bins B_m cut [1/K, 1] into equal parts

    Args:
        probs: softmax outputs, rows sum to one. Logits are refused, not guessed at.
        labels: true classes.
        bins: number of equal-width bins M.
        span: what is cut into bins.

    Returns:
        ECE in [0, 1]; 0 is perfect.

    >>> ece(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
    0.5
    """
    confidence, right = _top(probs, labels)
    start = 1 / probs.shape[1] if span == "paper" else 0.0
    return ece_of(width_bins(confidence, right, bins=bins, start=start))


def rms(probs: Probs, labels: Labels, *, size: int = 100, last: bool = True) -> float:
    """Root mean square calibration error over bins of equal count.

    Equation: nae2021 §B   RMS = √(Σ_b |B_b|/n · (conf(B_b) − acc(B_b))²)

    Args:
        probs: softmax outputs, rows sum to one.
        labels: true classes.
        size: images per bin.
        last: False leaves out the most confident bin but divides by all n, as the authors'
            code does; it understates the error.

    >>> rms(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
    0.5
    """
    return rms_of(count_bins(*_top(probs, labels), size=size), last=last)


def joint_ece(
    probs: Probs,
    labels: Labels,
    outside: Float[Tensor, "o k"],
    *,
    bins: int = 15,
    span: Span = "paper",
) -> float:
    """ECE of a world that is half in-distribution and half outside it, where labels are random.

    Equation: ratio2020 §4   ECE of ½ p_in(x, y) + ½ p_out(x) · 1/K

    An outside image is right with probability 1/K; that expectation is used, not a drawn label.

    >>> joint_ece(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), torch.tensor([[0.0, 1.0]]))
    0.25
    """
    confidence, right = _top(probs, labels)
    check_probs(outside, name="outside")
    k = probs.shape[1]
    if outside.shape[1] != k:
        raise InputError(f"outside has {outside.shape[1]} classes, expected {k} as inside.")
    start = 1 / k if span == "paper" else 0.0
    conf_out = outside.max(1).values.double()
    inside = width_bins(confidence, right, bins=bins, start=start)
    out = width_bins(conf_out, torch.full_like(conf_out, 1 / k), bins=bins, start=start)
    gap_in = (inside.right - inside.confidence) / len(confidence)
    gap_out = (out.right - out.confidence) / len(conf_out)
    return ((gap_in + gap_out).abs().sum() / 2).item()


def nll(probs: Probs, labels: Labels) -> float:
    """Mean negative log likelihood of the true class. From logits, `judge` loses no precision."""
    check_probs(probs)
    check_labels(labels, classes=probs.shape[1], rows=len(probs))
    return -probs.double().log().gather(1, labels[:, None].long()).mean().item()


def brier(probs: Probs, labels: Labels) -> float:
    """Mean squared distance between the probabilities and the corner of the true class.

    Equation: brier1950 (2)   P = 1/n · Σ_i Σ_k (p_ik − [y_i = k])², in [0, 2]

    >>> brier(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    0.5
    """
    check_probs(probs)
    check_labels(labels, classes=probs.shape[1], rows=len(probs))
    p = probs.double().clone()
    p[torch.arange(len(p)), labels.long()] -= 1
    return (p * p).sum(1).mean().item()


def reliability(
    confidence: Scores, right: Flags, *, classes: int, when: str, bins: int = 15
) -> list[dict[str, object]]:
    """Rows of a reliability diagram with bins of [1/K, 1]; empty bins are left out."""
    binned = width_bins(confidence, right, bins=bins, start=1 / classes)
    return [
        {
            "when": when,
            "bin_low": binned.low[m].item(),
            "bin_high": binned.high[m].item(),
            "n": int(binned.n[m]),
            "confidence": (binned.confidence[m] / binned.n[m]).item(),
            "accuracy": (binned.right[m] / binned.n[m]).item(),
        }
        for m in binned.n.nonzero()[:, 0].tolist()
    ]


def _top(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    check_probs(probs)
    check_labels(labels, classes=probs.shape[1], rows=len(probs))
    confidence, answer = probs.double().max(1)
    return confidence, answer == labels.to(answer.device)
