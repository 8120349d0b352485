"""What a repair did, on images that neither fitted nor chose anything."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool
from scipy.stats import beta, binom

from counterlens.errors import InputError
from counterlens.metrics.intervals.closed_form import newcombe_paired
from counterlens.runs import Number
from counterlens.workflows.repair.groups import Codes, Grouped

Right = Bool[np.ndarray, "n"]
Verdict = Literal["better", "not shown", "worse"]
KEYS = ("groups.worst", "accuracy.top1")
ALPHA = 0.05


@dataclass(frozen=True)
class Receipt:
    """Before and after on the check images.

    Args:
        changes: difference after − before of each of KEYS, with its interval.
        rows: one per class, group and the whole, with tests.
        verdict: better, not shown or worse.
        why: the verdict in a sentence.
    """

    changes: Mapping[str, Number]
    rows: Sequence[dict[str, Any]]
    verdict: Verdict
    why: str


def certify(
    before: Right, after: Right, by: Grouped, *, want: str, allow: Mapping[str, float]
) -> Receipt:
    """Compare the two on the same images and decide.

    Args:
        before, after: which answers are right.
        by: classes and groups of the images.
        want: what should rise, one of KEYS.
        allow: the lowest change of each key that is accepted, e.g. −0.01.
    """
    everything = np.ones(len(before), dtype=bool)
    parts = [("all", "all images", everything)]
    parts += [("class", by.classes[k], by.labels == k) for k in np.unique(by.labels)]
    parts += [("group", by.group_name(g), by.groups == g) for g in by.sizes()]
    rows = [
        {"kind": kind, "name": name, **paired(before[rows], after[rows])}
        for kind, name, rows in parts
    ]
    for row, p in zip(rows, holm([row["p_worse"] for row in rows]), strict=True):
        row["p_worse_holm"], row["worse"] = p, p <= ALPHA
    changes = {
        "groups.worst": worst_change(before, after, by.groups),
        "accuracy.top1": accuracy_change(before, after),
    }
    verdict, why = decide(changes, want, allow)
    worse = [str(row["name"]) for row in rows if row["worse"]]
    if worse:
        why += f" Clearly worse (Holm): {', '.join(worse)}."
    return Receipt(changes, rows, verdict, why)


def paired(before: Right, after: Right) -> dict[str, Any]:
    """One row: accuracies, difference with Newcombe's interval, exact McNemar tests."""
    gained, lost = int((after & ~before).sum()), int((before & ~after).sum())
    both, neither = int((before & after).sum()), int((~before & ~after).sum())
    low, high = newcombe_paired(both, gained, lost, neither)
    return {
        "n": len(before),
        "before": float(before.mean()),
        "after": float(after.mean()),
        "change": (gained - lost) / len(before),
        "low": low,
        "high": high,
        "gained": gained,
        "lost": lost,
        "p": mcnemar(gained, lost),
        "p_worse": float(binom.sf(lost - 1, gained + lost, 0.5)),
    }


