"""How often the intervals of operating points, flips, corruptions, OOD scores and slices hold.

Worlds with known truth, 1,000 repeats (operating points 4,000, OOD scores 300). Of families whose
intervals are said to hold together (flips of groups, thresholds in groups, differences of all
scores, excess of five slices) a repeat counts only if every one of them holds. A threshold is drawn
anew from calibration images in each repeat; the truth is its value over the population.

Run: python benchmarks/coverage_audit.py --out benchmarks/results/coverage_audit.json
"""

import argparse
import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
from scipy.special import ndtri
from scipy.stats import norm

from counterlens.metrics import operating
from counterlens.metrics.intervals.closed_form import Z, mean_interval, percentile, wilson
from counterlens.metrics.intervals.multiple import bonferroni
from counterlens.metrics.ood_scores import auroc_replicates, differences, mean_auroc
from counterlens.metrics.slices import TESTED, excess
from counterlens.runs import LogitSet, Number
from counterlens.workflows.compare.flips import flip_rate, flips
from counterlens.workflows.compare.group_flips import _groups

Rng = np.random.Generator
Held = dict[str, bool]


def holds(number: Number, truth: float) -> bool:
    """Whether an interval holds the truth."""
    assert number.low is not None and number.high is not None
    return number.low - 1e-12 <= truth <= number.high + 1e-12


def operating_points(rng: Rng) -> Held:
    """Confidence c is uniform on [0.3, 1] and right with probability c, also in three groups."""

    def images(n: int) -> tuple[np.ndarray, np.ndarray]:
        c = rng.uniform(0.3, 1, n)
        return c, rng.random(n) < c

    out: Held = {}
    (score, right), (seen, hit) = images(500), images(1000)
    for text in ("coverage:0.8", "risk:0.2"):
        target = operating.parse_target(text)
        point = operating.choose(target, score, right)
        if point.threshold is None:
            continue
        t = point.threshold
        coverage, risk = (1 - t) / 0.7, 1 - (1 + t) / 2
        found = operating.evaluate(target, point, seen, hit, z=Z)
        out[f"{text}, coverage"] = holds(found["coverage"], coverage)
        out[f"{text}, selective risk"] = holds(found["risk"], risk)
        parts = [slice(k * 333, (k + 1) * 333) for k in range(3)]
        each = [operating.evaluate(target, point, seen[p], hit[p], z=bonferroni(3)) for p in parts]
        out[f"{text}, selective risk in three groups at once"] = all(
            holds(one["risk"], risk) for one in each
        )
        if text.startswith("risk"):
            out["risk:0.2, guarantee (95 % or more)"] = risk <= 0.2
    return out | class_points(rng)


def class_points(rng: Rng) -> Held:
    """The score of a class is normal, 2 higher on its own images, which are a fifth."""

    def images(n: int) -> tuple[np.ndarray, np.ndarray]:
        own = rng.random(n) < 0.2
        return norm.cdf(rng.normal(size=n) + 2 * own), own

    out: Held = {}
    (score, own), (seen, true) = images(500), images(1000)
    for text in ("recall:cat:0.9", "fpr:cat:0.1", "precision:cat:0.7"):
        target = operating.parse_target(text)
        point = operating.choose(target, score, own)
        if point.threshold is None:
            continue
        t = ndtri(point.threshold)
        recall, fpr = float(norm.sf(t - 2)), float(norm.sf(t))
        truth = {"recall": recall, "fpr": fpr, "precision": recall / (recall + 4 * fpr)}
        found = operating.evaluate(target, point, seen, true, z=Z)
        out |= {f"{text}, {name}": holds(found[name], truth[name]) for name in truth}
        if text.startswith("precision"):
            out["precision:cat:0.7, guarantee (95 % or more)"] = truth["precision"] >= 0.7
    return out


FLIP = np.array([[0.02, 0.03], [0.04, 0.02], [0.06, 0.03], [0.1, 0.05]])
"""Negative and positive rates of four groups of 250 images."""


def flip_rates(rng: Rng) -> Held:
    """One rate for all images, and those of four groups at once."""
    group = np.repeat(np.arange(4), 250)
    u, n = rng.random(1000), len(group)
    negative, positive = u < FLIP[group, 0], u > 1 - FLIP[group, 1]
    before = negative | (~positive & (rng.random(n) < 0.9))
    after = positive | (before & ~negative)
    assert (flips(before, after)["negative"] == negative).all()
    rate = flip_rate(negative, "negative", "")
    ids = tuple(map(str, range(n)))
    labels = np.zeros(n, np.int64)
    sides = [
        {"a": LogitSet("a", "in", np.stack([hit, ~hit], 1).astype(float), labels, ids)}
        for hit in (before, after)
    ]
    values = {i: {"image": i, "site": str(g)} for i, g in zip(ids, group, strict=True)}
    rows = sorted(_groups(sides[0], sides[1], values), key=lambda row: row["value"])
    assert len(rows) == 4
    out = {"negative flips": holds(rate, float(FLIP[:, 0].mean()))}
    for k, kind in enumerate(("negative", "positive")):
        out[f"{kind} flips of four groups at once"] = all(
            row[f"{kind}_low"] <= FLIP[int(row["value"]), k] <= row[f"{kind}_high"] for row in rows
        )
    return out


