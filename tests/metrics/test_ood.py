"""OOD and selective metrics against scikit-learn and literal loops in float64."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

import metric_references as literal
from counterlens.errors import InputError
from counterlens.metrics import (
    answers,
    aupr,
    auroc,
    aurra,
    confidence_hist,
    fpr95,
    mmc,
    response_rate,
)


def _scores(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(5)
    inside = torch.randn(203, generator=rng, dtype=torch.float64) + 1
    outside = torch.randn(91, generator=rng, dtype=torch.float64)
    if kind == "ties":
        return inside.round(), outside.round()
    if kind == "separate":
        return inside + 100, outside
    if kind == "reversed":
        return inside - 100, outside
    if kind == "constant":
        return torch.zeros(200), torch.zeros(40)
    if kind == "one each":
        return inside[:1], outside[:1]
    return inside, outside


KINDS = ["random", "ties", "separate", "reversed", "constant", "one each"]


@pytest.mark.parametrize("kind", KINDS)
def test_auroc_and_aupr_equal_scikit_learn(kind):
    inside, outside = _scores(kind)
    scores = np.concatenate([inside, outside])
    known = np.r_[np.ones(len(inside)), np.zeros(len(outside))]
    assert auroc(inside, outside) == pytest.approx(roc_auc_score(known, scores), abs=1e-12)
    expected = average_precision_score(1 - known, -scores)
    assert aupr(inside, outside) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_auroc_and_fpr95_equal_the_literal_loops(kind):
    inside, outside = _scores(kind)
    lists = inside.tolist(), outside.tolist()
    assert auroc(inside, outside) == pytest.approx(literal.auroc(*lists), abs=1e-12)
    assert fpr95(inside, outside) == pytest.approx(literal.fpr95(*lists), abs=1e-12)


@pytest.mark.parametrize("n", [1, 19, 20, 21, 39, 40, 100, 1000])
def test_fpr95_keeps_at_least_95_percent_and_no_more_than_needed(n):
    inside = torch.arange(n, dtype=torch.float64)
    outside = inside.clone()  # the share accepted is the share of the known that is kept
    accepted = fpr95(inside, outside)
    assert accepted >= 0.95 - 1e-12
    assert accepted - 1 / n < 0.95


def test_aupr_at_another_ratio_equals_repeating_the_unknown_images():
    inside, outside = _scores("random")
    repeated = aupr(inside, outside.repeat(3))
    assert aupr(inside, outside, ratio=3 * 91 / 203) == pytest.approx(repeated, abs=1e-12)


def test_constant_scores_reach_chance():
    """2,000 unknown among 10,000 known: chance is 2000/12000, and 10000/12000 the other way."""
    known, unknown = torch.zeros(10_000), torch.zeros(2_000)
    assert aupr(known, unknown) == pytest.approx(2000 / 12000)
    assert aupr(unknown, known) == pytest.approx(10000 / 12000)
    assert auroc(known, unknown) == 0.5


def test_auroc_of_saturated_logits_is_not_blurred_by_ties():
    inside = torch.tensor([[0.0, 60.0], [0.0, 50.0]])
    outside = torch.tensor([[0.0, 40.0], [0.0, 45.0]])
    assert auroc(inside.softmax(1).amax(1), outside.softmax(1).amax(1)) == 0.5
    assert auroc(answers(inside).score, answers(outside).score) == 1.0


def test_mmc_is_the_mean_confidence():
    logits = torch.tensor([[0.0, 0.0], [0.0, 1000.0]])
    assert mmc(answers(logits).confidence) == 0.75


def test_aurra_equals_the_literal_loops(rng):
    score = torch.randn(211, generator=rng, dtype=torch.float64)
    right = torch.rand(211, generator=rng) < 0.7
    expected = literal.aurra(score.tolist(), right.tolist())
    assert aurra(score, right) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("score", "right"),
    [([1, 1], [1, 0]), ([2, 1, 1, 1], [0, 1, 0, 0]), ([3, 3, 2, 2, 2, 1], [1, 0, 0, 1, 1, 0])],
)
def test_aurra_of_ties_is_the_mean_over_all_orders(score, right):
    hits = [bool(r) for r in right]
    expected = literal.aurra_expected([float(s) for s in score], hits)
    result = aurra(torch.tensor(score, dtype=torch.float64), torch.tensor(hits))
    assert result == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("n", "c"), [(1, 1), (1, 0), (10, 10), (10, 3), (100, 99)])
def test_aurra_of_a_perfect_ranking_is_the_mean_of_min_1_c_over_m(n, c):
    right = torch.arange(n) < c
    expected = np.mean([min(1.0, c / m) for m in range(1, n + 1)])
    assert aurra(-torch.arange(n, dtype=torch.float64), right) == pytest.approx(expected)


def test_the_response_rate_curve_ends_at_the_accuracy(rng):
    score = torch.randn(1000, generator=rng)
    right = torch.rand(1000, generator=rng) < 0.6
    rows = response_rate(score, right)
    assert len(rows) <= 200
    assert rows[-1]["rate"] == 1
    assert rows[-1]["accuracy"] == pytest.approx(right.double().mean().item())
    assert [r["rate"] for r in rows] == sorted(r["rate"] for r in rows)


def test_the_histogram_counts_every_confidence_once():
    rows = confidence_hist(
        torch.tensor([0.0, 0.05, 0.051, 1.0]).double().round(decimals=3), name="svhn"
    )
    assert [r["n"] for r in rows if r["n"]] == [2, 1, 1]
    assert rows[-1]["n"] == 1
    assert sum(r["share"] for r in rows) == pytest.approx(1)


@pytest.mark.parametrize("call", [auroc, aupr, fpr95])
def test_an_empty_side_is_refused(call):
    with pytest.raises(InputError, match=r"outside has shape \(0,\)"):
        call(torch.zeros(3), torch.zeros(0))


@pytest.mark.parametrize("call", [auroc, aupr, fpr95])
def test_nan_scores_are_refused(call):
    with pytest.raises(InputError, match="NaN"):
        call(torch.tensor([float("nan")]), torch.zeros(1))
