"""Erasure: the last layer as it is, on features without linear trace of the groups.

Paper: Belrose et al. 2023 (belrose2023), LEACE.
Differs: no shrinkage of the covariance and no blend with the orthogonal projection, which the
       authors' code has: the covariance with the concept is zero on the fit images to rounding.
       The paper's guarantee is about the distribution whose covariances are known; from n images
       of d features they are known up to d / n, and a probe on other images finds the rest. Where
       there are pairs, the eraser is fitted on those alone: what two versions of a picture share
       is then no part of the error.
"""

from dataclasses import replace

import numpy as np

from counterlens.errors import InputError
from counterlens.metrics.intervals.closed_form import delong
from counterlens.runs import Number
from counterlens.workflows.repair.groups import Grouped
from counterlens.workflows.repair.heads import Examples, Head, Matrix, Problem, Vector

PROBE = 0.01  # C of the probe on standardised features


def eraser(x: Matrix, z: Matrix) -> tuple[Matrix, Vector]:
    """Matrix A and mean μ with which x − A(x − μ) has no covariance with z.

    Equation: belrose2023 LEACE   r(x) = x − W⁺ P W (x − μ), W = (Σ_xx^{1/2})⁺

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


def one_hot(by: Grouped) -> Matrix:
    """The value of each image as a row of zeros and a one."""
    coded: Matrix = np.eye(len(by.names))[by.values]
    return coded


def erase(problem: Problem) -> Head:
    """Erase the values from the features and fold the erasure into the head.

    Equation: belrose2023 LEACE   w · r(x) + b = (w − Aᵀw) · x + b + w · Aμ

    Fitted on the images to fit on, or on pairs whose two values differ, where there are such.
    """
    change, mean = fitted_eraser(problem)
    old = problem.old
    return Head(old.weight - old.weight @ change, old.bias + old.weight @ (change @ mean))


def erase_unrelated(problem: Problem) -> Head:
    """The placebo with pairs: what an unrelated edit changes is erased."""
    assert problem.pairs is not None
    edited = replace(problem.pairs.edited, x=problem.pairs.unrelated)
    return erase(replace(problem, pairs=replace(problem.pairs, edited=edited)))


def fitted_eraser(problem: Problem) -> tuple[Matrix, Vector]:
    """The eraser of a problem."""
    fit = paired(problem)
    if fit is None:
        fit = problem.fit if problem.pairs is None else problem.fit.joined(problem.pairs.edited)
    refuse_class(fit.by, "erase")
    return eraser(fit.x, one_hot(fit.by))


def paired(problem: Problem) -> Examples | None:
    """Pictures and their versions of another value; None where there are none.

    Whatever else is in a picture has then nothing to do with its value, not even its class.
    """
    pairs = problem.pairs
    if pairs is None:
        return None
    differ = np.flatnonzero(problem.fit.by.values[pairs.rows] != pairs.edited.by.values)
    if not len(differ):
        return None
    own, other = pairs.rows[differ], pairs.edited
    first = Examples(problem.fit.x[own], problem.fit.by.take(own))
    return first.joined(Examples(other.x[differ], other.by.take(differ)))


def probed(change: Matrix, mean: Vector, known: Examples, check: Examples) -> Number:
    """AUROC of the value by a fresh linear probe on erased features.

    Args:
        change, mean: the eraser; zeros for the features as they are.
        known: images to fit the probe on, none of which fitted the eraser. Classes with one value
            are left out and the others weighted so that the class tells nothing of the value.
        check: third images, on which it is measured.
    """
    from sklearn.linear_model import LogisticRegression

    share = independent(known.by)
    own, other = (e.x - (e.x - mean) @ change.T for e in (known, check))
    use = share > 0
    scale = np.maximum(own[use].std(0), 1e-12)
    probe = LogisticRegression(C=PROBE, max_iter=2000)
    probe.fit(own[use] / scale, known.by.values[use], sample_weight=share[use])
    score = probe.decision_function(other / scale)
    inside, outside = score[check.by.values == 1], score[check.by.values == 0]
    order = np.sort(outside)
    below, upto = (np.searchsorted(order, inside, side=side) for side in ("left", "right"))
    area = float((below + upto).mean() / (2 * len(outside)))
    low, high = delong(inside, outside)
    protocol = (
        f"AUROC of the value by a linear probe, fitted on {int(use.sum())} other images, on the "
        "check images; DeLong"
    )
    return Number(area, len(score), low, high, protocol)


def independent(by: Grouped) -> Vector:
    """Weights with which each value is as frequent in every class; 0 for classes with one value.

    Equation: belrose2023 z independent of y   s(y, z) = p(y) p(z) / p(y, z)
    """
    share: Vector = np.zeros(len(by.labels))
    for label in np.unique(by.labels):
        rows = by.labels == label
        values = np.unique(by.values[rows])
        if len(values) < 2:
            continue
        for value in values:
            part = rows & (by.values == value)
            share[part] = rows.sum() / (len(values) * part.sum())
    return share if share.any() else np.ones(len(by.labels))


def refuse_class(by: Grouped, remedy: str) -> None:
    """Refuse values that name the class: whatever removes them removes the class."""
    values = [set(by.values[by.labels == k].tolist()) for k in np.unique(by.labels)]
    if all(len(own) == 1 for own in values):
        raise InputError(
            f"{remedy} needs a class whose fix images have two values, and each class has one: the "
            "groups cannot be separated from the classes. Add such images, give pairs=EDIT, or "
            f"leave {remedy} out."
        )
