"""Operating points: thresholds chosen on some images, evaluated on others.

    coverage:0.9          answer the surest 90 % of the images
    risk:0.05             answer where at most 5 % of the answers are wrong
    recall:CLASS:0.95     call CLASS wherever its probability is high enough to find 95 % of it
    fpr:CLASS:0.05        … low enough to call at most 5 % of the others so
    precision:CLASS:0.9   … so that 90 % of the calls are right

Paper: Angelopoulos et al. 2022, Conformal Risk Control (arXiv:2208.02814), for recall and false
       positive rate, whose losses fall or rise with the threshold; Angelopoulos et al. 2021, Learn
       then Test (arXiv:2110.01052), for selective risk and precision, whose do not.
Differs: the loss is 0 or 1, so Learn then Test takes exact binomial p-values, in a fixed sequence
       from the highest threshold down; thresholds with too few images to be tested at all are
       passed over. Coverage is a quantile and carries no guarantee of its own.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64
from scipy.stats import binom

from counterlens.errors import InputError, nearest
from counterlens.metrics.intervals.closed_form import BoolArray, wilson
from counterlens.runs import Number

TargetKind = Literal["coverage", "risk", "recall", "fpr", "precision"]
ScoreArray = Float64[np.ndarray, "_"]
DELTA = 0.05
STEPS = 200
"""Thresholds that a fixed sequence tries at most."""
_FORMS = "coverage:0.9, risk:0.05, recall:CLASS:0.95, fpr:CLASS:0.05 or precision:CLASS:0.9"


@dataclass(frozen=True)
class Target:
    """What a threshold is to reach.

    Args:
        kind: of which quantity.
        level: its wanted value.
        name: the class it is about; empty for coverage and risk.
        text: as it was given.
    """

    kind: TargetKind
    level: float
    name: str
    text: str


def parse_target(text: str) -> Target:
    """Read KIND:LEVEL or KIND:CLASS:LEVEL.

    >>> target = parse_target("recall:cat:0.95")
    >>> target.kind, target.name, target.level
    ('recall', 'cat', 0.95)
    """
    kind, _, rest = text.partition(":")
    name, _, size = rest.rpartition(":")
    try:
        level = float(size)
    except ValueError:
        level = math.nan
    plain = kind in ("coverage", "risk")
    known = plain or kind in ("recall", "fpr", "precision")
    if not known or not 0 < level < 1 or plain == bool(name):
        raise InputError(f"threshold {text!r}: expected {_FORMS}, with a level between 0 and 1.")
    return Target(kind, level, name, text)  # type: ignore[arg-type]


def class_number(target: Target, classes: tuple[str, ...]) -> int:
    """The column of the class that a target names."""
    if target.name in classes:
        return classes.index(target.name)
    near = nearest(target.name, classes)
    hint = f"Did you mean {near}?" if near else f"It has: {', '.join(classes[:10])}."
    raise InputError(f"threshold {target.text!r}: the model has no class {target.name!r}. {hint}")


@dataclass(frozen=True)
class Point:
    """A threshold, or why there is none.

    Args:
        threshold: images whose score is at least as high are answered, or called the class.
        n: calibration images that it rests on.
        guarantee: what holds, in words.
        reason: why no threshold reaches the target.
    """

    threshold: float | None
    n: int
    guarantee: str
    reason: str = ""


def choose(target: Target, score: ScoreArray, right: BoolArray) -> Point:
    """The threshold that answers or calls most while it keeps the target.

    Args:
        score: of each calibration image: confidence, or the probability of the class.
        right: whether the answer is right; for a class, whether the image is of it.
    """
    if target.kind == "coverage":
        place = min(len(score) - 1, math.ceil(target.level * len(score)) - 1)
        return Point(float(-np.sort(-score)[place]), len(score), "a quantile, no guarantee")
    if target.kind == "recall":
        return _conformal(score[right], 1 - target.level, "of the class are missed")
    if target.kind == "fpr":
        return _false_positives(score[~right], target.level)
    wrong = target.level if target.kind == "risk" else 1 - target.level
    return _tested(score, right, wrong)


def _conformal(positives: ScoreArray, alpha: float, what: str) -> Point:
    """The highest threshold whose corrected share of missed positives is at most α.

    Equation: crc2022 threshold   λ̂ = inf{λ: n/(n+1) R̂(λ) + B/(n+1) ≤ α}, B = 1
    """
    n = len(positives)
    words = f"on average at most {100 * alpha:g} % {what} (conformal risk control)"
    missed = math.floor(alpha * (n + 1) - 1 + 1e-9)
    if missed < 0:
        need = math.ceil(1 / alpha - 1e-9) - 1
        return Point(None, n, words, f"{n} images of the class to calibrate on, {need} are needed")
    return Point(float(np.sort(positives)[missed]), n, words)


def _false_positives(negatives: ScoreArray, alpha: float) -> Point:
    """The lowest threshold whose corrected share of called negatives is at most α."""
    n = len(negatives)
    words = (
        f"on average at most {100 * alpha:g} % of the others are called (conformal risk control)"
    )
    called = math.floor(alpha * (n + 1) - 1 + 1e-9)
    if called < 0:
        need = math.ceil(1 / alpha - 1e-9) - 1
        return Point(None, n, words, f"{n} images of other classes, {need} are needed")
    if called >= n:
        return Point(float(negatives.min()), n, words)
    return Point(float(np.nextafter(-np.sort(-negatives)[called], np.inf)), n, words)


def _tested(score: ScoreArray, right: BoolArray, alpha: float) -> Point:
    """The lowest threshold in a row, from the highest down, whose errors are shown to be few.

    Equation: ltt2021 fixed sequence   p_j = P(Bin(n_j, α) ≤ errors_j) ≤ δ for all j up to ĵ
    """
    words = (
        f"at most {100 * alpha:g} % of what is answered is wrong, with probability "
        f"{100 * (1 - DELTA):g} % over calibration images (Learn then Test)"
    )
    order = np.argsort(-score, kind="stable")
    ordered, errors = score[order], np.cumsum(~right[order])
    last = np.append(ordered[1:] != ordered[:-1], True)  # a threshold takes ties together
    least = math.ceil(math.log(DELTA) / math.log1p(-alpha) - 1e-9)  # 0 errors of so many are enough
    ends = [j for j in np.flatnonzero(last).tolist() if j + 1 >= least]
    if not ends:
        return Point(None, len(score), words, f"{len(score)} calibration images, {least} needed")
    tried = sorted({ends[k] for k in np.linspace(0, len(ends) - 1, STEPS).round().astype(int)})
    threshold = None
    for j in tried:
        if binom.cdf(errors[j], j + 1, alpha) > DELTA:
            break
        threshold = float(ordered[j])
    reason = (
        "" if threshold is not None else "the surest answers are not shown to be right often enough"
    )
    return Point(threshold, len(score), words, reason)


def evaluate(
    target: Target, point: Point, score: ScoreArray, right: BoolArray, *, z: float
) -> dict[str, Number]:
    """What the threshold does on other images, with Wilson intervals.

    Coverage and selective risk for answers; recall, precision and false positive rate for a class.
    """
    names = ("coverage", "risk") if not target.name else ("recall", "precision", "fpr")
    if point.threshold is None:
        return {name: Number.missing(point.reason, target.text) for name in names}
    taken = score >= point.threshold
    how = f"{target.text}: score ≥ {point.threshold:.6g}, chosen on {point.n} other images"
    parts = {
        "coverage": (taken, np.ones(len(taken), bool), "share of the images answered"),
        "risk": (~right, taken, "wrong answers among those given"),
        "recall": (taken, right, f"images of {target.name} called so"),
        "precision": (right, taken, f"images called {target.name} that are"),
        "fpr": (taken, ~right, f"other images called {target.name}"),
    }
    return {name: _share(*parts[name], how, z) for name in names}


def _share(hits: BoolArray, among: BoolArray, what: str, how: str, z: float) -> Number:
    n = int(among.sum())
    text = f"{what}; {how}; Wilson interval"
    if not n:
        return Number.missing("no such image", text)
    count = int((hits & among).sum())
    return Number(count / n, n, *wilson(count, n, z=z), text)


def decide(
    probabilities: Float64[np.ndarray, "_ _"], costs: Float64[np.ndarray, "_ _"]
) -> np.ndarray:
    """The decision with the least expected cost for each image.

    Equation: elkan2001 decision   argmin_k Σ_j C_jk p_j

    Args:
        probabilities: calibrated, one column per class.
        costs: C[j, k] of deciding k where the truth is j.
    """
    return np.asarray((probabilities @ costs).argmin(1))
