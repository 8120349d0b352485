"""Operating points against searches over every threshold, literal sums, and repeated draws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from counterlens.errors import InputError
from counterlens.metrics.intervals.closed_form import Z
from counterlens.metrics.operating import choose, class_number, decide, evaluate, parse_target

scores = st.lists(st.integers(0, 12), min_size=1, max_size=40)


@given(scores, st.sampled_from([0.5, 0.8, 0.9, 0.95]))
def test_recall_takes_the_highest_threshold_that_conformal_risk_control_allows(
    values: list[int], level: float
) -> None:
    positives = np.array(values, dtype=float)
    n, alpha = len(positives), 1 - level
    point = choose(parse_target(f"recall:cat:{level}"), positives, np.ones(n, bool))
    allowed = [
        t
        for t in np.unique(positives)
        if n / (n + 1) * np.mean(positives < t) + 1 / (n + 1) <= alpha + 1e-12
    ]
    assert point.threshold == (max(allowed) if allowed else None)
    assert (point.threshold is None) == bool(point.reason)


@given(scores, st.sampled_from([0.05, 0.1, 0.3]))
def test_false_positives_stay_below_the_corrected_level(values: list[int], alpha: float) -> None:
    negatives = np.array(values, dtype=float)
    n = len(negatives)
    point = choose(parse_target(f"fpr:cat:{alpha}"), negatives, np.zeros(n, bool))
    if point.threshold is None:
        assert 1 / (n + 1) > alpha
        return

    def corrected(t: float) -> float:
        return n / (n + 1) * np.mean(negatives >= t) + 1 / (n + 1)

    assert corrected(point.threshold) <= alpha + 1e-12
    lower = negatives[negatives < point.threshold]
    if len(lower):
        assert corrected(lower.max()) > alpha


@given(st.integers(0, 2**31))
def test_selective_risk_stops_at_the_first_threshold_that_is_not_shown(seed: int) -> None:
    rng = np.random.default_rng(seed)
    score = rng.integers(0, 30, 150) / 30
    right = rng.random(150) < 0.7 + 0.3 * score
    point = choose(parse_target("risk:0.1"), score, right)
    expected = None
    for t in sorted(set(score.tolist()), reverse=True):
        taken = score >= t
        if 0.9 ** taken.sum() > 0.05:  # not even without a mistake
            continue
        if binom.cdf((~right & taken).sum(), taken.sum(), 0.1) > 0.05:
            break
        expected = t
    assert point.threshold == expected


def test_the_promise_of_selective_risk_is_kept_in_95_of_100_draws() -> None:
    rng, broken, answered = np.random.default_rng(0), 0, []
    for _ in range(400):
        score = rng.random(300)
        right = rng.random(300) < 0.6 + 0.4 * score
        t = choose(parse_target("risk:0.15"), score, right).threshold
        if t is not None:
            truth = 1 - (0.6 + 0.4 * (1 + t) / 2)  # mean risk of scores above t
            broken += truth > 0.15
            answered.append(1 - t)
    assert broken <= 0.05 * 400 + 9
    assert np.mean(answered) > 0.3  # the exact answer is 0.75


def test_conformal_recall_holds_on_average_over_draws() -> None:
    rng = np.random.default_rng(1)
    recalls = []
    for _ in range(500):
        t = choose(parse_target("recall:cat:0.9"), rng.random(60), np.ones(60, bool)).threshold
        assert t is not None
        recalls.append(1 - t)
    assert np.mean(recalls) + 0.004 >= 0.9
    assert np.mean(recalls) < 0.92


def test_coverage_answers_the_surest_share() -> None:
    point = choose(parse_target("coverage:0.3"), np.arange(10.0), np.ones(10, bool))
    assert point.threshold == 7.0


def test_rates_are_counted_on_the_other_images() -> None:
    score, right = np.array([0.9, 0.8, 0.4, 0.95]), np.array([True, False, True, True])
    calibrated = choose(parse_target("coverage:0.5"), score, right)
    found = evaluate(parse_target("coverage:0.5"), calibrated, score, right, z=Z)
    assert found["coverage"].value == 0.5 and found["risk"].value == 0.0
    target = parse_target("recall:cat:0.5")
    point = choose(target, np.array([0.5, 0.85, 0.9, 0.95]), np.ones(4, bool))
    found = evaluate(target, point, score, right, z=Z)
    assert point.threshold == 0.85 or point.threshold == 0.9 or point.threshold is not None
    taken = score >= point.threshold
    assert found["recall"].value == (taken & right).sum() / right.sum()
    assert found["precision"].value == (taken & right).sum() / taken.sum()
    assert found["fpr"].value == (taken & ~right).sum() / (~right).sum()


def test_the_decision_of_least_cost_equals_a_loop() -> None:
    rng = np.random.default_rng(0)
    p, costs = rng.dirichlet(np.ones(4), 20), rng.random((4, 4))
    for i, chosen in enumerate(decide(p, costs)):
        expected = [sum(p[i, j] * costs[j, k] for j in range(4)) for k in range(4)]
        assert chosen == int(np.argmin(expected))


@pytest.mark.parametrize("text", ["risk", "risk:1.5", "risk:cat:0.1", "recall:0.9", "f1:cat:0.9"])
def test_targets_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected coverage"):
        parse_target(text)


def test_a_misspelt_class_is_refused_with_the_near_one() -> None:
    with pytest.raises(InputError, match="Did you mean cat"):
        class_number(parse_target("recall:catt:0.9"), ("cat", "dog"))