def corruptions(rng: Rng) -> Held:
    """Fifteen versions of an image share its difficulty; 500 images."""
    shift = np.linspace(-0.3, 1.0, 15)
    hard = rng.normal(size=(500, 1))
    hits = rng.normal(size=(500, 15)) * 0.6 + hard + shift > -0.8
    truth = norm.cdf((0.8 + shift) / np.hypot(1, 0.6))
    values = hits.mean(1)
    low, high = mean_interval(values, (0, 1))
    weights = 1 / np.linspace(0.5, 0.9, 15) / 15
    relative = (1 - hits) @ weights  # as mCE: errors over those of a reference
    ends = mean_interval(relative, (0, 2))
    mce = float(((1 - truth) * weights).sum())
    return {
        "mean accuracy over corruptions": low <= truth.mean() <= high,
        "mCE": ends[0] <= mce <= ends[1],
    }


@lru_cache
def cost_truth() -> dict[str, float]:
    """Over the population."""
    p = np.random.default_rng(99).beta(0.4, 1.6, 4_000_000)
    cost = np.where(p > 1 / 11, 1 - p, 10 * p)
    plain = np.where(p > 0.5, 1 - p, 10 * p)
    return {"mean cost": float(cost.mean()), "saved cost": float((plain - cost).mean())}


def costs(rng: Rng) -> Held:
    """Decisions by cost: a miss costs 10, a false alarm 1; calibrated probabilities."""
    matrix = np.array([[0.0, 1.0], [10.0, 0.0]])
    p = rng.beta(0.4, 1.6, 800)
    labels = (rng.random(800) < p).astype(int)
    probabilities = np.stack([1 - p, p], 1)
    best = matrix[labels, operating.decide(probabilities, matrix)]
    saved = matrix[labels, probabilities.argmax(1)] - best
    truth = cost_truth()
    ends = mean_interval(best, (0, 10)), mean_interval(saved, (-10, 10))
    return {name: low <= truth[name] <= high for name, (low, high) in zip(truth, ends, strict=True)}


SHIFTS = np.array([[1.0, 1.5], [1.2, 1.5], [1.2, 2.0], [0.8, 1.8]])
"""How far two unknown sets lie from the known one, by each of four scores."""


def scores(rng: Rng) -> Held:
    """Four scores of the same images, correlated 0.7; the mean over two unknown sets."""

    def images(n: int) -> np.ndarray:
        own = rng.normal(size=(n, 4)) * np.sqrt(0.3)
        return own + rng.normal(size=(n, 1)) * np.sqrt(0.7)

    known, one, two = images(300), images(200) - SHIFTS[:, 0], images(200) - SHIFTS[:, 1]
    truth = norm.cdf(SHIFTS / np.sqrt(2)).mean(1)
    parts = {str(k): (known[:, k], one[:, k], two[:, k]) for k in range(4)}
    seed = int(rng.integers(1 << 30))
    value = mean_auroc(*parts["0"])
    low, high = percentile(value, auroc_replicates(*parts["0"], seed=seed), (0.0, 1.0))
    pairs = differences(parts, seed=seed)
    return {
        "mean AUROC over sets": low <= truth[0] <= high,
        "differences of all pairs of scores at once": all(
            d.low <= truth[int(d.first)] - truth[int(d.second)] <= d.high for d in pairs
        ),
    }


def slices(rng: Rng) -> Held:
    """Five slices of 60 images among 1,500 of five classes, with an excess of 0 to 40 points."""
    labels = rng.integers(0, 5, 1500)
    own = np.arange(1500) // 60
    worse = np.linspace(0, 0.4, TESTED)
    base = np.linspace(0.05, 0.25, 5)[labels]
    wrong = rng.random(1500) < base + np.where(own < TESTED, worse[np.minimum(own, 4)], 0)
    rest = own >= TESTED
    held = []
    for k in range(TESTED):
        some = rest | (own == k)
        found = excess((own == k)[some], wrong[some], labels[some], z=bonferroni(TESTED))
        assert found is not None
        held.append(found.low <= worse[k] <= found.high)
    return {"excess of five slices at once": all(held)}


WORLDS: dict[str, tuple[Callable[[Rng], Held], int]] = {
    "operating points": (operating_points, 4000),
    "flips": (flip_rates, 1000),
    "corruptions": (corruptions, 1000),
    "costs": (costs, 1000),
    "OOD scores": (scores, 300),
    "slices": (slices, 1000),
}


def main() -> None:
    """Repeat and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS), choices=list(WORLDS))
    parser.add_argument("--repeats", type=int, help="Of each world. Default: as above.")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    for number, (world, (draw, usual)) in enumerate(WORLDS.items()):
        if world not in args.worlds:
            continue
        counts: dict[str, list[int]] = {}
        for k in range(args.repeats or usual):
            for name, held in draw(np.random.default_rng([number, k])).items():
                counts.setdefault(name, []).append(bool(held))
        for name, held in counts.items():
            hits, n = sum(held), len(held)
            low, high = wilson(hits, n)
            rows[name] = {"covered": hits, "of": n}
            print(f"{name}: {100 * hits / n:.1f} % [{100 * low:.1f}, {100 * high:.1f}] of {n}",
                  flush=True)  # fmt: skip
        if args.out:
            args.out.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
