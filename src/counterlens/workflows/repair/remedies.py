"""Remedies: from the last layer as it is to another one, cheapest first; each with its placebo."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from counterlens.errors import InputError
from counterlens.workflows.repair.erasure import erase, erase_unrelated, paired, refuse_class
from counterlens.workflows.repair.groups import Codes, Grouped, refuse_single, refuse_small
from counterlens.workflows.repair.heads import (
    Examples,
    Head,
    Matrix,
    Problem,
    Scale,
    Vector,
    regression,
)
from counterlens.workflows.repair.jtt import any_images, jtt
from counterlens.workflows.repair.pairs import NO_EDIT, pairs, unrelated
from counterlens.workflows.repair.spufix import spufix, unnamed

DFR_STRENGTHS = (0.01, 0.03, 0.07, 0.1, 0.3, 0.7, 1.0)  # C of the authors' code
DRAWS = 10

Fit = Callable[[Problem], Head]


@dataclass(frozen=True)
class Remedy:
    """One way to repair a head.

    Args:
        fit: makes the new head.
        placebo: makes a head in the same way without what is supposed to help; None where there
            is nothing to take away.
        control: the placebo in words.
        with_pairs: the placebo where there are pairs, if it is another, and it in words.
    """

    fit: Fit
    placebo: Fit | None = None
    control: str = ""
    with_pairs: tuple[Fit, str] | None = None

    def placebo_of(self, problem: Problem) -> tuple[Fit, str] | None:
        """The placebo and what it is called; None where there is nothing to take away."""
        if self.with_pairs is not None and paired(problem) is not None:
            return self.with_pairs
        return None if self.placebo is None else (self.placebo, self.control)


def temperature(problem: Problem) -> Head:
    """Divide the logits by the temperature of the highest likelihood; answers stay.

    Equation: guo2017 (9)   q = softmax(z / T), T by NLL
    """
    logits, labels = problem.old.logits(problem.fit.x), problem.fit.by.labels
    rows = np.arange(len(labels))

    def loss(log_t: float) -> float:
        return -float(log_softmax(logits / np.exp(log_t), axis=1)[rows, labels].mean())

    t = float(np.exp(minimize_scalar(loss, bounds=(-4, 4), method="bounded").x))
    return Head(problem.old.weight / t, problem.old.bias / t)


def prior(problem: Problem) -> Head:
    """Take the logarithm of each class's share of the fit images off its logit.

    Equation: menon2021 logit adjustment   f_y(x) − τ log π_y, τ = 1

    Classes without fit images keep their logits.
    """
    counts = np.bincount(problem.fit.by.labels, minlength=len(problem.old.bias))
    share = np.where(counts > 0, counts / counts.sum(), 1.0)
    return Head(problem.old.weight, problem.old.bias - np.log(share))


def refit(problem: Problem) -> Head:
    """Refit by softmax regression without groups: more data and nothing else."""
    return regression(problem, score=lambda head: (problem.choose.accuracy(head), 0.0))


def class_weights(problem: Problem) -> Head:
    """Refit by softmax regression in which all classes weigh the same."""
    return regression(problem, equal(problem.fit.by.labels))


def group_weights(problem: Problem) -> Head:
    """Refit by softmax regression in which all groups weigh the same."""
    refuse_class(problem.fit.by, "group-weights")
    return regression(problem, equal(problem.fit.by.groups))


def equal(codes: Codes) -> Vector:
    """Weights under which all codes weigh the same, 1 on average."""
    _, place, counts = np.unique(codes, return_inverse=True, return_counts=True)
    share: Vector = (len(codes) / (len(counts) * counts))[place]
    return share


def dfr(problem: Problem) -> Head:
    """Refit on draws of equally large groups, l1, averaged; C by the images that choose.

    Equation: kirichenko2023 DFR   w = mean of the l1 logistic regressions on balanced draws

    Differs: one scaler for choosing and fitting; C by the mean over three draws.
    """
    fit, old = problem.fit, problem.old
    refuse_small(fit.by, len(old.bias))
    scale, rng = Scale.of(fit.x), problem.rng()
    x = scale.apply(fit.x)
    draws = [balanced(fit.by.groups, rng) for _ in range(DRAWS)]

    def fitted(rows: Codes, strength: float) -> Head:
        weight, bias = one_vs_rest(x[rows], fit.by.labels[rows], len(old.bias), strength)
        return scale.folded(weight, bias)

    def score(strength: float) -> float:
        return float(np.mean([problem.score(fitted(rows, strength))[0] for rows in draws[:3]]))

    best = max(DFR_STRENGTHS, key=score)
    heads = [fitted(rows, best) for rows in draws]
    weight = np.mean([one.weight for one in heads], axis=0)
    return Head(weight, np.mean([one.bias for one in heads], axis=0))


def balanced(groups: Codes, rng: np.random.Generator) -> Codes:
    """Rows in which every group is as large as the smallest."""
    names, counts = np.unique(groups, return_counts=True)
    least = counts.min()
    parts = [rng.choice(np.flatnonzero(groups == g), least, replace=False) for g in names]
    return np.concatenate(parts)


def one_vs_rest(x: Matrix, y: Codes, classes: int, strength: float) -> tuple[Matrix, Vector]:
    """l1 logistic regression by liblinear, one against the rest where there are three or more."""
    from sklearn.linear_model import LogisticRegression

    named = getattr(LogisticRegression(), "penalty", "deprecated")  # l1_ratio since 1.8
    kind: dict[str, Any] = {"l1_ratio": 1.0} if named == "deprecated" else {"penalty": "l1"}
    rows = []
    for k in (1,) if classes == 2 else range(classes):
        model = LogisticRegression(
            **kind, C=strength, solver="liblinear", max_iter=1000, random_state=0
        )
        model.fit(x, (y == k).astype(np.int64))
        rows.append((model.coef_[0], model.intercept_[0]))
    weight, bias = np.array([w for w, _ in rows]), np.array([b for _, b in rows])
    if classes == 2:
        return np.vstack([-weight, weight]) / 2, np.array([-bias[0], bias[0]]) / 2
    return weight, bias


def shuffled(by: Grouped, rng: np.random.Generator) -> Grouped:
    """The values permuted within each class: the same group sizes, no meaning."""
    values = by.values.copy()
    for label in np.unique(by.labels):
        rows = np.flatnonzero(by.labels == label)
        values[rows] = values[rng.permutation(rows)]
    return Grouped(by.labels, values, by.classes, by.names)


def on_shuffled_groups(fit: Fit) -> Fit:
    """The same remedy on values shuffled within each class."""

    def placebo(problem: Problem) -> Head:
        rng = problem.rng(2)
        mixed = [Examples(part.x, shuffled(part.by, rng)) for part in (problem.fit, problem.choose)]
        known = problem.pairs
        if known is not None:
            edited = Examples(known.edited.x, shuffled(known.edited.by, rng))
            known = replace(known, edited=edited)
        return fit(replace(problem, fit=mixed[0], choose=mixed[1], pairs=known))

    return placebo


_SHUFFLED = "shuffled groups"
REMEDIES: dict[str, Remedy] = {
    "temperature": Remedy(temperature),
    "prior": Remedy(prior),
    "spufix": Remedy(spufix, unnamed, "random components"),
    "erase": Remedy(
        erase, on_shuffled_groups(erase), _SHUFFLED, with_pairs=(erase_unrelated, "unrelated edits")
    ),
    "refit": Remedy(refit),
    "class-weights": Remedy(class_weights),
    "group-weights": Remedy(group_weights, on_shuffled_groups(group_weights), _SHUFFLED),
    "dfr": Remedy(dfr, on_shuffled_groups(dfr), _SHUFFLED),
    "pairs": Remedy(pairs, unrelated, "unrelated edits"),
    "jtt": Remedy(jtt, any_images, "random images"),
}
"""Cheapest first: among equals the first is picked."""


def refusal(name: str, fit: Grouped, edited: bool) -> str:
    """Why a remedy cannot work on these groups, known before anything is computed; or nothing."""
    try:
        if name == "dfr":
            refuse_small(fit, len(fit.classes))
        elif name in ("erase", "spufix", "group-weights") and not edited:
            refuse_class(fit, name)
        if name == "group-weights":
            refuse_single(fit)
        if name in ("pairs", "recipe:pairs") and not edited:
            raise InputError(NO_EDIT)
    except InputError as error:
        return str(error)
    return ""
