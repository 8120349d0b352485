"""How far reviewers agree beyond chance, and what follows from their verdicts.

Paper: Cohen 1960, A Coefficient of Agreement for Nominal Scales; Fleiss 1971, Measuring Nominal
    Scale Agreement Among Many Raters.
Differs: images need not have the same number of verdicts. Fleiss's formula is applied with each
    image's own number; with equal numbers it is his.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from counterlens.review.store import VERDICTS, Verdict, same_person
from counterlens.runs import Number

_Counts = Float64[np.ndarray, "_ _"]
"""Image × verdict: how many reviewers gave it."""
_REPLICATES = 1000


def cohen(first: Sequence[str], second: Sequence[str]) -> float | None:
    """Agreement of two reviewers on the same images, beyond chance.

    Equation: cohen1960 (1)   κ = (p_o − p_e) / (1 − p_e), p_e = Σ_k p¹_k · p²_k

    None where both gave one and the same verdict to everything: chance alone agrees as much.

    >>> cohen(["accept", "accept", "reject", "reject"], ["accept", "reject", "reject", "reject"])
    0.5
    """
    words = sorted({*first, *second})
    n = len(first)
    if not n or n != len(second):
        return None
    observed = sum(a == b for a, b in zip(first, second, strict=True)) / n
    chance = sum(first.count(w) / n * (second.count(w) / n) for w in words)
    return None if chance >= 1 else (observed - chance) / (1 - chance)


def fleiss(counts: _Counts, weights: Float64[np.ndarray, "_"] | None = None) -> float | None:
    """Agreement of several reviewers, beyond chance.

    Equation: fleiss1971 (7)   κ = (P̄ − P̄_e) / (1 − P̄_e), P_i = Σ_j n_ij (n_ij − 1) / (n (n − 1))

    Args:
        counts: image × verdict; images with fewer than two verdicts say nothing and are left out.
        weights: how often each image counts, for resampling.

    >>> round(fleiss(np.array([[2.0, 0.0], [0.0, 2.0], [1.0, 1.0]])), 6)
    0.333333
    """
    weight = np.ones(len(counts)) if weights is None else weights
    given = counts.sum(1)
    use = (given >= 2) & (weight > 0)
    if not use.any():
        return None
    n, m, w = counts[use], given[use], weight[use]
    per_image = (n * (n - 1)).sum(1) / (m * (m - 1))
    observed = float((w * per_image).sum() / w.sum())
    shares = (w[:, None] * n).sum(0) / (w * m).sum()
    chance = float((shares**2).sum())
    return None if chance >= 1 - 1e-12 else (observed - chance) / (1 - chance)


@dataclass(frozen=True)
class Decision:
    """What the verdicts on an image amount to.

    Args:
        outcome: accept, reject, contested (people differ or are unsure), or pending.
        verdicts: the last verdict of each reviewer, by name.
        adjudicated: the verdict of each adjudicator that decided the outcome, by name; empty where
            the reviewers decided it.
        tags: failure modes named by those who accepted the image.
    """

    outcome: str
    verdicts: Mapping[str, str]
    adjudicated: Mapping[str, str]
    tags: tuple[str, ...]


def decisions(
    items: Sequence[str], latest: Sequence[Verdict], *, least: int = 1
) -> dict[str, Decision]:
    """An adjudicator's word, else the reviewers' where all of them say the same.

    The word of an adjudicator who also reviewed the image does not count.

    Args:
        items: the images.
        latest: the last word of each person.
        least: reviewers that must have judged an image.
    """
    by_item: dict[str, list[Verdict]] = {}
    for verdict in latest:
        by_item.setdefault(verdict.item, []).append(verdict)
    return {item: _decide(by_item.get(item, []), least) for item in items}


def _decide(given: Sequence[Verdict], least: int) -> Decision:
    verdicts = {v.reviewer: v.verdict for v in given if v.role == "reviewer"}
    people = {same_person(name) for name in verdicts}
    settled = {
        v.reviewer: v.verdict
        for v in given
        if v.role == "adjudicator"
        and v.verdict != "unsure"
        and same_person(v.reviewer) not in people
    }
    words = set(settled.values()) or set(verdicts.values())
    if len(words) > 1 or words == {"unsure"}:
        outcome = "contested"
    else:
        outcome = words.pop() if words and len(verdicts) >= least else "pending"
    decided = settled if outcome in ("accept", "reject") else {}
    tags = dict.fromkeys(tag for v in given if v.verdict == "accept" for tag in v.tags)
    return Decision(outcome, verdicts, decided, tuple(tags))


def agreement(
    items: Sequence[str], latest: Sequence[Verdict], *, seed: int = 0
) -> dict[str, Number]:
    """Kappas of all reviewers together and of each pair, with bootstrap intervals over images."""
    given: dict[str, dict[str, str]] = {}
    for v in latest:
        if v.role == "reviewer":
            given.setdefault(v.reviewer, {})[v.item] = v.verdict
    counts = np.array(
        [[sum(s.get(i) == w for s in given.values()) for w in VERDICTS] for i in items], float
    ).reshape(len(items), len(VERDICTS))
    numbers = {"review.fleiss": _kappa(counts, f"Fleiss' kappa of {len(given)} reviewers", seed)}
    people = sorted(given)
    for k, one in enumerate(people):
        for two in people[k + 1 :]:
            numbers[f"review.{one}-{two}.cohen"] = _pair(given[one], given[two], one, two, seed)
    return numbers


def _kappa(counts: _Counts, text: str, seed: int) -> Number:
    text += ", verdicts accept, reject, unsure; percentile bootstrap over images"
    n = int((counts.sum(1) >= 2).sum())
    value = fleiss(counts)
    if value is None:
        why = "no image has two verdicts" if not n else "all verdicts are the same"
        return Number.missing(why, text, n)
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(len(counts), np.full(len(counts), 1 / len(counts)), _REPLICATES)
    return _with_ends(value, [fleiss(counts, w.astype(float)) for w in drawn], n, text)


def _pair(
    first: Mapping[str, str], second: Mapping[str, str], one: str, two: str, seed: int
) -> Number:
    both = sorted(first.keys() & second.keys())
    a, b = [first[i] for i in both], [second[i] for i in both]
    text = f"Cohen's kappa of {one} and {two}; percentile bootstrap over images"
    value = cohen(a, b)
    if value is None:
        why = "all verdicts are the same" if both else "no image was seen by both"
        return Number.missing(why, text, len(both))
    rng = np.random.default_rng(seed)
    draws = rng.integers(0, len(both), (_REPLICATES, len(both)))
    values = [cohen([a[i] for i in draw], [b[i] for i in draw]) for draw in draws.tolist()]
    return _with_ends(value, values, len(both), text)


def _with_ends(value: float, drawn: Sequence[float | None], n: int, text: str) -> Number:
    known = [v for v in drawn if v is not None]
    low, high = np.quantile(known, [0.025, 0.975]).tolist() if known else (value, value)
    return Number(value, n, min(low, value), max(high, value), text)
