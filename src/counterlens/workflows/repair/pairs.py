"""Counterfactual pairs: a last layer for which images that differ in the shortcut alone agree.

Paper: none of its own. Training on counterfactual images is that of Sauer and Geiger 2021
       (cgn2021); the consistency term is that of Heinze-Deml and Meinshausen 2021 (core2021) on
       logits.
Differs: head only, on stored features. An edited picture whose class a reviewer changed is one more
       example of that class; it need not agree with its original.
"""

import numpy as np

from counterlens.errors import InputError
from counterlens.workflows.repair.groups import Codes
from counterlens.workflows.repair.heads import (
    Consistency,
    Head,
    Matrix,
    Pairs,
    Problem,
    Scale,
    Start,
    logistic,
)

STRENGTHS = (0.01, 0.1)
WEIGHTS = (0.0, 1.0, 10.0)
NO_EDIT = (
    "pairs needs edited images, and no edit is given: name one by pairs='box:…', 'masks:…' or "
    "'column:…', or leave pairs out."
)


def pairs(problem: Problem) -> Head:
    """CE(x) + CE(x') + λ ‖f(x) − f(x')‖²; λ and the penalty by the images that choose."""
    edited = _known(problem).edited
    return _fitted(problem, edited.x, edited.by.labels)


def unrelated(problem: Problem) -> Head:
    """The placebo: the same images, but their edit has nothing to do with the shortcut."""
    known = _known(problem)
    return _fitted(problem, known.unrelated, problem.fit.by.labels[known.rows])


def _known(problem: Problem) -> Pairs:
    if problem.pairs is None:
        raise InputError(NO_EDIT)
    return problem.pairs


def _fitted(problem: Problem, other: Matrix, classes: Codes) -> Head:
    """The head for these versions of the pictures and their classes."""
    rows = _known(problem).rows
    x, labels = problem.fit.x, problem.fit.by.labels
    whole, y = np.concatenate([x, other]), np.concatenate([labels, classes])
    alike = np.flatnonzero(classes == labels[rows])
    scale, heads = Scale.of(whole), []
    both = scale.apply(whole)
    for strength in STRENGTHS:
        now = Start.of(problem, scale)
        for weight in WEIGHTS:
            agree = Consistency(both[rows[alike]], both[len(x) + alike], weight)
            now = logistic(both, y, now, strength=strength, consistency=agree)
            heads.append(scale.folded(now.weight, now.bias))
    return problem.best(heads)
