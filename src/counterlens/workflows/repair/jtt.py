"""JTT: the last layer refitted with more weight on the images that it gets wrong.

Paper: Liu et al. 2021 (jtt2021), Just Train Twice.
Differs: head only, on stored features. The first model is the head as it is, or, where it makes
       too few mistakes on the fit images, one refitted so strongly penalised that it errs; both
       are read in one clean pass. The weight of the mistakes is chosen on the images that choose.
"""

import numpy as np

from counterlens.errors import InputError
from counterlens.workflows.repair.groups import LEAST
from counterlens.workflows.repair.heads import Head, Problem, Right, Scale, Start, logistic

EXTRA = (5.0, 20.0, 50.0, 100.0)
STRENGTHS = (0.001, 0.01, 0.1)
FIRST = 1e-5  # C of the penalised first model


def jtt(problem: Problem) -> Head:
    """Refit with λ extra copies of the mistakes of a first model.

    Equation: jtt2021 upweighted loss   Σ_{i ∉ E} ℓ_i + (λ + 1) Σ_{i ∈ E} ℓ_i

    The authors' code gives each mistake λ + 1 copies.
    """
    return _refitted(problem, mistakes(problem))


def any_images(problem: Problem) -> Head:
    """The placebo: as many images of each class, drawn at random, weigh more."""
    wrong, labels, rng = mistakes(problem), problem.fit.by.labels, problem.rng(4)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        wrong[rows] = wrong[rng.permutation(rows)]
    return _refitted(problem, wrong)


def mistakes(problem: Problem) -> Right:
    """Fit images that the first model gets wrong."""
    wrong: Right = ~problem.fit.right(problem.old)
    if wrong.sum() < LEAST:
        wrong = ~problem.fit.right(_first(problem))
    if wrong.sum() < LEAST:
        raise InputError(
            f"jtt needs {LEAST} fit images that the model gets wrong, and there are "
            f"{int(wrong.sum())}: give more images to fix on, or leave jtt out."
        )
    return wrong


def _first(problem: Problem) -> Head:
    scale = Scale.of(problem.fit.x)
    x, start = scale.apply(problem.fit.x), Start.of(problem, scale)
    now = logistic(x, problem.fit.by.labels, start, strength=FIRST)
    return scale.folded(now.weight, now.bias)


def _refitted(problem: Problem, wrong: Right) -> Head:
    scale, heads = Scale.of(problem.fit.x), []
    x, y = scale.apply(problem.fit.x), problem.fit.by.labels
    for strength in STRENGTHS:
        now = Start.of(problem, scale)
        for extra in EXTRA:
            share = np.where(wrong, extra + 1, 1.0)
            share *= len(share) / share.sum()
            now = logistic(x, y, now, strength=strength, share=share)
            heads.append(scale.folded(now.weight, now.bias))
    return problem.best(heads)
