"""Softmax regression against scikit-learn and finite differences; pairs, JTT and their placebos."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import cross_entropy

from counterlens.errors import InputError
from counterlens.workflows.repair import jtt, pairs
from counterlens.workflows.repair.groups import Grouped
from counterlens.workflows.repair.heads import (
    Consistency,
    Examples,
    Head,
    Pairs,
    Problem,
    Scale,
    Start,
    logistic,
)
from counterlens.workflows.repair.remedies import equal


def data(n: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    x = rng.normal(size=(n, 6))
    x[:, 0] += y
    return x, y


def zeros(classes: int) -> Start:
    return Start(np.zeros((classes, 6)), np.zeros(classes), np.ones(classes, dtype=bool))


def test_softmax_regression_is_that_of_sklearn() -> None:
    x, y = data(300, 3)
    share = np.random.default_rng(1).uniform(0.5, 2, 300)
    share /= share.mean()
    got = logistic(x, y, zeros(3), strength=0.5, share=share)
    peer = LogisticRegression(C=0.5, tol=1e-10, max_iter=5000).fit(x, y, sample_weight=share)
    assert np.allclose(got.weight, peer.coef_, atol=1e-4)
    assert np.allclose(got.bias - got.bias.mean(), peer.intercept_, atol=1e-3)


def test_rows_of_classes_without_images_stay() -> None:
    """Oracle: no other free row lowers the loss, which torch computes with the frozen row in it."""
    x, y = data(200, 2)
    frozen = np.random.default_rng(2).normal(size=6)
    start = Start(np.stack([np.zeros(6), np.zeros(6), frozen]), np.array([0, 0, 0.7]),
                  np.array([True, True, False]))  # fmt: skip
    got = logistic(x, y, start, strength=0.2)
    assert np.array_equal(got.weight[2], frozen) and got.bias[2] == 0.7
    weight = torch.tensor(got.weight, requires_grad=True)
    bias = torch.tensor(got.bias, requires_grad=True)
    loss = cross_entropy(torch.tensor(x) @ weight.T + bias, torch.tensor(y))
    loss = loss + weight[:2].square().sum() / (2 * 0.2 * 200)
    slopes = torch.autograd.grad(loss, (weight, bias))
    assert slopes[0][:2].abs().max() < 1e-4 and slopes[1][:2].abs().max() < 1e-4


def test_the_consistency_term_is_at_its_minimum() -> None:
    """Oracle: the gradient of the loss as torch writes it vanishes where we stop."""
    x, y = data(200, 3)
    other = x + np.random.default_rng(3).normal(size=x.shape) * [0, 2, 0, 0, 0, 0]
    agree = Consistency(x, other, 5.0)
    got = logistic(x, y, zeros(3), strength=0.3, consistency=agree)
    weight = torch.tensor(got.weight, requires_grad=True)
    bias = torch.tensor(got.bias, requires_grad=True)
    f = lambda z: torch.tensor(z) @ weight.T + bias  # noqa: E731
    loss = cross_entropy(f(x), torch.tensor(y)) + weight.square().sum() / (2 * 0.3 * 200)
    loss = loss + 5.0 * (f(x) - f(other)).square().sum(1).mean()
    slopes = torch.autograd.grad(loss, (weight, bias))
    assert max(s.abs().max() for s in slopes) < 1e-4
    plain = logistic(x, y, zeros(3), strength=0.3)
    assert np.abs(got.weight[:, 1]).max() < 0.2 * np.abs(plain.weight[:, 1]).max() + 1e-3


def test_equal_weights_weigh_every_code_the_same() -> None:
    codes = np.array([3, 3, 3, 7])
    share = equal(codes)
    assert share.mean() == pytest.approx(1) and share[:3].sum() == pytest.approx(share[3])


def whole(n: int, seed: int, *, agree: float) -> Examples:
    """Feature 0 is the class, feature 1 the shortcut."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    z = np.where(rng.random(n) < agree, y, 1 - y)
    x = rng.normal(size=(n, 6))
    x[:, 0] += 1.5 * (2 * y - 1)
    x[:, 1] = 4.0 * (2 * z - 1) + 0.5 * rng.normal(size=n)
    return Examples(x, Grouped(y, z, ("cat", "dog"), ("no", "yes")))


def edited(part: Examples, feature: int) -> Examples:
    """The sign of a feature turned; of feature 1 that turns the shortcut."""
    x = part.x.copy()
    x[:, feature] *= -1
    values = 1 - part.by.values if feature == 1 else part.by.values
    return Examples(x, replace(part.by, values=values))


BIASED = Head(np.array([[-0.3, -1.0, 0, 0, 0, 0], [0.3, 1.0, 0, 0, 0, 0]]), np.zeros(2))


def test_pairs_repair_what_has_no_minority_and_unrelated_edits_do_not() -> None:
    fit, choose, check = (whole(n, n, agree=a) for n, a in ((600, 1.0), (400, 1.0), (2000, 0.5)))
    known = Pairs(np.arange(600), edited(fit, 1), edited(fit, 3).x)
    problem = Problem(BIASED, fit, choose.joined(edited(choose, 1)), known)
    new, placebo = pairs.pairs(problem), pairs.unrelated(problem)
    assert check.worst(BIASED) < 0.2
    assert check.worst(new) > 0.85
    assert check.worst(placebo) < 0.4
    with pytest.raises(InputError, match="pairs needs edited images"):
        pairs.pairs(Problem(BIASED, fit, choose))


def test_jtt_weighs_the_mistakes_of_the_model() -> None:
    fit, choose, check = (whole(n, n, agree=a) for n, a in ((800, 0.9), (800, 0.9), (2000, 0.5)))
    problem = Problem(BIASED, fit, choose)
    wrong = jtt.mistakes(problem)
    assert (wrong == (BIASED.answers(fit.x) != fit.by.labels)).all()
    assert check.worst(jtt.jtt(problem)) > check.worst(jtt.any_images(problem)) + 0.1


def test_jtt_needs_mistakes() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    x = np.stack([20.0 * (2 * y - 1), *rng.normal(size=(5, 200))], axis=1)
    easy = Examples(x, Grouped(y, y * 0, ("cat", "dog"), ("all",)))
    head = Head(np.array([[-1.0, 0, 0, 0, 0, 0], [1.0, 0, 0, 0, 0, 0]]), np.zeros(2))
    with pytest.raises(InputError, match="jtt needs 20 fit images that the model gets wrong"):
        jtt.jtt(Problem(head, easy, easy))


def test_scaling_is_folded_into_the_head() -> None:
    x, _ = data(40, 2)
    scale = Scale.of(x)
    weight, bias = np.random.default_rng(4).normal(size=(2, 6)), np.array([0.2, -0.1])
    assert np.allclose(scale.folded(weight, bias).logits(x), scale.apply(x) @ weight.T + bias)
