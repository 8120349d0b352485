"""Differences between two models measured on the same images, from the logits their runs kept.

Paper: Bonett and Price 2012, Adjusted Wald confidence interval for a difference of binomial
       proportions based on paired data; DeLong et al. 1988, Comparing the areas under two or more
       correlated receiver operating characteristic curves.
Differs: nothing.
"""

from collections.abc import Iterable, Mapping
from itertools import combinations
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from counterlens.runs import Kept

Z = 1.959963984540054  # two-sided 95 %


def paired_rows(kept: Mapping[str, Mapping[str, Kept]]) -> list[dict[str, Any]]:
    """One row per pair of models and metric that both kept logits for."""
    return [
        row
        for first, second in combinations(kept, 2)
        for row in _pair(first, second, kept[first], kept[second])
    ]


def _pair(
    first: str, second: str, one: Mapping[str, Kept], two: Mapping[str, Kept]
) -> Iterable[dict[str, Any]]:
    shared = [name for name in one if name in two and one[name].role == two[name].role]
    inside = next((name for name in shared if one[name].role == "in"), None)
    if inside is None:
        return
    left, right = _common(one[inside], two[inside])
    base = {"first": first, "second": second}
    if len(left) and np.array_equal(one[inside].labels[left], two[inside].labels[right]):
        a, b = _right(one[inside], left), _right(two[inside], right)
        known = one[inside].labels[left] >= 0
        a, b = a[known], b[known]
        if len(a):
            value, low, high = difference_of_shares(a, b)
            told = f"paired on {len(a):,} images of {inside}, adjusted Wald interval (bonett2012)"
            yield {**base, **_row("accuracy.top1", value, low, high, len(a), told), **_counts(a, b)}
    scores = [_confidence(k[inside], rows) for k, rows in ((one, left), (two, right))]
    for name in (n for n in shared if one[n].role == "ood"):
        rows = _common(one[name], two[name])
        out = [_confidence(k[name], r) for k, r in zip((one, two), rows, strict=True)]
        if len(out[0]) < 2 or len(scores[0]) < 2:
            continue
        value, low, high = difference_of_aurocs(scores[0], out[0], scores[1], out[1])
        m, n = len(scores[0]), len(out[0])
        told = f"paired on {m:,} images of {inside} and {n:,} of {name} (delong1988)"
        yield {**base, **_row(f"ood.{name}.auroc", value, low, high, m + n, told)}


def robust_rows(folders: Mapping[str, Path]) -> list[dict[str, Any]]:
    """One row per pair of models and attack that both were put through on the same images."""
    kept = {model: _survivors(folder) for model, folder in folders.items()}
    rows = []
    for first, second in combinations(kept, 2):
        for attack in (a for a in kept[first] if a in kept[second]):
            one, two = kept[first][attack], kept[second][attack]
            both = [name for name in one if name in two]
            if not both:
                continue
            a, b = (np.array([flags[name] for name in both], dtype=bool) for flags in (one, two))
            told = f"paired on {len(both):,} attacked images, adjusted Wald interval (bonett2012)"
            key = f"robust.{attack}.accuracy"
            row = _row(key, *difference_of_shares(a, b), len(both), told)
            rows.append({"first": first, "second": second, **row, **_counts(a, b)})
    return rows


def _survivors(folder: Path) -> dict[str, dict[str, bool]]:
    """Per attack, which images stayed right."""
    found = {}
    for path in sorted((folder / "tables").glob("adversarial-*.npz")):
        with np.load(path) as file:
            flags = zip(file["all_ids"].tolist(), file["robust"].tolist(), strict=True)
            found[path.stem.removeprefix("adversarial-")] = dict(flags)
    return found


def _counts(a: Bool[np.ndarray, "n"], b: Bool[np.ndarray, "n"]) -> dict[str, int]:
    return {
        "both_right": int((a & b).sum()),
        "only_first": int((a & ~b).sum()),
        "only_second": int((~a & b).sum()),
        "both_wrong": int((~a & ~b).sum()),
    }


