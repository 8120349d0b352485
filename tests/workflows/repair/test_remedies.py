"""New heads on features, against independent computations."""

import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from counterlens.errors import InputError
from counterlens.workflows.repair import remedies
from counterlens.workflows.repair.erasure import eraser
from counterlens.workflows.repair.groups import Grouped
from counterlens.workflows.repair.heads import Examples, Head, Problem


def planted(n: int, seed: int, *, agree: float = 0.9, classes: int = 2) -> Examples:
    """Feature 0 is the class, weakly; feature 1 the shortcut, strongly; the rest is noise."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    z = np.where(rng.random(n) < agree, y % 2, 1 - y % 2)
    x = rng.normal(size=(n, 6))
    x[:, 0] += 3.0 * (y - (classes - 1) / 2)
    x[:, 1] += 4.0 * (2 * z - 1)
    names = tuple(f"c{k}" for k in range(classes))
    return Examples(x, Grouped(y.astype(np.int64), z.astype(np.int64), names, ("no", "yes")))


def planted3(n: int) -> Examples:
    """Two of three classes."""
    two = planted(n, 0)
    names = ("c0", "c1", "c2")
    return Examples(two.x, Grouped(two.by.labels, two.by.values, names, ("no", "yes")))


SHORTCUT = Head(np.array([[-0.5, -1.0, 0, 0, 0, 0], [0.5, 1.0, 0, 0, 0, 0]]), np.array([0.1, -0.1]))


def test_erased_features_have_no_covariance_with_the_column() -> None:
    fit = planted(400, 0)
    z = np.eye(2)[fit.by.values]
    change, mean = eraser(fit.x, z)
    erased = fit.x - (fit.x - mean) @ change.T
    before = (fit.x - fit.x.mean(0)).T @ (z - z.mean(0)) / 400
    after = (erased - erased.mean(0)).T @ (z - z.mean(0)) / 400
    assert np.abs(before).max() > 0.5
    assert np.abs(after).max() < 1e-6


def test_features_without_variance_are_erased_too() -> None:
    fit = planted(300, 1)
    x = np.hstack([fit.x, np.zeros((300, 1)), fit.x[:, :1]])  # constant and repeated columns
    z = np.eye(2)[fit.by.values]
    change, mean = eraser(x, z)
    erased = x - (x - mean) @ change.T
    assert np.abs(erased.T @ (z - z.mean(0)) / 300).max() < 1e-6


def test_the_folded_head_is_the_old_head_on_erased_features() -> None:
    fit, other = planted(400, 0), planted(50, 9)
    change, mean = eraser(fit.x, np.eye(2)[fit.by.values])
    folded = remedies.erase(Problem(SHORTCUT, fit, fit))
    erased = other.x - (other.x - mean) @ change.T
    assert np.allclose(folded.logits(other.x), SHORTCUT.logits(erased), atol=1e-9)


def test_a_probe_on_other_images_no_longer_finds_the_column() -> None:
    fit, other = planted(2000, 0), planted(2000, 3)
    change, mean = eraser(fit.x, np.eye(2)[fit.by.values])
    erased = [e.x - (e.x - mean) @ change.T for e in (fit, other)]
    probe = LogisticRegression().fit(erased[0], fit.by.values)
    most = np.bincount(other.by.values).max() / 2000
    assert probe.score(erased[1], other.by.values) < most + 0.03
    assert LogisticRegression().fit(fit.x, fit.by.values).score(other.x, other.by.values) > 0.98


@pytest.mark.parametrize("classes", [2, 3])
def test_dfr_is_a_literal_loop_of_sklearn(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remedies, "DFR_STRENGTHS", (0.3,))
    monkeypatch.setattr(remedies, "DRAWS", 4)
    fit, choose = planted(600, 0, agree=0.8, classes=classes), planted(200, 1, classes=classes)
    old = Head(np.zeros((classes, 6)), np.zeros(classes))
    got = remedies.dfr(Problem(old, fit, choose, seed=5))

    rng = np.random.default_rng([5, 0])
    scaled = (fit.x - fit.x.mean(0)) / fit.x.std(0)
    total = 0
    for _ in range(4):
        rows = remedies.balanced(fit.by.groups, rng)
        _, counts = np.unique(fit.by.groups[rows], return_counts=True)
        assert len(set(counts)) == 1 and len(set(rows)) == len(rows)
        one = LogisticRegression(l1_ratio=1, C=0.3, solver="liblinear", random_state=0)
        model = OneVsRestClassifier(one).fit(scaled[rows], fit.by.labels[rows])
        new = (choose.x - fit.x.mean(0)) / fit.x.std(0)
        total = total + np.stack([e.decision_function(new).ravel() for e in model.estimators_], 1)
    logits = got.logits(choose.x)
    expected = logits if classes > 2 else (logits[:, 1:] - logits[:, :1])
    assert np.allclose(expected, total / 4, atol=1e-5)


def test_temperature_is_the_minimum_on_a_grid_and_keeps_the_answers() -> None:
    fit = planted(500, 2)
    new = remedies.temperature(Problem(SHORTCUT, fit, fit))
    logits = SHORTCUT.logits(fit.x)

    def loss(t: float) -> float:
        return -log_softmax(logits / t, axis=1)[np.arange(500), fit.by.labels].mean()

    best = min(np.linspace(0.1, 6, 2000), key=loss)
    assert SHORTCUT.weight[1, 1] / new.weight[1, 1] == pytest.approx(best, abs=0.01)
    assert (new.answers(fit.x) == SHORTCUT.answers(fit.x)).all()


def test_prior_takes_off_the_log_of_each_share() -> None:
    fit = planted(300, 4)
    new = remedies.prior(Problem(SHORTCUT, fit, fit))
    share = [np.mean(fit.by.labels == k) for k in (0, 1)]
    assert np.allclose(np.exp(SHORTCUT.bias - new.bias), share)


@pytest.mark.parametrize("name", ["group-weights", "dfr", "jtt"])
def test_a_planted_shortcut_is_repaired(name: str) -> None:
    fit, choose, check = planted(800, 0), planted(800, 1), planted(2000, 2)
    problem = Problem(SHORTCUT, fit, choose)
    new = remedies.REMEDIES[name].fit(problem)
    assert check.worst(SHORTCUT) < 0.2
    assert check.worst(new) > check.worst(SHORTCUT) + 0.4
    placebo = remedies.REMEDIES[name].placebo
    assert placebo is not None
    assert check.worst(new) > check.worst(placebo(problem)) + 0.05


def test_shuffled_groups_keep_their_sizes_within_each_class() -> None:
    by = planted(500, 0).by
    mixed = remedies.shuffled(by, np.random.default_rng(0))
    assert mixed.sizes() == by.sizes()
    assert (mixed.labels == by.labels).all() and (mixed.values != by.values).any()


def test_dfr_refuses_classes_without_a_minority_and_small_groups() -> None:
    whole = planted(200, 0, agree=1.0)
    with pytest.raises(InputError, match="no minority to balance"):
        remedies.dfr(Problem(SHORTCUT, whole, whole))
    few = planted(200, 0, agree=0.95)
    with pytest.raises(InputError, match="dfr needs 20 images of each group"):
        remedies.dfr(Problem(SHORTCUT, few, few))
    three = Head(np.zeros((3, 6)), np.zeros(3))
    with pytest.raises(InputError, match="every class of the model"):
        remedies.dfr(Problem(three, *(planted3(200),) * 2))
    for name in ("erase", "spufix", "group-weights"):
        with pytest.raises(InputError, match=f"{name} needs a class whose fix images have two"):
            remedies.REMEDIES[name].fit(Problem(SHORTCUT, whole, whole))
