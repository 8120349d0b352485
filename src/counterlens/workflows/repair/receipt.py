"""What a repair did, on images that neither fitted nor chose anything."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from counterlens.errors import InputError
from counterlens.metrics import calibration
from counterlens.metrics.intervals.closed_form import mean_interval, newcombe_paired, wilson
from counterlens.metrics.intervals.multiple import holm
from counterlens.metrics.intervals.paired import (
    ALPHA,
    RightAnswers,
    exact_bounds,
    mcnemar,
    more_lost,
    worst_change,
)
from counterlens.runs import Number
from counterlens.workflows.repair.groups import Codes, Grouped
from counterlens.workflows.repair.heads import Matrix

ReceiptVerdict = Literal["better", "not shown", "worse"]
KEYS = ("groups.worst", "accuracy.top1")
REPLICATES = 1000


@dataclass(frozen=True)
class Receipt:
    """Before and after on the check images.

    Args:
        changes: difference after − before of each key, with its interval.
        rows: one per class, group and the whole, with tests.
        verdict: better, not shown or worse.
        why: the verdict in a sentence.
    """

    changes: Mapping[str, Number]
    rows: Sequence[dict[str, Any]]
    verdict: ReceiptVerdict
    why: str


def certify(
    before: RightAnswers,
    after: RightAnswers,
    by: Grouped,
    *,
    want: str,
    allow: Mapping[str, float],
    placebos: Mapping[str, RightAnswers] | None = None,
    other_changes: Mapping[str, Number] | None = None,
    over_placebos: Mapping[str, Number] | None = None,
) -> Receipt:
    """Compare the two on the same images and decide.

    Args:
        before, after: which answers are right.
        by: classes and groups of the images.
        want: what should rise, one of KEYS or of `other_changes`.
        allow: the lowest change of each key that is accepted, e.g. −0.01.
        placebos: which answers are right after each placebo, by name; for a `want` of KEYS.
        other_changes: changes of other keys, which are no function of these answers.
        over_placebos: by how much such a `want` lies above each placebo.
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
    changes = {key: change(key, before, after, by.groups) for key in KEYS}
    changes |= other_changes or {}
    above = dict(over_placebos or {}) | {
        name: change(want, other, after, by.groups) for name, other in (placebos or {}).items()
    }
    verdict, why = decide(changes, want, allow, above)
    worse = [str(row["name"]) for row in rows if row["worse"]]
    if worse:
        why += f" Clearly worse (Holm): {', '.join(worse)}."
    return Receipt(changes, rows, verdict, why)


def paired(before: RightAnswers, after: RightAnswers) -> dict[str, Any]:
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
        "p_worse": more_lost(gained, lost),
    }


def change(key: str, before: RightAnswers, after: RightAnswers, groups: Codes) -> Number:
    """Change of one of KEYS."""
    if key == "groups.worst":
        return worst_change(before, after, groups)
    row = paired(before, after)
    protocol = "accuracy after − before on the same images; Newcombe's paired interval"
    return Number(row["change"], row["n"], row["low"], row["high"], protocol)


def decide(
    changes: Mapping[str, Number],
    want: str,
    allow: Mapping[str, float],
    over_placebos: Mapping[str, Number] | None = None,
) -> tuple[ReceiptVerdict, str]:
    """Better only where intervals show the gain, losses as allowed, and more than every placebo.

    Args:
        changes: of each key.
        want: the key that should rise.
        allow: lowest accepted changes.
        over_placebos: by how much `want` lies above each placebo.
    """
    wanted = changes[want]
    assert wanted.low is not None and wanted.high is not None
    fact = f"{want} changed by {points(wanted)} on {wanted.n} check images"
    lost = [key for key, limit in allow.items() if (changes[key].high or 0.0) < limit]
    if wanted.high < 0 or lost:
        more = [f"; {key} fell by more than allowed: {points(changes[key])}" for key in lost]
        return "worse", f"Worse: {fact}{''.join(more)}."
    if wanted.low <= 0:
        return "not shown", f"Not shown: {fact}, and the interval holds zero."
    open_ = [key for key, limit in allow.items() if (changes[key].low or 0.0) < limit]
    if open_:
        reason = f"that {open_[0]} stays above {allow[open_[0]]:+g} is not: "
        return "not shown", f"Not shown: {fact}, but {reason}{points(changes[open_[0]])}."
    level = {name: gap for name, gap in (over_placebos or {}).items() if (gap.low or 0.0) <= 0}
    if level:
        name, gap = next(iter(level.items()))
        reason = f"the gain over the placebo ({name}) is not shown: {points(gap)}"
        return "not shown", f"Not shown: {fact}, but {reason}."
    names = ", ".join(over_placebos or {})
    beaten = f", more than after every placebo ({names})" if names else ""
    return "better", f"Better: {fact}{beaten}."


