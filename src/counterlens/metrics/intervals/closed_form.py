"""95 % intervals: closed forms for proportions and AUROC, the bootstrap for the rest.

Paper: Wilson 1927 (proportions); Newcombe 1998 (differences of proportions, methods 10 and
    "square-and-add"); Brown, Cai, DasGupta 2001 (Jeffreys); DeLong et al. 1988 (AUROC); Efron 1987
    (bias-corrected and accelerated bootstrap).
Differs: AUROC intervals are symmetric on the logit scale, so they stay in (0, 1). An interval is
    widened, if need be, to hold its value.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float64, Int
from scipy.special import betaincinv, ndtr, ndtri
from scipy.stats import rankdata

from counterlens.errors import InputError

LEVEL = 0.95
REPLICATES = 1000
BoolArray = Bool[np.ndarray, "_"]
Vector = Float64[np.ndarray, "_"]  # one value per image; the axis has no name, for sets differ
_Integers = Int[np.ndarray, "_"]
ResampleCounts = Int[np.ndarray, "_ _"]  # replicate × image
Statistic = Callable[..., Vector]
"""From how often each image was drawn, one array of counts per set, to one value per replicate."""
Z = float(ndtri(0.5 + LEVEL / 2))
_CELLS = 4_000_000
_SURPRISE = -math.log((1 - LEVEL) / 2)  # an event never seen in n has probability below 3.7 / n


def wilson(hits: float, n: int, *, z: float = Z) -> tuple[float, float]:
    """Wilson interval of a proportion; `z` is the normal quantile of another level.

    Equation: wilson1927 §1   (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n)

    >>> [round(end, 4) for end in wilson(9, 10)], [round(end, 4) for end in wilson(0, 10)]
    ([0.5958, 0.9821], [0.0, 0.2775])
    """
    if n < 1 or not 0 <= hits <= n:
        raise InputError(f"{hits} hits of {n}: expected 0 ≤ hits ≤ n and n ≥ 1.")
    p = hits / n
    middle = p + z**2 / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n * n))
    scale = 1 + z**2 / n
    return holding(p, (middle - half) / scale, (middle + half) / scale, (0.0, 1.0))


def jeffreys(hits: float, n: int, *, z: float = Z) -> tuple[float, float]:
    """Jeffreys interval of a proportion: both ends err about equally often.

    Wilson's interval leans towards one half, so its lower end errs more often where the proportion
    is small; this one is for verdicts that rest on one end.

    Equation: brown2001 Jeffreys   quantiles α/2 and 1 − α/2 of Beta(x + ½, n − x + ½)

    >>> [round(end, 4) for end in jeffreys(1, 20)], [round(end, 4) for end in jeffreys(0, 20)]
    ([0.0054, 0.2108], [0.0, 0.1166])
    """
    if n < 1 or not 0 <= hits <= n:
        raise InputError(f"{hits} hits of {n}: expected 0 ≤ hits ≤ n and n ≥ 1.")
    tail = float(ndtr(-z))
    low = float(betaincinv(hits + 0.5, n - hits + 0.5, tail)) if hits > 0 else 0.0
    high = float(betaincinv(hits + 0.5, n - hits + 0.5, 1 - tail)) if hits < n else 1.0
    return holding(hits / n, low, high, (0.0, 1.0))


def holding(
    value: float, low: float, high: float, bounds: tuple[float, float] = (-math.inf, math.inf)
) -> tuple[float, float]:
    """Keep the interval inside the bounds and around the value."""
    return min(max(low, bounds[0]), value), max(min(high, bounds[1]), value)


def newcombe(hits: tuple[float, float], n: tuple[int, int], *, z: float = Z) -> tuple[float, float]:
    """Interval of the difference of two proportions measured on different images.

    Equation: newcombe1998 (10)   d − √((p₁−l₁)² + (u₂−p₂)²) … d + √((u₁−p₁)² + (p₂−l₂)²)
    """
    (p1, l1, u1), (p2, l2, u2) = ((h / m, *wilson(h, m, z=z)) for h, m in zip(hits, n, strict=True))
    d = p1 - p2
    low, high = d - math.hypot(p1 - l1, u2 - p2), d + math.hypot(u1 - p1, p2 - l2)
    return holding(d, low, high, (-1.0, 1.0))


def newcombe_paired(both: int, first: int, second: int, neither: int) -> tuple[float, float]:
    """Interval of the difference of two proportions measured on the same images.

    Equation: newcombe1998b (10)   as unpaired, less 2 φ times the cross product of the half-widths

    Args:
        both, first, second, neither: images that both, only the first, only the second, or
            neither of the two models got right.
    """
    n = both + first + second + neither
    p1, p2 = (both + first) / n, (both + second) / n
    (l1, u1), (l2, u2) = wilson(both + first, n), wilson(both + second, n)
    product = (both + first) * (second + neither) * (both + second) * (first + neither)
    cross: float = both * neither - first * second
    if cross > 0:  # Newcombe's continuity correction, only for positive association
        cross = max(cross - n / 2, 0)
    phi = cross / math.sqrt(product) if product else 0.0
    d = p1 - p2
    below, above = (p1 - l1, u2 - p2), (u1 - p1, p2 - l2)
    low = d - math.sqrt(max(below[0] ** 2 - 2 * phi * below[0] * below[1] + below[1] ** 2, 0))
    high = d + math.sqrt(max(above[0] ** 2 - 2 * phi * above[0] * above[1] + above[1] ** 2, 0))
    return holding(d, low, high, (-1.0, 1.0))


def delong_parts(inside: Vector, outside: Vector) -> tuple[Vector, Vector]:
    """How far each image pulls the AUROC: placement values of both sets.

    Equation: delong1988 (4)   V₁₀(i) = share of outside below x_i, V₀₁(j) = share of inside above
    """
    m, n = len(inside), len(outside)
    joint = rankdata(np.concatenate([inside, outside]))
    placed_in = (joint[:m] - rankdata(inside)) / n
    placed_out = 1 - (joint[m:] - rankdata(outside)) / m
    return placed_in, placed_out


def delong(inside: Vector, outside: Vector, *, z: float = Z) -> tuple[float, float]:
    """Interval of an AUROC, by DeLong's variance on the logit scale.

    Equation: delong1988 (5)   var = var(V₁₀)/m + var(V₀₁)/n

    Perfect separation has no variance to see; there the Wilson interval of the smaller set
    stands in, which is wider.
    """
    placed_in, placed_out = delong_parts(inside, outside)
    area, fewest = float(placed_in.mean()), min(len(inside), len(outside))
    if fewest < 2 or not 0 < area < 1:
        return wilson(area * fewest, fewest, z=z)
    variance = placed_in.var(ddof=1) / len(inside) + placed_out.var(ddof=1) / len(outside)
    logit, scale = math.log(area / (1 - area)), area * (1 - area)
    half = z * math.sqrt(variance) / scale
    low, high = (1 / (1 + math.exp(-end)) for end in (logit - half, logit + half))
    return holding(area, low, high)


def replicates(
    statistic: Statistic, sizes: Sequence[int], *, count: int = REPLICATES, seed: int = 0
) -> Vector:
    """Values of a statistic on `count` resamples; each set is resampled on its own."""
    rng = np.random.default_rng(seed)
    rows = max(1, min(count, _CELLS // sum(sizes)))
    values: list[Vector] = []
    while len(values) * rows < count:
        draws = [_draw(rng, rows, n) for n in sizes]
        values.append(statistic(*draws))
    return np.concatenate(values)[:count]


def _draw(rng: np.random.Generator, rows: int, n: int) -> ResampleCounts:
    picked = rng.integers(0, n, size=(rows, n), dtype=np.int64)
    picked += n * np.arange(rows)[:, None]
    return np.bincount(picked.ravel(), minlength=rows * n).reshape(rows, n)


def percentile(value: float, values: Vector, bounds: tuple[float, float]) -> tuple[float, float]:
    """The middle 95 % of the replicates."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return holding(value, float(low), float(high), bounds)


