"""How well the held-out images pin the temperature down.

Paper: Efron 1987 (bootstrap); White 1982 (variance of a parameter fitted to a wrong model).
Differs: the resamples try every second temperature of the grid, 1.6 % apart, which is far finer
    than the interval.
"""

import math

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from counterlens.checks import check_labels
from counterlens.metrics.answers import check_finite_logits, judge
from counterlens.metrics.calibration import width_bins
from counterlens.metrics.intervals.calibration import shrunken_gaps
from counterlens.metrics.intervals.closed_form import ResampleCounts, Vector, Z, holding, replicates
from counterlens.metrics.temperature import (
    BINS,
    HIGHEST,
    LOWEST,
    bin_index,
    grid,
    grid_confidence,
    lowest,
)
from counterlens.types import Labels, Logits

_REPLICATES = 400
_PINNED = 1000  # with so many images no resample lands farther than a factor of two away


def by_ece_with_interval(
    logits: Logits, labels: Labels, *, seed: int = 0
) -> tuple[float, tuple[float, float]]:
    """`by_ece` and its interval, from one table of confidences.

    Images are resampled and their answers drawn anew from the accuracies at the fitted
    temperature, freed from the noise of single bins. Resampling the answers as they are would
    add noise to noise: measured, such intervals hold the truth 98 to 100 % of the time.
    """
    check_finite_logits(logits)
    check_labels(labels, classes=logits.shape[1], rows=len(logits))
    n, k = logits.shape
    at = grid()
    confidence = grid_confidence(logits, at)
    value = lowest(at, confidence, logits.argmax(1).cpu() == labels.cpu(), classes=k)
    if n < 2:
        return value, (LOWEST, HIGHEST)
    reach = 2.0 if n >= _PINNED else math.inf
    near = torch.arange(0, len(at), 2)
    near = near[(at[near] * reach >= value) & (at[near] <= value * reach)]
    at, confidence = at[near], confidence[near]
    accuracy = _accuracy(logits, labels, value)
    cells = bin_index(confidence, classes=k, bins=BINS) + BINS * torch.arange(len(at))[:, None]
    hit_cells = _sparse(cells, torch.ones_like(confidence))
    conf_cells = _sparse(cells, confidence)
    rng = np.random.default_rng([seed, 1])

    def statistic(counts: ResampleCounts) -> Vector:
        hits = rng.binomial(counts, accuracy)
        gaps = hit_cells @ hits.T.astype(np.float64) - conf_cells @ counts.T.astype(np.float64)
        errors = np.abs(gaps).reshape(len(at), BINS, -1).sum(1)
        return np.asarray(at.numpy()[errors.argmin(0)])

    drawn = replicates(statistic, [n], count=_REPLICATES, seed=seed)
    reach = math.exp(Z * float(np.log(drawn).std()))
    return value, holding(value, value / reach, value * reach, (LOWEST, HIGHEST))


def _accuracy(logits: Logits, labels: Labels, value: float) -> Vector:
    """How likely each answer is right, judged by the bins at the fitted temperature."""
    judged = judge(logits, labels, temperature=value)
    bins = width_bins(judged.confidence, judged.right, bins=BINS, start=1 / logits.shape[1])
    filled = (bins.n > 0).numpy()
    n = bins.n.numpy()[filled]
    gaps = np.zeros(BINS)
    gaps[filled] = shrunken_gaps(
        bins.right.numpy()[filled] / n, bins.confidence.numpy()[filled] / n, n
    )
    own = gaps[bin_index(judged.confidence, classes=logits.shape[1], bins=BINS).numpy()]
    return np.asarray(np.clip(judged.confidence.numpy() + own, 0.0, 1.0))


def _sparse(cells: Tensor, values: Tensor) -> csr_array:
    """Rows: temperature × bin; columns: images."""
    steps, n = cells.shape
    columns = np.tile(np.arange(n), steps)
    shape = (steps * BINS, n)
    return csr_array((values.ravel().numpy(), (cells.ravel().numpy(), columns)), shape=shape)


def by_nll_interval(logits: Logits, labels: Labels, value: float) -> tuple[float, float]:
    """Interval of the temperature with the lowest NLL, by its sandwich variance on the log scale.

    Equation: white1982 (3.2)   var β = mean(slope²) / (n · mean(curvature)²), at β = 1/T
    """
    z = logits.detach().cpu().double()
    beta = 1 / value
    p = torch.softmax(z * beta, 1)
    mean = (p * z).sum(1)
    slope = mean - z.gather(1, labels.cpu()[:, None].long())[:, 0]
    curvature = ((p * z * z).sum(1) - mean**2).mean().item()
    if curvature <= 0 or len(z) < 2:
        return LOWEST, max(HIGHEST, value)
    deviation = slope.std().item() / (math.sqrt(len(z)) * curvature * beta)
    reach = math.exp(min(Z * deviation, 50.0))
    return holding(value, value / reach, value * reach, (LOWEST, 20.0))
