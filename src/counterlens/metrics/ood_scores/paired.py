"""Which OOD score is better: differences of AUROC on the same images, for all pairs at once.

Paper: Romano & Wolf 2005 (romano2005) for the joint critical value of a bootstrap.
Differs: nothing; images are resampled, known and unknown apart, and all scores see the same draw.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from counterlens.metrics.intervals.closed_form import (
    LEVEL,
    REPLICATES,
    ResampleCounts,
    Vector,
    holding,
    replicates,
)

_SURPRISE = 3.7  # an event never seen in n images has probability below 3.7 / n


@dataclass(frozen=True)
class Difference:
    """AUROC of one score less that of another, with an interval that holds for all pairs."""

    first: str
    second: str
    value: float
    low: float
    high: float


def auroc_replicates(
    inside: Vector, *outside: Vector, count: int = REPLICATES, seed: int = 0
) -> Vector:
    """AUROC of bootstrap resamples, its mean where there are several unknown sets.

    The same seed and sizes draw the same images.
    """
    known = np.argsort(inside)
    values = inside[known]
    sets = []
    for scores in outside:
        order = np.argsort(scores)
        below, upto = (np.searchsorted(scores[order], values, side=s) for s in ("left", "right"))
        sets.append((order, below, upto))

    def statistic(known_counts: ResampleCounts, *unknown_counts: ResampleCounts) -> Vector:
        drawn = known_counts[:, known]
        areas = np.zeros(len(drawn))
        for counts, (order, below, upto) in zip(unknown_counts, sets, strict=True):
            total = np.cumsum(counts[:, order], axis=1)
            total = np.concatenate([np.zeros_like(total[:, :1]), total], axis=1)
            wins = (drawn * (total[:, below] + total[:, upto])).sum(1)
            areas += wins / (2.0 * len(values) * len(order))
        return areas / len(sets)

    sizes = [len(values), *(len(scores) for scores in outside)]
    return replicates(statistic, sizes, count=count, seed=seed)


def differences(
    scores: Mapping[str, Sequence[Vector]], *, count: int = REPLICATES, seed: int = 0
) -> list[Difference]:
    """Every pair of scores with simultaneous 95 % intervals.

    Equation: romano2005 bootstrap   d_j ± c · s_j, c the 95 % quantile of max_j |d*_j − d_j| / s_j

    Args:
        scores: of the known images, then of each unknown set, whose AUROCs are averaged; the same
            images for every score.
    """
    names = list(scores)
    drawn = np.stack([auroc_replicates(*scores[n], count=count, seed=seed) for n in names])
    exact = np.array([mean_auroc(*scores[n]) for n in names])
    pairs = [(i, j) for i in range(len(names)) for j in range(len(names)) if i < j]
    if not pairs:
        return []
    first, second = (list(part) for part in zip(*pairs, strict=True))
    value = exact[first] - exact[second]
    moved: Float64[np.ndarray, "p r"] = drawn[first] - drawn[second] - value[:, None]
    spread = moved.std(axis=1, ddof=1)
    varies = spread > 1e-12
    critical = 0.0
    if varies.any():
        critical = float(np.quantile((np.abs(moved[varies]).T / spread[varies]).max(1), LEVEL))
    fewest = min(len(part) for part in scores[names[0]])
    half = np.where(varies, critical * spread, min(1.0, _SURPRISE / fewest))
    rows = []
    for p, (i, j) in enumerate(pairs):
        low, high = holding(
            float(value[p]), float(value[p] - half[p]), float(value[p] + half[p]), (-1.0, 1.0)
        )
        rows.append(Difference(names[i], names[j], float(value[p]), low, high))
    return rows


def mean_auroc(inside: Vector, *outside: Vector) -> float:
    """AUROC against each unknown set, averaged."""
    areas = []
    for scores in outside:
        others = np.sort(scores)
        wins = np.searchsorted(others, inside, "left") + np.searchsorted(others, inside, "right")
        areas.append(float(wins.sum()) / (2 * len(inside) * len(others)))
    return sum(areas) / len(areas)
