"""Erasure: the last layer as it is, on features without linear trace of the groups.

Paper: Belrose et al. 2023 (belrose2023), LEACE.
Differs: no shrinkage of the covariance and no blend with the orthogonal projection, which the
       authors' code has: the covariance with the concept is zero on the fit images to rounding.
"""

import numpy as np

from counterlens.errors import InputError
from counterlens.workflows.repair.groups import Grouped
from counterlens.workflows.repair.heads import Head, Matrix, Problem, Vector


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

    With pairs, edited images count as well: their values are known.
    """
    fit = problem.fit if problem.pairs is None else problem.fit.joined(problem.pairs.edited)
    refuse_class(fit.by, "erase")
    change, mean = eraser(fit.x, one_hot(fit.by))
    old = problem.old
    return Head(old.weight - old.weight @ change, old.bias + old.weight @ (change @ mean))


def refuse_class(by: Grouped, remedy: str) -> None:
    """Refuse values that name the class: whatever removes them removes the class."""
    values = [set(by.values[by.labels == k].tolist()) for k in np.unique(by.labels)]
    if all(len(own) == 1 for own in values):
        raise InputError(
            f"{remedy} needs a class whose fix images have two values, and each class has one: the "
            "groups cannot be separated from the classes. Add such images, give pairs=EDIT, or "
            f"leave {remedy} out."
        )
