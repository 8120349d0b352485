"""Several intervals or tests at once: levels that hold for all of them together.

Paper: Holm 1979 (step-down tests); Dunn 1961 (Bonferroni intervals); Cochran 1954 (strata).
Differs: the test over strata is the exact conditional one, not its normal approximation.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri
from scipy.stats import hypergeom

from counterlens.metrics.intervals.closed_form import LEVEL


def bonferroni(count: int) -> float:
    """Normal quantile under which `count` two-sided intervals hold together at 95 %.

    Equation: dunn1961 Bonferroni   z = Φ⁻¹(1 − α / 2m)

    >>> round(bonferroni(1), 3), round(bonferroni(10), 3)
    (1.96, 2.807)
    """
    return float(ndtri(1 - (1 - LEVEL) / (2 * max(1, count))))


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p-values: those at most α are rejected, all errors together at level α.

    Equation: holm1979 step-down   p̃_(i) = max_{j ≤ i} min(1, (m − j + 1) p_(j))

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, highest = [0.0] * len(p), 0.0
    for rank, i in enumerate(np.argsort(p, kind="stable")):
        highest = max(highest, min(1.0, (len(p) - rank) * float(p[i])))
        adjusted[i] = highest
    return adjusted


def least_images(half: float, z: float) -> int:
    """Images whose Wilson interval is at most ± half wide, whatever the share.

    The widest Wilson interval is that of one half: half-width z / (2 √(n + z²)).

    >>> least_images(0.1, 1.96)
    93
    """
    return max(1, math.ceil(z * z * (1 / (4 * half * half) - 1) - 1e-9))


def jointly_judged(sizes: Sequence[int], half: float) -> tuple[list[bool], int]:
    """Which sets are large enough to be judged together, and the size that it takes.

    The more sets are judged, the wider each interval, so the largest sets are taken until the
    next one is too small for the number of sets that it would make.
    """
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    most = 0
    for count, i in enumerate(order, 1):
        if sizes[i] >= least_images(half, bonferroni(count)):
            most = count
    judged = [False] * len(sizes)
    for i in order[:most]:
        judged[i] = True
    return judged, least_images(half, bonferroni(max(1, most)))


def stratified_test(
    hits: Sequence[int], n: Sequence[int], totals: Sequence[tuple[int, int]]
) -> float:
    """One-sided exact p-value that the hits of a part are more than its strata explain.

    Given the hits of each stratum, those of the part are hypergeometric; their sum over the
    strata is convolved exactly.

    Equation: cochran1954 exact   P(Σ_k X_k ≥ Σ_k x_k), X_k ~ Hypergeometric(N_k, H_k, n_k)

    Args:
        hits, n: hits and images of the part, by stratum.
        totals: hits H and images N of each whole stratum.
    """
    chance = np.ones(1)
    for drawn, (marked, size) in zip(n, totals, strict=True):
        if drawn:
            chance = np.convolve(chance, hypergeom.pmf(np.arange(drawn + 1), size, marked, drawn))
    return float(min(1.0, chance[sum(hits) :].sum()))
