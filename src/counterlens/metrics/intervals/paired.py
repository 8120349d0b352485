"""Two classifiers on the same images: exact tests and the worst group.

Paper: McNemar 1947 (paired shares); Clopper and Pearson 1934 (bounds).
Differs: nothing. The interval of the worst group's change is ours; its derivation stands with it.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int64
from scipy.stats import beta, binom

from counterlens.runs import Number

RightAnswers = Bool[np.ndarray, "n"]
GroupIds = Int64[np.ndarray, "n"]
ALPHA = 0.05


def mcnemar(gained: int, lost: int) -> float:
    """Exact two-sided McNemar test: the answers that changed are fair coins if nothing did.

    Equation: mcnemar1947 exact test   p = 2 P(X ≤ min(b, c)), X ~ Bin(b + c, 1/2), at most 1

    >>> mcnemar(5, 5), round(mcnemar(0, 7), 4)
    (1.0, 0.0156)
    """
    return min(1.0, 2 * float(binom.cdf(min(gained, lost), gained + lost, 0.5)))


def more_lost(gained: int, lost: int) -> float:
    """One-sided: how likely so many losses are if gains and losses are fair coins.

    >>> more_lost(0, 3)
    0.125
    """
    return float(binom.sf(lost - 1, gained + lost, 0.5))


def exact_bounds(hits: int, n: int, alpha: float) -> tuple[float, float]:
    """One-sided lower and upper bound of a proportion, each missed with chance alpha at most.

    Equation: clopper1934 limits   L = Beta⁻¹(α; k, n − k + 1), U = Beta⁻¹(1 − α; k + 1, n − k)
    """
    low = float(beta.ppf(alpha, hits, n - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - alpha, hits + 1, n - hits)) if hits < n else 1.0
    return low, high


def worst_change(before: RightAnswers, after: RightAnswers, groups: GroupIds) -> Number:
    """Change of the worst group's accuracy, with bounds that hold whichever group is worst.

    Let a_g and a'_g be the accuracies before and after, d_g = a'_g − a_g, g the worst group after
    and h the worst before. Then min a' − min a = a'_g − min a, which is at least L'_g − min U and
    at least d_g; and it is min a' − a_h, which is at most min U' − L_h and at most d_h. So

        low = min_g max(L'_g − min U, L(d_g)),  high = max_h min(min U' − L_h, U(d_h)).

    The exact bounds of a, a', and of the shares of gained and lost images, whose difference is d,
    hold together at 95 % (Bonferroni: 8 for each group).
    """
    names = np.unique(groups)
    alpha = ALPHA / (8 * len(names))
    rows = [groups == g for g in names]

    def bounds(hits: RightAnswers) -> tuple[np.ndarray, np.ndarray]:
        ends = [exact_bounds(int(hits[part].sum()), int(part.sum()), alpha) for part in rows]
        return np.array([low for low, _ in ends]), np.array([high for _, high in ends])

    (low0, high0), (low1, high1) = bounds(before), bounds(after)
    (low_gain, high_gain), (low_loss, high_loss) = bounds(after & ~before), bounds(before & ~after)
    low = np.maximum(low1 - high0.min(), low_gain - high_loss).min()
    high = np.minimum(high1.min() - low0, high_gain - low_loss).max()
    worst = [min(float(right[part].mean()) for part in rows) for right in (before, after)]
    value = worst[1] - worst[0]
    protocol = (
        f"worst of {len(names)} groups, after − before on the same images; exact bounds of all "
        "groups together (Bonferroni)"
    )
    return Number(value, len(before), min(float(low), value), max(float(high), value), protocol)


def smallest_worst_gain(sizes: Sequence[int]) -> float | None:
    """The least gain of the worst group, around 50 %, that groups of these sizes could show.

    Nothing is lost in it; None where not even a gain from 25 to 75 % could be shown.
    """
    size, alpha = min(sizes), ALPHA / (8 * len(sizes))
    none_lost = exact_bounds(0, size, alpha)[1]
    for gained in range(1, size // 2 + 1):
        if exact_bounds(gained, size, alpha)[0] > none_lost:
            return gained / size
    return None
