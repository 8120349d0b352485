"""SpuFix: what a shortcut adds to the logit of a class is clipped; nothing is trained.

The components of a class (neuron principal components of the images of that class) contribute to
its logit. The components whose contribution differs most between the values of the groups are
taken, and the positive part of what they contribute is taken off the logit.

Paper: Neuhaus et al. 2023 (neuhaus2023).
Differs: there people look at the images of each component and say which is spurious; here the
       groups name it, and how many components are clipped is chosen on the images that choose.
"""

import numpy as np
import torch
from torch import nn

from counterlens.explanations.features.npca import neural_pca
from counterlens.workflows.repair.erasure import refuse_class
from counterlens.workflows.repair.heads import Clips, Examples, Head, Matrix, Problem, Vector

COUNTS = (1, 2, 3, 5, 10)
FEWEST = 10  # images of a class with a value and without it
Components = tuple[int, Matrix, Vector]
"""A class, and the direction and offset of each of its components."""


def spufix(problem: Problem) -> Head:
    """Clip the components of each class whose contribution goes most with a value.

    Equation: neuhaus2023 SpuFix   f_k(x) − Σ_{l spurious} max(α_l(x), 0)
    """
    ranked = _ranked(problem)
    return _with(problem.old, ranked, _count(problem, ranked))


def unnamed(problem: Problem) -> Head:
    """The placebo: as many of the other components of the same classes, drawn at random."""
    ranked, rng = _ranked(problem), problem.rng(3)
    count = _count(problem, ranked)
    others: list[Components] = []
    for target, weight, bias in ranked:
        rows = count + rng.permutation(max(0, len(weight) - count))
        others.append((target, weight[rows], bias[rows]))
    return _with(problem.old, others, count)


def _ranked(problem: Problem) -> list[Components]:
    """The components of each class, those first that go with a value most."""
    fit = problem.fit if problem.pairs is None else problem.fit.joined(problem.pairs.edited)
    refuse_class(fit.by, "spufix")
    ranked: list[Components] = []
    for target in np.unique(fit.by.labels).tolist():
        here = fit.by.labels == target
        own = Examples(fit.x[here], fit.by.take(np.flatnonzero(here)))
        if sum(n >= FEWEST for n in own.by.sizes().values()) < 2:
            continue
        weight, bias = contributions(problem.old, own.x, target)
        order = np.argsort(-association(own, weight, bias), kind="stable")
        ranked.append((target, weight[order], bias[order]))
    return ranked


def _count(problem: Problem, ranked: list[Components]) -> int:
    """How many components to clip: the best number on the images that choose."""
    return max(COUNTS, key=lambda count: problem.score(_with(problem.old, ranked, count)))


def _with(old: Head, ranked: list[Components], count: int) -> Head:
    """The first `count` components of each class, clipped."""
    first = [(target, w[:count], b[:count]) for target, w, b in ranked]
    if not first:
        return old
    classes = np.concatenate([np.full(len(w), target) for target, w, _ in first])
    weight, bias = np.concatenate([w for _, w, _ in first]), np.concatenate([b for *_, b in first])
    return Head(old.weight, old.bias, Clips(classes.astype(np.int64), weight, bias))


def contributions(old: Head, x: Matrix, target: int) -> tuple[Matrix, Vector]:
    """Every component of a class as a direction of the features: α_l(x) = x · weight_l + bias_l.

    Equation: neuhaus2023 §3   α_l(x) = ⟨1, v_l⟩ ⟨w_k ⊙ φ(x) − ψ̄_k, v_l⟩
    """
    last = nn.Linear(old.weight.shape[1], len(old.bias)).double()
    with torch.no_grad():
        last.weight.copy_(torch.from_numpy(old.weight))
        last.bias.copy_(torch.from_numpy(old.bias))
    pca = neural_pca(last, torch.from_numpy(x), target)
    count = min(len(x) - 1, x.shape[1])  # the rest has no variance
    vectors, shares = pca.vectors[:, :count], pca.shares[:count]
    weight = (shares * (pca.weight[:, None] * vectors)).T.numpy()
    return weight, -(shares * (pca.mean @ vectors)).numpy()


def association(own: Examples, weight: Matrix, bias: Vector) -> Vector:
    """By how much each component raises the logit on the value it goes with most."""
    values = own.x @ weight.T + bias
    best = np.full(len(weight), -np.inf)
    for value, n in zip(*np.unique(own.by.values, return_counts=True), strict=True):
        inside = own.by.values == value
        if n >= FEWEST and (~inside).sum() >= FEWEST:
            best = np.maximum(best, values[inside].mean(0) - values[~inside].mean(0))
    return best