def mcnemar(gained: int, lost: int) -> float:
    """Exact two-sided McNemar test: the answers that changed are fair coins if nothing did.

    Equation: mcnemar1947 §2   p = 2 P(X ≤ min(b, c)), X ~ Bin(b + c, 1/2), at most 1
    """
    return min(1.0, 2 * float(binom.cdf(min(gained, lost), gained + lost, 0.5)))


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p-values.

    Equation: holm1979 §3   p̃_(i) = max_{j ≤ i} min(1, (m − j + 1) p_(j))
    """
    adjusted, highest = [0.0] * len(p), 0.0
    for rank, i in enumerate(np.argsort(p, kind="stable")):
        highest = max(highest, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = highest
    return adjusted


def exact_bounds(hits: int, n: int, alpha: float) -> tuple[float, float]:
    """One-sided lower and upper bound of a proportion, each missed with chance alpha at most.

    Equation: clopper1934 §2   L = Beta⁻¹(α; k, n − k + 1), U = Beta⁻¹(1 − α; k + 1, n − k)
    """
    low = float(beta.ppf(alpha, hits, n - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - alpha, hits + 1, n - hits)) if hits < n else 1.0
    return low, high


def worst_change(before: Right, after: Right, groups: Codes) -> Number:
    """Change of the worst group's accuracy, with bounds that hold whichever group is worst.

    low = min L(after) − min U(before) and high = min U(after) − min L(before), where the 4 G
    bounds are exact and hold together at 95 % (Bonferroni).
    """
    found = np.unique(groups)
    alpha = ALPHA / (4 * len(found))
    ends, values = [], []
    for right in (before, after):
        parts = [right[groups == g] for g in found]
        bounds = [exact_bounds(int(part.sum()), len(part), alpha) for part in parts]
        ends.append((min(low for low, _ in bounds), min(high for _, high in bounds)))
        values.append(min(float(part.mean()) for part in parts))
    protocol = f"worst of {len(found)} groups, after − before; exact bounds, Bonferroni"
    low, high = ends[1][0] - ends[0][1], ends[1][1] - ends[0][0]
    return Number(values[1] - values[0], len(before), low, high, protocol)


def accuracy_change(before: Right, after: Right) -> Number:
    """Change of the accuracy."""
    row = paired(before, after)
    protocol = "accuracy after − before on the same images; Newcombe's paired interval"
    return Number(row["change"], row["n"], row["low"], row["high"], protocol)


def decide(
    changes: Mapping[str, Number], want: str, allow: Mapping[str, float]
) -> tuple[Verdict, str]:
    """Better only where the interval shows both the gain and that losses stay as allowed."""
    wanted = changes[want]
    assert wanted.low is not None and wanted.high is not None
    told = f"{want} changed by {_points(wanted)} on {wanted.n} check images"
    lost = [key for key, limit in allow.items() if (changes[key].high or 0.0) < limit]
    if wanted.high < 0 or lost:
        more = [f"; {key} fell by more than allowed: {_points(changes[key])}" for key in lost]
        return "worse", f"Worse: {told}{''.join(more)}."
    if wanted.low <= 0:
        return "not shown", f"Not shown: {told}, and the interval holds zero."
    open_ = [key for key, limit in allow.items() if (changes[key].low or 0.0) < limit]
    if open_:
        reason = f"that {open_[0]} stays above {allow[open_[0]]:+g} is not: "
        return "not shown", f"Not shown: {told}, but {reason}{_points(changes[open_[0]])}."
    return "better", f"Better: {told}."


def _points(change: Number) -> str:
    value, low, high = (100 * (part or 0.0) for part in (change.value, change.low, change.high))
    return f"{value:+.1f} points (95 % interval {low:+.1f} to {high:+.1f})"


def parse_allow(texts: Sequence[str]) -> dict[str, float]:
    """Read KEY:CHANGE.

    >>> parse_allow(["accuracy.top1:-0.01"])
    {'accuracy.top1': -0.01}
    """
    made = {}
    for text in texts:
        key, _, change = text.rpartition(":")
        try:
            limit = float(change)
        except ValueError:
            limit = float("nan")
        if key not in KEYS or not -1 <= limit <= 0:
            raise InputError(
                f"--allow {text!r}: expected KEY:CHANGE with {' or '.join(KEYS)} and a change of "
                "−1 to 0, e.g. accuracy.top1:-0.01."
            )
        made[key] = limit
    return made


def smallest_shown(sizes: Sequence[int]) -> float | None:
    """The least gain from and to about 50 % that the check images could show; None: not any."""
    alpha, n = ALPHA / (4 * len(sizes)), min(sizes)
    for extra in range(1, n + 1):
        below, above = (n - extra) // 2, (n - extra) // 2 + extra
        if exact_bounds(above, n, alpha)[0] > exact_bounds(below, n, alpha)[1]:
            return extra / n
    return None