def bca(
    value: float, values: Vector, influence: Sequence[Vector], bounds: tuple[float, float]
) -> tuple[float, float]:
    """Bias-corrected and accelerated interval.

    Equation: efron1987 (3.8)   Φ(z₀ + (z₀ + z) / (1 − a (z₀ + z)))

    Args:
        value: the statistic on the images themselves.
        values: its bootstrap replicates.
        influence: how far each image pulls the statistic, one array per resampled set.
        bounds: the range of the statistic.
    """
    share = ((values < value).mean() + (values <= value).mean()) / 2
    pulls = np.concatenate([(pull - pull.mean()) / len(pull) for pull in influence])
    spread = float((pulls**2).sum())
    if not 0 < share < 1 or spread <= 0:
        return percentile(value, values, bounds)
    a = float((pulls**3).sum()) / (6 * spread**1.5)
    z0 = float(ndtri(share))
    ends = []
    for z in (z0 - Z, z0 + Z):
        room = 1 - a * z
        ends.append(float(ndtr(z0 + z / room)) if room > 0 else (0.0 if z < 0 else 1.0))
    low, high = np.quantile(values, ends)
    return holding(value, float(low), float(high), bounds)


def mean_interval(
    values: Vector, bounds: tuple[float, float], *, seed: int = 0
) -> tuple[float, float]:
    """BCa interval of a mean.

    Images that all give the same value leave nothing to resample. A value seen n times out of n
    has a share of at least 1 − 3.7/n (95 %), which bounds the mean if the range is bounded.
    """
    middle, n = float(values.mean()), len(values)
    if values.min() == values.max():
        unseen = min(1.0, _SURPRISE / n)
        low, high = (
            middle + unseen * (end - middle) if math.isfinite(end) else middle for end in bounds
        )
        return holding(middle, low, high, bounds)
    drawn = replicates(lambda counts: counts @ values / n, [n], seed=seed)
    return bca(middle, drawn, [values], bounds)
