"""Bootstrap intervals of AURRA, AUPR and FPR95: sorted once, resampled by counts.

Paper: Efron 1987 (BCa). The influence of an image on each statistic is worked out in closed form,
    so the acceleration costs no jackknife.
Differs: nothing.
"""

import numpy as np
from jaxtyping import Bool

from counterlens.metrics.intervals.closed_form import (
    ResampleCounts,
    Vector,
    bca,
    percentile,
    replicates,
    wilson,
)
from counterlens.metrics.ood import accepted_count

UNIT = (0.0, 1.0)


def aurra_interval(
    score: Vector, right: Bool[np.ndarray, "_"], value: float, *, seed: int = 0
) -> tuple[float, float]:
    """BCa interval of AURRA; all right or all wrong falls back to Wilson's."""
    n = len(score)
    if right.all() or not right.any():
        return wilson(float(right.sum()), n)
    order = np.argsort(-score, kind="stable")
    key, hit = score[order], right[order].astype(np.float64)
    starts = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
    ranks = np.arange(1, n + 1)

    def statistic(counts: ResampleCounts) -> Vector:
        rows = len(counts)
        if len(starts) == n:
            weight = np.broadcast_to(hit, (rows, n))
        else:  # images of equal score share their accuracy within the resample
            sums = np.add.reduceat(counts * hit, starts, axis=1)
            size = np.add.reduceat(counts, starts, axis=1)
            weight = np.repeat(sums / np.maximum(size, 1), np.diff(np.r_[starts, n]), axis=1)
        drawn = np.repeat(weight.ravel(), counts.ravel()).reshape(rows, n)
        return np.asarray((np.cumsum(drawn, axis=1) / ranks).mean(1))

    curve = np.cumsum(hit) / ranks
    # d AURRA / d weight_i = (acc_i − AURRA) + Σ_{m ≥ i} (hit_i − acc_m) / m
    pull = curve + hit * _tail(1 / ranks) - _tail(curve / ranks)
    return bca(value, replicates(statistic, [n], seed=seed), [pull], UNIT)


def aupr_interval(
    inside: Vector, outside: Vector, value: float, *, ratio: float | None = None, seed: int = 0
) -> tuple[float, float]:
    """BCa interval of AUPR at a fixed ratio of unknown to known images."""
    if inside.min() > outside.max() or len(outside) < 2 or len(inside) < 2:
        return wilson(value * len(outside), len(outside))
    share = ratio if ratio is not None else len(outside) / len(inside)
    known, unknown = np.sort(inside), np.sort(outside)
    at = np.unique(outside)  # precision counts only where recall steps
    upto_known = np.searchsorted(known, at, side="right")
    upto_unknown = np.searchsorted(unknown, at, side="right")

    def statistic(known_counts: ResampleCounts, unknown_counts: ResampleCounts) -> Vector:
        false = _upto(known_counts, upto_known) / len(known)
        recall = _upto(unknown_counts, upto_unknown) / len(unknown)
        step = np.diff(recall, axis=1, prepend=0.0)
        total = np.maximum(share * recall + false, 1e-300)
        return np.asarray((step * recall * share / total).sum(1))

    recall, false = upto_unknown / len(unknown), upto_known / len(known)
    step, total = np.diff(recall, prepend=0.0), share * recall + false
    # moving one known image below threshold i costs step_i · share · recall_i / total_i²
    cost = _tail(step * share * recall / total**2)
    gain = _tail(step * share * false / total**2)
    first_known = np.searchsorted(at, known)  # thresholds at or above this image
    first_unknown = np.searchsorted(at, unknown)
    pull_known = -np.r_[cost, 0.0][first_known]
    pull_unknown = (share * recall / total)[first_unknown] + gain[first_unknown]
    drawn = replicates(statistic, [len(known), len(unknown)], seed=seed)
    return bca(value, drawn, [pull_known, pull_unknown], UNIT)


def fpr95_interval(
    inside: Vector, outside: Vector, value: float, *, keep: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of FPR95, never narrower than Wilson's at the observed threshold."""
    known, unknown = np.sort(inside)[::-1], np.sort(outside)
    rank = accepted_count(len(known), keep)
    accepted = len(unknown) - np.searchsorted(unknown, known, side="left")  # by threshold

    def statistic(known_counts: ResampleCounts, unknown_counts: ResampleCounts) -> Vector:
        threshold = (np.cumsum(known_counts, axis=1) < rank).sum(1)
        total = np.cumsum(unknown_counts[:, ::-1], axis=1)
        total = np.concatenate([np.zeros_like(total[:, :1]), total], axis=1)
        return np.asarray(total[np.arange(len(total)), accepted[threshold]] / len(unknown))

    drawn = replicates(statistic, [len(known), len(unknown)], seed=seed)
    low, high = percentile(value, drawn, UNIT)
    narrow = wilson(value * len(unknown), len(unknown))
    return min(low, narrow[0]), max(high, narrow[1])


def _tail(values: Vector) -> Vector:
    return np.cumsum(values[::-1])[::-1]


def _upto(counts: ResampleCounts, ends: np.ndarray) -> np.ndarray:
    total = np.cumsum(counts, axis=1)
    total = np.concatenate([np.zeros_like(total[:, :1]), total], axis=1)
    return np.asarray(total[:, ends], dtype=np.float64)