def _row(key: str, value: float, low: float, high: float, n: int, protocol: str) -> dict[str, Any]:
    return {
        "key": key,
        "difference": value,
        "low": low,
        "high": high,
        "n": n,
        "clear": bool(low > 0 or high < 0),
        "protocol": protocol,
    }


def difference_of_shares(
    a: Bool[np.ndarray, "n"], b: Bool[np.ndarray, "n"]
) -> tuple[float, float, float]:
    """Share of `a` minus share of `b` on the same images, with its 95 % interval.

    Equation: bonett2012 (adjusted Wald)   d̃ ± z √((p̃₁₂ + p̃₂₁ − d̃²)/(n + 2)), d̃ = p̃₁₂ − p̃₂₁,
        p̃ = (f + 1)/(n + 2)

    >>> difference_of_shares(np.ones(8, bool), np.ones(8, bool))[0]
    0.0
    """
    n = len(a)
    only_a, only_b = int((a & ~b).sum()), int((~a & b).sum())
    value = (only_a - only_b) / n
    p, q = (only_a + 1) / (n + 2), (only_b + 1) / (n + 2)
    spread = Z * sqrt((p + q - (p - q) ** 2) / (n + 2))
    low, high = max(p - q - spread, -1.0), min(p - q + spread, 1.0)
    return value, min(low, value), max(high, value)


def difference_of_aurocs(
    in_a: Float64[np.ndarray, "m"],
    out_a: Float64[np.ndarray, "n"],
    in_b: Float64[np.ndarray, "m"],
    out_b: Float64[np.ndarray, "n"],
) -> tuple[float, float, float]:
    """AUROC of scores `a` minus that of `b` on the same images, with its 95 % interval.

    Equation: delong1988 (variance)   var(θ̂ₐ − θ̂_b) = var(V₁₀ᵃ − V₁₀ᵇ)/m + var(V₀₁ᵃ − V₀₁ᵇ)/n
    """
    (in_one, out_one), (in_two, out_two) = _components(in_a, out_a), _components(in_b, out_b)
    value = float(in_one.mean() - in_two.mean())
    variance = (in_one - in_two).var(ddof=1) / len(in_a) + (out_one - out_two).var(ddof=1) / len(
        out_a
    )
    spread = Z * sqrt(float(variance))
    return value, max(value - spread, -1.0), min(value + spread, 1.0)


def _components(
    inside: Float64[np.ndarray, "m"], outside: Float64[np.ndarray, "n"]
) -> tuple[Float64[np.ndarray, "m"], Float64[np.ndarray, "n"]]:
    """Per image, the share of the other side it beats; ties count half."""
    ranks = _ranks(np.concatenate([inside, outside]))
    m, n = len(inside), len(outside)
    beats = (ranks[:m] - _ranks(inside)) / n
    beaten = 1 - (ranks[m:] - _ranks(outside)) / m
    return beats, beaten


def _ranks(values: Float64[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
    """Ranks from 1; equal values share their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2
    return np.asarray(middle[place], dtype=np.float64)


def _common(one: Kept, two: Kept) -> tuple[Any, Any]:
    """Rows of the two that show the same images, in the same order."""
    place = {name: i for i, name in enumerate(two.ids)}
    both = [(i, place[name]) for i, name in enumerate(one.ids) if name in place]
    left, right = np.asarray(both, dtype=np.int64).reshape(-1, 2).T
    return left, right


def _right(kept: Kept, rows: Any) -> Any:
    return np.asarray(kept.logits[rows]).argmax(1) == kept.labels[rows]


def _confidence(kept: Kept, rows: Any) -> Any:
    """Log-confidence after temperature, in float64 so that near-certain answers do not tie."""
    z = np.asarray(kept.logits[rows], dtype=np.float64) / kept.temperature
    others = np.exp(z - z.max(1, keepdims=True))
    others[np.arange(len(z)), z.argmax(1)] = 0
    return -np.log1p(others.sum(1))
