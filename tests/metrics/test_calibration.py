"""Calibration against literal loops and scikit-learn in float64, and against closed forms."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss

import metric_references as literal
from counterlens.errors import InputError
from counterlens.metrics import answers, brier, ece, joint_ece, judge, nll, reliability, rms
from counterlens.metrics.calibration import count_bins, rms_of, width_bins

CASES = literal.edge_cases()
pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("span", "bins"), [("paper", 15), ("paper", 10), ("common", 15)])
def test_ece_equals_the_literal_loops(case, span, bins):
    logits, labels = CASES[case]
    probs = logits.softmax(1)
    start = 1 / logits.shape[1] if span == "paper" else 0.0
    expected = literal.ece(probs.tolist(), labels.tolist(), bins, start)
    assert ece(probs, labels, bins=bins, span=span) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("case", [c for c in CASES if c not in ("ties", "all the same")])
@pytest.mark.parametrize("last", [True, False])
def test_rms_equals_the_literal_loops(case, last):
    logits, labels = CASES[case]
    probs = logits.softmax(1)
    if case == "confidence exactly 1":  # 40 images of equal confidence fit into the last bin
        assert (probs.max(1).values == 1).sum() == 40
    expected = literal.rms(probs.tolist(), labels.tolist(), 100, last)
    assert rms(probs, labels, last=last) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_nll_and_brier_equal_scikit_learn(case):
    logits, labels = CASES[case]
    probs = logits.softmax(1)
    judged = judge(logits, labels)
    classes = list(range(logits.shape[1]))
    if case != "confidence exactly 1":  # scikit-learn clips probabilities of 0
        expected = log_loss(labels, probs, labels=classes)
        assert nll(probs, labels) == pytest.approx(expected, abs=1e-9)
        assert judged.nll.mean().item() == pytest.approx(expected, abs=1e-9)
    expected = brier_score_loss(labels.numpy(), probs.numpy(), labels=classes, scale_by_half=False)
    assert brier(probs, labels) == pytest.approx(expected, abs=1e-9)
    assert judged.brier.mean().item() == pytest.approx(expected, abs=1e-9)


def test_confidence_one_shares_the_last_bin():
    probs = torch.tensor([[0.96, 0.04], [1.0, 0.0]], dtype=torch.float64)
    labels = torch.tensor([0, 1])
    assert ece(probs, labels, bins=10) == pytest.approx(abs(1 - 1.96) / 2)
    assert ece(probs, labels, bins=10, span="common") == pytest.approx(abs(1 - 1.96) / 2)


def test_a_confidence_on_a_border_belongs_to_the_bin_below():
    confidence = torch.tensor([0.5, 0.75, 1.0], dtype=torch.float64)
    result = width_bins(confidence, torch.ones(3), bins=2, start=0.5)
    assert result.n.tolist() == [2, 1]


def test_sure_and_right_is_perfect_calibration():
    probs = torch.eye(4, dtype=torch.float64)
    labels = torch.arange(4)
    assert ece(probs, labels) == 0
    assert rms(probs, labels) == 0
    assert brier(probs, labels) == 0
    assert nll(probs, labels) == 0


def test_rms_without_the_last_bin_drops_exactly_its_share():
    """Two bins of 100: gap 0.4 at confidence 0.6, gap 0.1 at confidence 0.9."""
    confidence = torch.tensor([0.6] * 100 + [0.9] * 100, dtype=torch.float64)
    right = torch.tensor([True] * 100 + [True] * 80 + [False] * 20)
    bins = count_bins(confidence, right)
    assert rms_of(bins) == pytest.approx(math.sqrt((0.4**2 + 0.1**2) / 2))
    assert rms_of(bins, last=False) == pytest.approx(math.sqrt(0.4**2 / 2))


@pytest.mark.parametrize(("n", "sizes"), [(99, [99]), (100, [100]), (250, [100, 150])])
def test_a_remainder_joins_the_last_bin(n, sizes):
    confidence = torch.linspace(0.2, 1, n, dtype=torch.float64)
    assert count_bins(confidence, torch.ones(n)).n.tolist() == sizes


def test_equal_count_bins_do_not_depend_on_the_order_of_equal_confidences(rng):
    confidence = torch.full((300,), 0.7, dtype=torch.float64)
    right = torch.arange(300) < 150
    shuffled = right[torch.randperm(300, generator=rng)]
    assert rms_of(count_bins(confidence, right)) == rms_of(count_bins(confidence, shuffled))
    assert rms_of(count_bins(confidence, right)) == pytest.approx(0.2)


def test_joint_ece_of_uniform_answers_outside_is_half_of_the_inside_error(rng):
    probs = (torch.randn(500, 5, generator=rng, dtype=torch.float64) * 3).softmax(1)
    labels = torch.randint(0, 5, (500,), generator=rng)
    outside = torch.full((70, 5), 0.2, dtype=torch.float64)
    assert joint_ece(probs, labels, outside) == pytest.approx(ece(probs, labels) / 2, abs=1e-12)


def test_joint_ece_is_the_mean_over_drawn_labels_when_bins_are_full(rng):
    """With one bin and a gap that never changes sign the expectation is exact."""
    probs = torch.tensor([[0.9, 0.1]] * 4, dtype=torch.float64)
    outside = torch.tensor([[0.8, 0.2]] * 2, dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1])
    drawn = []
    for y in ([0, 0], [0, 1], [1, 0], [1, 1]):
        everything = torch.cat([probs, outside.repeat(2, 1)])
        truth = torch.cat([labels, torch.tensor(y).repeat(2)])
        drawn.append(ece(everything, truth, bins=1))
    assert joint_ece(probs, labels, outside, bins=1) == pytest.approx(np.mean(drawn))


def test_reliability_rows_rebuild_the_ece():
    logits, labels = CASES["random"]
    judged = judge(logits, labels)
    rows = reliability(judged.confidence, judged.right, classes=7, when="before")
    total = sum(r["n"] / 257 * abs(r["accuracy"] - r["confidence"]) for r in rows)
    assert total == pytest.approx(ece(logits.softmax(1), labels), abs=1e-12)
    assert sum(r["n"] for r in rows) == 257
    assert all(r["bin_low"] <= r["confidence"] <= r["bin_high"] for r in rows)


def test_logits_are_refused_where_probabilities_are_expected():
    with pytest.raises(InputError, match="not probabilities"):
        ece(torch.tensor([[3.0, 1.0]]), torch.tensor([0]))


def test_scores_of_saturated_float32_logits_stay_apart():
    """A float32 softmax calls all three exactly 1; log-odds keep their order."""
    logits = torch.tensor([[0.0, gap] for gap in (20.0, 40.0, 90.0)])
    assert logits.softmax(1).max(1).values.tolist() == [1.0, 1.0, 1.0]
    assert answers(logits).score.tolist() == [20.0, 40.0, 90.0]


@pytest.mark.parametrize("case", CASES)
def test_scores_order_images_as_confidences_do(case):
    logits, _ = CASES[case]
    judged = answers(logits, temperature=1.7)
    order = judged.score.argsort()
    ordered = judged.confidence[order].tolist()
    assert all(a <= b + 1e-15 for a, b in pairwise(ordered))
    expected = torch.tensor([max(literal.softmax(row, 1.7)) for row in logits.tolist()])
    torch.testing.assert_close(judged.confidence, expected.double(), rtol=0, atol=1e-7)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_unusable_logits_are_counted_and_refused(bad):
    logits = torch.zeros(5, 3)
    logits[[1, 4], 0] = bad
    with pytest.raises(InputError, match="2 of 5 rows hold NaN or infinity"):
        answers(logits)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_a_temperature_must_be_a_positive_number(temperature):
    with pytest.raises(InputError, match="temperature"):
        answers(torch.zeros(2, 2), temperature=temperature)
