"""Two models on the same images: differences, with intervals that know the images are shared.

Paper: Newcombe 1998 (paired proportions); DeLong et al. 1988 (two AUROCs on the same images);
    Efron 1987 (BCa bootstrap over images).
Differs: nothing.
"""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.checks import check_labels
from counterlens.errors import InputError
from counterlens.metrics.answers import Judged, answers, judge
from counterlens.metrics.calibration import Bins, ece_of, width_bins
from counterlens.metrics.intervals import (
    Counts,
    Vector,
    Z,
    delong_parts,
    holding,
    mean_interval,
    newcombe_paired,
    percentile,
    replicates,
)
from counterlens.metrics.numbers import Numbers, pair_counts
from counterlens.metrics.ood import auroc
from counterlens.metrics.selective import aurra
from counterlens.runs import Number, key_part
from counterlens.types import Labels, Logits

_BOTH = (-1.0, 1.0)
AnyLogits = Float[Tensor, "_ _"]


def paired_numbers(first: Logits, second: AnyLogits, labels: Labels, *, seed: int = 0) -> Numbers:
    """First model less second model, on the same labelled images.

    Both models must answer over the same classes; the temperature is 1 for both.
    """
    if first.shape != second.shape:
        raise InputError(
            f"the models gave logits of shape {tuple(first.shape)} and {tuple(second.shape)}, "
            "expected the same images and classes for both."
        )
    check_labels(labels, classes=first.shape[1], rows=len(first))
    one, two = judge(first, labels), judge(second, labels)
    n = len(labels)
    tail = "first less second on the same images"
    hits = newcombe_paired(*pair_counts(one.right, two.right))
    gap = (one.right.double() - two.right.double()).mean().item()
    out = {"accuracy.top1": Number(gap, n, *hits, f"accuracy, {tail}; Newcombe paired interval")}
    out["calibration.ece"] = _ece(one, two, first.shape[1], tail, seed)
    for key, a, b, bounds in (
        ("nll", one.nll, two.nll, (-math.inf, math.inf)),
        ("brier", one.brier, two.brier, (-2.0, 2.0)),
    ):
        values = (a - b).numpy()
        low, high = mean_interval(values, bounds, seed=seed)
        text = f"{key}, {tail}; BCa bootstrap"
        out[f"calibration.{key}"] = Number(float(values.mean()), n, low, high, text)
    out["selective.aurra"] = _aurra(one, two, tail, seed)
    return out


def paired_auroc(
    first: tuple[AnyLogits, AnyLogits],
    second: tuple[AnyLogits, AnyLogits],
    *,
    name: str,
    temperatures: tuple[float, float] = (1.0, 1.0),
) -> Numbers:
    """Difference of two AUROCs on the same known and the same unknown images.

    Equation: delong1988 (6)   var(A₁ − A₂) = var(V₁₀¹ − V₁₀²)/m + var(V₀₁¹ − V₀₁²)/n

    Args:
        first, second: logits of the known and of the unknown images, by each model.
        name: of the unknown set.
        temperatures: of both models.
    """
    areas, parts = [], []
    for (known, unknown), heat in zip((first, second), temperatures, strict=True):
        a = answers(known, temperature=heat).score
        b = answers(unknown, temperature=heat).score
        areas.append(auroc(a, b))
        parts.append(delong_parts(a.numpy(), b.numpy()))
    (in1, out1), (in2, out2) = parts
    if len(in1) != len(in2) or len(out1) != len(out2):
        raise InputError("the models saw different numbers of images, expected the same images.")
    m, n = len(in1), len(out1)
    gap = areas[0] - areas[1]
    text = f"AUROC, first less second on the same images, {m} known, {n} unknown; DeLong paired"
    if min(m, n) < 2:
        ends = _BOTH
    else:
        variance = (in1 - in2).var(ddof=1) / m + (out1 - out2).var(ddof=1) / n
        half = Z * math.sqrt(variance)
        ends = holding(gap, gap - half, gap + half, _BOTH)
    return {f"ood.{key_part(name)}.auroc": Number(gap, n, *ends, text)}


def _ece(one: Judged, two: Judged, classes: int, tail: str, seed: int) -> Number:
    binned = [width_bins(j.confidence, j.right, start=1 / classes) for j in (one, two)]
    value = ece_of(binned[0]) - ece_of(binned[1])
    parts = [_gaps(judged, bins) for judged, bins in zip((one, two), binned, strict=True)]
    n = len(one.right)

    def statistic(counts: Counts) -> Vector:
        drawn = counts.astype(np.float64)
        errors = [np.abs(drawn @ part).sum(1) / n for part in parts]
        return np.asarray(errors[0] - errors[1])

    low, high = percentile(value, replicates(statistic, [n], seed=seed), _BOTH)
    text = f"ECE (15 bins of [1/K, 1]), {tail}; percentile bootstrap"
    return Number(value, n, low, high, text)


def _gaps(judged: Judged, bins: Bins) -> np.ndarray:
    """Image × bin: right − confidence in the bin of the image, 0 elsewhere."""
    index = torch.bucketize(judged.confidence, bins.high[:-1])
    out = np.zeros((len(index), len(bins.n)))
    out[np.arange(len(index)), index.numpy()] = (judged.right.double() - judged.confidence).numpy()
    return out


def _aurra(one: Judged, two: Judged, tail: str, seed: int) -> Number:
    n = len(one.right)
    value = aurra(one.score, one.right) - aurra(two.score, two.right)
    sides = []
    for judged in (one, two):
        order = judged.score.argsort(descending=True, stable=True).numpy()
        sides.append((order, judged.right.numpy()[order].astype(np.float64)))
    ranks = np.arange(1, n + 1)

    def statistic(counts: Counts) -> Vector:
        areas = []
        for order, hit in sides:
            sorted_counts = counts[:, order]
            every = np.broadcast_to(hit, sorted_counts.shape)
            drawn = np.repeat(every.ravel(), sorted_counts.ravel()).reshape(counts.shape)
            areas.append((np.cumsum(drawn, axis=1) / ranks).mean(1))
        return np.asarray(areas[0] - areas[1])

    low, high = percentile(value, replicates(statistic, [n], seed=seed), _BOTH)
    return Number(value, n, low, high, f"AURRA, {tail}; percentile bootstrap")