def points(number: Number) -> str:
    """A change in points with its interval."""
    value, low, high = (100 * (part or 0.0) for part in (number.value, number.low, number.high))
    return f"{value:+.1f} points (95 % interval {low:+.1f} to {high:+.1f})"


def standing(right: RightAnswers, groups: Codes) -> dict[str, Any]:
    """Accuracy and worst group of one head, each with its interval."""
    names = np.unique(groups)
    alpha = ALPHA / (2 * len(names))
    shares = [float(right[groups == g].mean()) for g in names]
    ends = [
        exact_bounds(int(right[groups == g].sum()), int((groups == g).sum()), alpha) for g in names
    ]
    low, high = wilson(int(right.sum()), len(right))
    return {
        "accuracy": float(right.mean()),
        "accuracy_low": low,
        "accuracy_high": high,
        "worst_group": min(shares),
        "worst_low": min(low for low, _ in ends),
        "worst_high": min(high for _, high in ends),
        "worst": int(names[int(np.argmin(shares))]),
    }


def key_rows(before: Matrix, after: Matrix, labels: Codes, *, seed: int) -> list[dict[str, Any]]:
    """Accuracy and calibration before and after, with the interval of the paired difference."""
    probs = [torch.from_numpy(logits).softmax(1) for logits in (before, after)]
    true = torch.from_numpy(labels)
    rows, n = np.arange(len(labels)), len(labels)
    single = {
        "accuracy.top1": [(p.argmax(1) == true).double().numpy() for p in probs],
        "calibration.nll": [-np.log(np.maximum(p.numpy()[rows, labels], 1e-300)) for p in probs],
        "confidence.mean": [p.amax(1).numpy() for p in probs],
    }
    out = []
    for key, (old, new) in single.items():
        gap = new - old
        low, high = mean_interval(gap, (-np.inf, np.inf), seed=seed) if gap.any() else (0.0, 0.0)
        how = "paired BCa bootstrap"
        out.append(_key_row(key, float(old.mean()), float(new.mean()), (low, high), how, n))
    ece = [calibration.ece(p, true) for p in probs]
    draws = np.random.default_rng(seed).integers(0, n, (REPLICATES, n))
    gaps = [
        calibration.ece(probs[1][row], true[row]) - calibration.ece(probs[0][row], true[row])
        for row in map(torch.from_numpy, draws)
    ]
    low, high = (float(end) for end in np.quantile(gaps, [ALPHA / 2, 1 - ALPHA / 2]))
    how = "paired percentile bootstrap"
    out.append(_key_row("calibration.ece", ece[0], ece[1], (low, high), how, n))
    return out


def key_row(key: str, before: float, after: float, gap: Number) -> dict[str, Any]:
    """One row of a key whose change was measured elsewhere."""
    ends = (float(gap.low or 0.0), float(gap.high or 0.0))
    row = _key_row(key, before, after, ends, gap.protocol, gap.n)
    return row if gap.trust is None else {**row, "trust": dict(gap.trust)}


def _key_row(
    key: str, before: float, after: float, ends: tuple[float, float], how: str, n: int
) -> dict[str, Any]:
    low, high = ends
    return {"key": key, "before": before, "after": after, "change": after - before,
            "low": low, "high": high, "n": n, "protocol": how}  # fmt: skip


def parse_allow(texts: Sequence[str], keys: Sequence[str] = KEYS) -> dict[str, float]:
    """Read KEY:CHANGE.

    Args:
        texts: one for each key.
        keys: those that the receipt has.

    >>> parse_allow(["accuracy.top1:-0.01"])
    {'accuracy.top1': -0.01}
    """
    limits = {}
    for text in texts:
        key, _, given = text.rpartition(":")
        try:
            limit = float(given)
        except ValueError:
            limit = float("nan")
        if key not in keys or not -1 <= limit <= 0:
            raise InputError(
                f"allow is {text!r}, expected KEY:CHANGE with {' or '.join(keys)} and a change of "
                "−1 to 0, e.g. accuracy.top1:-0.01."
            )
        limits[key] = limit
    return limits
