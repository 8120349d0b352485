"""New last layers from features: temperature, prior, erasure, group weights, DFR."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from counterlens.workflows.repair.groups import Codes, Grouped, refuse_small

Matrix = Float64[np.ndarray, "n d"]
Vector = Float64[np.ndarray, "n"]
STRENGTHS = (1.0, 0.7, 0.3, 0.1, 0.07, 0.03, 0.01)  # C of kirichenko2023, §B
DRAWS = 10


@dataclass(frozen=True)
class Head:
    """Logits = x · weightᵀ + bias."""

    weight: Matrix
    bias: Vector

    def logits(self, x: Matrix) -> Matrix:
        """One row of logits per row of features."""
        made: Matrix = x @ self.weight.T + self.bias
        return made

    def answers(self, x: Matrix) -> Codes:
        """The class of the largest logit."""
        made: Codes = self.logits(x).argmax(1)
        return made


@dataclass(frozen=True)
class Examples:
    """Features with their classes and groups."""

    x: Matrix
    by: Grouped

    def worst(self, head: Head) -> float:
        """Accuracy of the worst group."""
        right, groups = head.answers(self.x) == self.by.labels, self.by.groups
        return min(float(right[groups == g].mean()) for g in np.unique(groups))

    def accuracy(self, head: Head) -> float:
        """Share of right answers."""
        return float((head.answers(self.x) == self.by.labels).mean())


Remedy = Callable[[Head, Examples, Examples, np.random.Generator], Head]


def temperature(head: Head, fit: Examples, choose: Examples, rng: np.random.Generator) -> Head:
    """Divide the logits by the temperature of the highest likelihood; answers stay.

    Equation: guo2017 (9)   q = softmax(z / T), T by NLL
    """
    logits, rows = head.logits(fit.x), np.arange(len(fit.x))

    def loss(log_t: float) -> float:
        return -float(log_softmax(logits / np.exp(log_t), axis=1)[rows, fit.by.labels].mean())

    t = float(np.exp(minimize_scalar(loss, bounds=(-4, 4), method="bounded").x))
    return Head(head.weight / t, head.bias / t)


def prior(head: Head, fit: Examples, choose: Examples, rng: np.random.Generator) -> Head:
    """Take the logarithm of each class's share of the fit images off its logit.

    Equation: menon2021 (9)   f_y(x) − τ log π_y, τ = 1
    """
    counts = np.bincount(fit.by.labels, minlength=len(head.bias))
    return Head(head.weight, head.bias - np.log(counts / counts.sum()))


def erase(head: Head, fit: Examples, choose: Examples, rng: np.random.Generator) -> Head:
    """Erase the column from the features, linearly, and fold the erasure into the head."""
    change, mean = eraser(fit.x, np.eye(len(fit.by.names))[fit.by.values])
    return Head(head.weight - head.weight @ change, head.bias + head.weight @ (change @ mean))


def eraser(x: Matrix, z: Matrix) -> tuple[Matrix, Vector]:
    """Matrix A and mean μ with which x − A(x − μ) has no covariance with z.

    Equation: belrose2023 (1)   r(x) = x − W⁺ P W (x − μ), W = (Σ_xx^{1/2})⁺

    P projects onto the columns of W Σ_xz. Directions without variance are left alone.
    """
    mean = x.mean(0)
    centred = x - mean
    values, vectors = np.linalg.eigh(centred.T @ centred / len(x))
    real = values > values.max() * len(values) * np.finfo(np.float64).eps
    values, vectors = values[real], vectors[:, real]
    whiten = (vectors / np.sqrt(values)) @ vectors.T
    unwhiten = (vectors * np.sqrt(values)) @ vectors.T
    crossed = whiten @ (centred.T @ (z - z.mean(0)) / len(x))
    left, sizes, _ = np.linalg.svd(crossed, full_matrices=False)
    columns = left[:, sizes > 1e-9]
    change: Matrix = unwhiten @ columns @ columns.T @ whiten
    return change, mean


def plain(head: Head, fit: Examples, choose: Examples, rng: np.random.Generator) -> Head:
    """Refit by logistic regression without groups: the first placebo."""
    return _logistic(fit, choose, np.ones(len(fit.x)), Examples.accuracy)


def weights(head: Head, fit: Examples, choose: Examples, rng: np.random.Generator) -> Head:
    """Refit by logistic regression in which all groups weigh the same."""
    sizes, groups = fit.by.sizes(), fit.by.groups
    share = np.array([len(groups) / (len(sizes) * sizes[int(g)]) for g in groups])
    return _logistic(fit, choose, share, Examples.worst)


def _logistic(
    fit: Examples, choose: Examples, share: Vector, score: Callable[[Examples, Head], float]
) -> Head:
    from sklearn.linear_model import LogisticRegression

    mean, spread = _scale(fit.x)
    made = []
    for strength in (1.0, 0.1, 0.01, 0.001):
        model = LogisticRegression(C=strength, max_iter=2000)
        model.fit((fit.x - mean) / spread, fit.by.labels, sample_weight=share)
        weight, bias = np.asarray(model.coef_), np.asarray(model.intercept_)
        if len(weight) == 1:  # two classes share one row
            weight, bias = np.vstack([-weight, weight]) / 2, np.array([-bias[0], bias[0]]) / 2
        made.append(_unscaled(weight, bias, mean, spread))
    return max(made, key=lambda head: score(choose, head))


def dfr(head: Head, fit: Examples, choose: Examples, rng: np.random.Generator) -> Head:
    """Refit on draws of equally large groups, l1, averaged; C by the worst group of `choose`.

    Equation: kirichenko2023 §4   w = mean of the l1 logistic regressions on balanced draws

    Differs: one scaler for choosing and fitting; C by the mean over three draws.
    """
    refuse_small(fit.by)
    mean, spread = _scale(fit.x)
    x = (fit.x - mean) / spread
    draws = [balanced(fit.by.groups, rng) for _ in range(DRAWS)]

    def fitted(rows: Codes, strength: float) -> Head:
        weight, bias = one_vs_rest(x[rows], fit.by.labels[rows], len(head.bias), strength)
        return _unscaled(weight, bias, mean, spread)

    def score(strength: float) -> float:
        return float(np.mean([choose.worst(fitted(rows, strength)) for rows in draws[:3]]))

    best = max(STRENGTHS, key=score)
    heads = [fitted(rows, best) for rows in draws]
    weight = np.mean([one.weight for one in heads], axis=0)
    return Head(weight, np.mean([one.bias for one in heads], axis=0))


def balanced(groups: Codes, rng: np.random.Generator) -> Codes:
    """Rows in which every group is as large as the smallest."""
    found, counts = np.unique(groups, return_counts=True)
    least = counts.min()
    parts = [rng.choice(np.flatnonzero(groups == g), least, replace=False) for g in found]
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


def _scale(x: Matrix) -> tuple[Vector, Vector]:
    spread = x.std(0)
    return x.mean(0), np.where(spread > 0, spread, 1.0)


def _unscaled(weight: Matrix, bias: Vector, mean: Vector, spread: Vector) -> Head:
    """The same head for features that are not standardised."""
    folded = weight / spread
    return Head(folded, bias - folded @ mean)


def shuffled(by: Grouped, rng: np.random.Generator) -> Grouped:
    """The column permuted within each class: the same group sizes, no meaning."""
    values = by.values.copy()
    for label in np.unique(by.labels):
        rows = np.flatnonzero(by.labels == label)
        values[rows] = values[rng.permutation(rows)]
    return Grouped(by.labels, values, by.classes, by.names)


REMEDIES: dict[str, Remedy] = {
    "temperature": temperature,
    "prior": prior,
    "erase": erase,
    "weights": weights,
    "dfr": dfr,
}
"""Cheapest first: among equals the first is picked."""
