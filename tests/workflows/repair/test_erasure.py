"""Erasure with pairs, and the probe that says what is left."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from tests.workflows.repair.test_remedies import SHORTCUT, planted

from counterlens.workflows.repair import remedies
from counterlens.workflows.repair.erasure import erase, eraser, fitted_eraser, independent, probed
from counterlens.workflows.repair.groups import Grouped
from counterlens.workflows.repair.heads import Examples, Head, Pairs, Problem


def shifted(fit: Examples, rows: np.ndarray, *, seed: int) -> Examples:
    """The same pictures with the other value: feature 1 moves, a little differently in each."""
    by = fit.by.take(rows)
    x = fit.x[rows].copy()
    x[:, 1] += (8.0 + np.random.default_rng(seed).normal(size=len(rows))) * (1 - 2 * by.values)
    return Examples(x, Grouped(by.labels, 1 - by.values, by.classes, by.names))


def test_pairs_alone_decide_what_is_erased_so_the_class_stays() -> None:
    """Value and class always agree in the set: without pairs the class would go, too."""
    fit = planted(400, 0, agree=1.0)
    rows = np.arange(0, 400, 2)
    edited = shifted(fit, rows, seed=1)
    problem = Problem(SHORTCUT, fit, fit, Pairs(rows, edited, edited.x))
    change, _ = fitted_eraser(problem)
    x = np.concatenate([fit.x[rows], edited.x])
    z = np.eye(2)[np.concatenate([fit.by.values[rows], edited.by.values])]
    assert np.allclose(change, eraser(x, z)[0])
    class_axis = np.eye(6)[0]
    assert np.linalg.norm(change.T @ class_axis) < 0.05  # feature 0 is hardly touched
    alone, _ = eraser(fit.x, np.eye(2)[fit.by.values])
    assert np.linalg.norm(alone.T @ class_axis) > 0.2
    head = Head(np.array([[-1.0, 0, 0, 0, 0, 0], [1.0, 0, 0, 0, 0, 0]]), np.zeros(2))
    kept = erase(Problem(head, fit, fit, problem.pairs))
    check = planted(1000, 5, agree=0.5)
    assert (kept.answers(check.x) == head.answers(check.x)).mean() > 0.98


def test_the_placebo_with_pairs_erases_an_unrelated_edit() -> None:
    """Feature 5 alone is moved by the unrelated edit: the shortcut, feature 1, stays."""
    fit = planted(400, 0, agree=1.0)
    rows = np.arange(0, 400, 2)
    unrelated = fit.x[rows] + np.eye(6)[5] * 3.0
    edited = shifted(fit, rows, seed=1)
    problem = Problem(SHORTCUT, fit, fit, Pairs(rows, edited, unrelated))
    placebo = remedies.REMEDIES["erase"].placebo_of(problem)
    assert placebo is not None and placebo[1] == "unrelated edits"
    assert np.allclose(placebo[0](problem).weight[:, 1], SHORTCUT.weight[:, 1], atol=0.05)
    assert np.abs(erase(problem).weight[:, 1]).max() < 0.3
    alone = remedies.REMEDIES["erase"].placebo_of(Problem(SHORTCUT, fit, fit))
    assert alone is not None and alone[1] == "shuffled groups"


def test_pairs_of_one_value_fall_back_on_all_images() -> None:
    fit = planted(300, 0, agree=0.7)
    rows = np.arange(50)
    same = Examples(fit.x[rows] + 0.1, fit.by.take(rows))
    both = fit.joined(same)
    change, _ = fitted_eraser(Problem(SHORTCUT, fit, fit, Pairs(rows, same, same.x)))
    assert np.allclose(change, eraser(both.x, np.eye(2)[both.by.values])[0])


def test_weights_make_the_value_independent_of_the_class() -> None:
    by = Grouped(
        np.array([0, 0, 0, 0, 1, 1, 1, 2, 2]), np.array([0, 0, 0, 1, 0, 1, 1, 1, 1]),
        ("a", "b", "c"), ("no", "yes"),
    )  # fmt: skip
    share = independent(by)
    assert share.tolist() == pytest.approx([2 / 3, 2 / 3, 2 / 3, 2, 1.5, 0.75, 0.75, 0, 0])
    assert (independent(by.take(np.array([7, 8]))) == 1).all()


def test_the_probe_is_that_of_sklearn_on_balanced_images() -> None:
    known, check = planted(600, 2, agree=0.5), planted(400, 3, agree=0.5)
    zeros = np.zeros((6, 6))
    number = probed(zeros, np.zeros(6), known, check)
    scale = known.x.std(0)
    probe = LogisticRegression(C=0.01, max_iter=2000)
    probe.fit(known.x / scale, known.by.values, sample_weight=independent(known.by))
    score = probe.decision_function(check.x / scale)
    assert number.value == pytest.approx(roc_auc_score(check.by.values, score), abs=1e-9)
    assert number.low is not None and number.high is not None
    assert number.low <= number.value <= number.high and number.n == 400
    change, mean = eraser(known.x, np.eye(2)[known.by.values])
    assert probed(change, mean, planted(4000, 7, agree=0.5), check).value < 0.6


def test_more_images_leave_less() -> None:
    """30 features without pairs: what a probe on other images finds falls with n."""

    def wide(n: int, seed: int) -> Examples:
        rng = np.random.default_rng(seed)
        z = np.arange(n) % 2
        x = rng.normal(size=(n, 30)) + 1.5 * z[:, None] / np.sqrt(30)
        y = rng.integers(0, 2, n)
        return Examples(x, Grouped(y, z.astype(np.int64), ("a", "b"), ("no", "yes")))

    known, check = wide(20_000, 1), wide(20_000, 2)
    areas = [
        probed(*eraser(fit.x, np.eye(2)[fit.by.values]), known, check).value
        for fit in (wide(60, 3), wide(600, 4), wide(20_000, 5))
    ]
    assert areas[0] > areas[1] > areas[2] and abs(areas[2] - 0.5) < 0.02
