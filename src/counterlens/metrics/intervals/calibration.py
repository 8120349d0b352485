"""Intervals of calibration errors, by inverting a simulated test.

What is estimated: the error over the whole population with the same bins (for equal-count bins:
with borders at the same quantiles). The measured value is a sum of absolute or squared
noise and so lies above it on average: a perfectly calibrated model never measures 0. A plain
bootstrap resamples that noise a second time and its interval often misses the truth altogether.

How: bin m keeps its confidence, and its true accuracy is taken to be conf_m + t · gap_m. t = 0 is a
calibrated model; gap is the measured profile acc − conf, drawn towards a parabola as far as
chance explains the distance from it, because a ragged profile would hide more noise than the true
one. For each t new measurements are simulated, and the interval holds the errors of those t under
which the measured value is not surprising.

Paper: Chuang & Lai 2000 (hybrid resampling: the bootstrap world moves with the parameter);
    Feldman & Cousins 1998, arXiv:physics/9711021 (which values are surprising near a boundary).
Differs: the likelihood ordering is taken from the normal approximation; the probability content is
    that of the simulated values, so the level does not lean on it.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.special import ndtr, ndtri

from counterlens.metrics.calibration import Bins
from counterlens.metrics.intervals.closed_form import LEVEL, Vector, _Integers, holding

_DRAWS = 1000
_NORMAL = 9.0  # a binomial of this variance is simulated as a normal


def ece_interval(bins: Bins, value: float, *, seed: int = 0) -> tuple[float, float]:
    """95 % interval of the population ECE with the same bins."""
    return _invert(_World(bins, seed, last=True), value)


def rms_interval(
    bins: Bins, value: float, *, last: bool = True, seed: int = 0
) -> tuple[float, float]:
    """95 % interval of the population RMS calibration error with the same bins."""
    return _invert(_World(bins, seed, last=last), value)


def acceptance(shift: float) -> tuple[float, float]:
    """Ends of the unsurprising region of a standard normal whose mean is bounded below.

    Equation: feldman1998 (4.1)   R(x) = p(x|μ) / p(x|max(0, x)); accept the highest R first

    Args:
        shift: distance of the mean from its lower bound, in standard deviations.

    Returns:
        Lowest and highest accepted deviation from the mean: (−∞, 1.64) at the bound, ±1.96 far
        from it, 95 % in between always.

    >>> [round(end, 2) for end in acceptance(0.5)], [round(end, 2) for end in acceptance(9.0)]
    ([-3.0, 1.66], [-1.96, 1.96])
    """
    two_sided = float(ndtri(0.5 + LEVEL / 2))
    if shift >= two_sided:
        return -two_sided, two_sided
    if shift <= 1e-6:
        return -math.inf, float(ndtri(LEVEL))
    small, large = float(ndtri(LEVEL)), two_sided
    for _ in range(50):
        upper = (small + large) / 2
        lower = -(upper**2 + shift**2) / (2 * shift)  # equal likelihood ratio at both ends
        if ndtr(upper) - ndtr(lower) < LEVEL:
            small = upper
        else:
            large = upper
    return lower, upper


class _World:
    """Bins whose true accuracy is set by t, able to measure themselves anew.

    The chance behind the simulated measurements is drawn once and shared by all t, so that the
    simulated values move smoothly with t.
    """

    def __init__(self, bins: Bins, seed: int, *, last: bool) -> None:
        filled = bins.n.numpy() > 0
        self.n = bins.n.numpy()[filled].astype(np.int64)
        self.total = int(self.n.sum())
        self.confidence = bins.confidence.numpy()[filled] / self.n
        self.width, self.seed = bins.width, seed
        self.used = slice(None) if last else slice(0, -1)
        gap = shrunken_gaps(bins.right.numpy()[filled] / self.n, self.confidence, self.n)
        if np.abs(gap[self.used]).max(initial=0.0) < 1e-9:  # no direction: go where there is room
            gap = np.where(self.confidence > 0.5, -1.0, 1.0) / self.total
        self.gap = gap
        rng = np.random.default_rng(seed)
        if self.width:  # the number of images per bin is chance as well
            self.drawn = rng.multinomial(self.total, self.n / self.total, size=_DRAWS)
        else:
            self.drawn = np.broadcast_to(self.n, (_DRAWS, len(self.n)))
        self.noise = rng.standard_normal(self.drawn.shape)

    def accuracy(self, t: float) -> np.ndarray:
        return np.asarray(np.clip(self.confidence + t * self.gap, 0.0, 1.0))

    def error(self, t: float) -> float:
        """The error over the whole population."""
        return float(self._error(self.n * self.accuracy(t), self.n))

    def measure(self, t: float) -> np.ndarray:
        """Errors measured on new images: hits are binomial, normal where that is the same."""
        p = self.accuracy(t)
        n = self.drawn
        right = n * p + np.sqrt(n * (p * (1 - p))) * self.noise
        rare = np.flatnonzero(self.n * p * (1 - p) < _NORMAL)
        if len(rare):
            rng = np.random.default_rng(self.seed + 1)
            right[:, rare] = rng.binomial(n[:, rare], p[rare])
        return self._error(right, n)

    def _error(self, right: np.ndarray, n: np.ndarray) -> np.ndarray:
        gap = right - n * self.confidence
        if self.width:
            return np.asarray(np.abs(gap).sum(-1) / self.total)
        square = (gap**2 / n)[..., self.used].sum(-1)
        return np.asarray(np.sqrt(square / self.total))


def shrunken_gaps(accuracy: Vector, confidence: Vector, n: Vector | _Integers) -> Vector:
    """The gap of each bin, shrunk towards a parabola in confidence.

    Equation: dersimonian1986 (8)   τ² = max(0, (Q − (M − 3)) / (Σ w − Σ w² / Σ w)), shrink by
              τ² / (τ² + noise)
    """
    gap = accuracy - confidence
    expected = (n * confidence + 0.5) / (n + 1)
    noise = expected * (1 - expected) / n
    weight = 1 / noise
    basis = np.vander(confidence - confidence.mean(), 3) * np.sqrt(weight)[:, None]
    factors, _, rank, _ = np.linalg.lstsq(basis, gap * np.sqrt(weight), rcond=1e-9)
    if rank >= len(gap):
        return np.asarray(gap)
    smooth = np.vander(confidence - confidence.mean(), 3) @ factors
    excess = (weight * (gap - smooth) ** 2).sum() - (len(gap) - rank)
    between = max(0.0, excess / (weight.sum() - (weight**2).sum() / weight.sum()))
    return np.asarray(smooth + between / (between + noise) * (gap - smooth))


def _invert(world: _World, value: float) -> tuple[float, float]:
    calibrated = world.measure(0.0).mean()

    def surprise(t: float) -> tuple[float, float, float]:
        drawn = world.measure(t)
        below = ((drawn < value - 1e-12).mean() + (drawn <= value + 1e-12).mean()) / 2
        spread = drawn.std() + 1e-300
        z = float(ndtri(np.clip(below, 0.5 / _DRAWS, 1 - 0.5 / _DRAWS)))
        return z, *acceptance(max(0.0, float((drawn.mean() - calibrated) / spread)))

    def too_low(t: float) -> bool:  # the value is too large for an error this small
        z, _, upper = surprise(t)
        return z > upper

    def too_high(t: float) -> bool:
        z, lower, _ = surprise(t)
        return z < lower

    low = world.error(_leave(world, too_low)) if too_low(0.0) else 0.0
    high = world.error(_leave(world, lambda t: not too_high(t)))
    return holding(value, low, high, (0.0, 1.0))


def _leave(world: _World, inside: Callable[[float], bool]) -> float:
    """Where t, growing from 0, makes `inside` false, or fills every bin."""
    small, large = 0.0, 0.25
    while inside(large):
        if world.error(2 * large) == world.error(large):  # all accuracies are 0 or 1
            return large
        small, large = large, 2 * large
    for _ in range(10):
        middle = (small + large) / 2
        if inside(middle):
            small = middle
        else:
            large = middle
    return (small + large) / 2
