"""Groups against SciPy's Wilson interval, literal loops and enumeration of all tables."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import binomtest

from counterlens.metrics import groups as g
from counterlens.metrics.intervals.closed_form import newcombe, wilson
from counterlens.metrics.intervals.multiple import (
    bonferroni,
    holm,
    jointly_judged,
    least_images,
    stratified_test,
)
from counterlens.runs import Number


def flags(hits: int, n: int) -> np.ndarray:
    return np.arange(n) < hits


def test_the_interval_of_a_group_is_wilsons_at_the_bonferroni_level() -> None:
    right = np.concatenate([flags(180, 200), flags(150, 200), flags(10, 10)])
    groups = g.grouped({"site": ["A"] * 200 + ["B"] * 200 + ["C"] * 10})
    a, b, c = (g.accuracy(group, right, groups) for group in groups.every)
    for number, hits in ((a, 180), (b, 150)):
        expected = binomtest(hits, 200).proportion_ci(1 - 0.05 / 2, "wilson")
        assert (number.low, number.high) == pytest.approx((expected.low, expected.high))
    assert c.value is None and c.reason is not None and "10 images" in c.reason
    assert "2 of 3 groups judged together" in a.protocol


def test_a_gap_is_to_the_images_outside_and_two_halves_count_once() -> None:
    right = np.concatenate([flags(180, 200), flags(150, 200)])
    groups = g.grouped({"site": ["A"] * 200 + ["B"] * 200})
    first, second = g.gaps(groups, right)
    assert first["gap"] == pytest.approx(0.15) == -second["gap"]
    assert first["comparisons"] == 1
    assert (first["low"], first["high"]) == pytest.approx(newcombe((180, 150), (200, 200)))
    assert first["p_holm"] == first["p"] == second["p_holm"] < 0.001


def test_three_groups_are_three_comparisons_and_tests_are_adjusted() -> None:
    right = np.concatenate([flags(90, 100), flags(80, 100), flags(50, 100)])
    groups = g.grouped({"site": ["A"] * 100 + ["B"] * 100 + ["C"] * 100})
    rows = g.gaps(groups, right)
    assert [row["comparisons"] for row in rows] == [3, 3, 3]
    assert [row["p_holm"] for row in rows] == pytest.approx(holm([row["p"] for row in rows]))
    z = float(ndtri(1 - 0.05 / 6))
    assert rows[2]["low"] == pytest.approx(newcombe((50, 170), (100, 200), z=z)[0])


def test_intersections_that_are_one_of_their_groups_are_left_out() -> None:
    columns = {"site": ["A", "A", "B", "B"] * 100, "old": ["yes", "yes", "no", "no"] * 100}
    assert len(g.grouped(columns).every) == 4
    columns = {"site": ["A", "A", "B", "B"] * 100, "old": ["yes", "no", "yes", "no"] * 100}
    groups = g.grouped(columns)
    assert [group.name for group in groups.every][4:] == [
        "site = A, old = no", "site = A, old = yes", "site = B, old = no", "site = B, old = yes",
    ]  # fmt: skip


def test_images_without_a_value_belong_to_no_group_and_to_no_rest() -> None:
    groups = g.grouped({"site": ["A"] * 150 + ["B"] * 150 + [None] * 100})
    right = np.concatenate([flags(100, 150), flags(100, 150), flags(0, 100)])
    assert [row["rest"] for row in g.gaps(groups, right)] == pytest.approx([2 / 3, 2 / 3])


@given(st.floats(0.02, 0.4), st.floats(1.0, 4.5))
def test_the_least_group_is_the_first_whose_widest_interval_is_narrow_enough(
    half: float, z: float
) -> None:
    def widest(n: int) -> float:
        low, high = wilson(n / 2, n, z=z)
        return (high - low) / 2

    n = least_images(half, z)
    assert widest(n) <= half + 1e-9
    assert n == 1 or widest(n - 1) > half - 1e-9


@given(st.lists(st.integers(1, 400), min_size=1, max_size=30))
def test_judged_groups_are_the_largest_and_all_large_enough_together(sizes: list[int]) -> None:
    judged, least = jointly_judged(sizes, 0.15)
    count = sum(judged)
    taken = sorted(sizes, reverse=True)[:count]
    assert sorted((n for n, flag in zip(sizes, judged, strict=True) if flag), reverse=True) == taken
    assert all(n >= least for n in taken)
    rest = sorted(sizes, reverse=True)[count:]
    assert not rest or rest[0] < least_images(0.15, bonferroni(count + 1))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_equals_the_step_down_procedure_at_every_level(p: list[float]) -> None:
    adjusted = holm(p)
    for alpha in (0.01, 0.05, 0.2):
        rejected = set()
        for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
            if p[i] * (len(p) - rank) > alpha:
                break
            rejected.add(i)
        assert {i for i, value in enumerate(adjusted) if value <= alpha} == rejected


def test_the_test_over_strata_equals_the_enumeration_of_all_draws() -> None:
    totals, n, hits = [(3, 7), (2, 5)], [3, 2], [3, 1]
    chance = 0.0
    for drawn in product(*(range(size + 1) for size in n)):
        if sum(drawn) >= sum(hits):
            ways = [
                math.comb(marked, x) * math.comb(size - marked, k - x) / math.comb(size, k)
                for x, k, (marked, size) in zip(drawn, n, totals, strict=True)
                if k - x <= size - marked
            ]
            chance += math.prod(ways) if len(ways) == 2 else 0.0
    assert stratified_test(hits, n, totals) == pytest.approx(chance)


def test_overconfidence_is_confidence_less_accuracy_and_open_where_all_are_right() -> None:
    groups = g.grouped({"site": ["A"] * 200 + ["B"] * 200})
    right = np.concatenate([flags(200, 200), flags(100, 200)])
    confidence = np.concatenate([np.full(200, 0.99), np.full(200, 0.9)])
    a, b = (g.overconfidence(group, confidence, right, groups) for group in groups.every)
    assert a.value == pytest.approx(-0.01) and a.high is not None and a.high > 0.01
    assert b.value == pytest.approx(0.4) and b.low is not None and b.low > 0.25


def test_auroc_of_a_group_counts_pairs() -> None:
    rng = np.random.default_rng(0)
    inside, outside = rng.integers(0, 9, 240).astype(float), rng.integers(0, 6, 30).astype(float)
    groups = g.grouped({"site": ["A"] * 120 + ["B"] * 120})
    number = g.auroc(groups.every[1], inside, outside, groups)
    pairs = [(a > b) + (a == b) / 2 for a in inside[120:] for b in outside]
    assert number.value == pytest.approx(np.mean(pairs))


def test_the_worst_is_bounded_by_the_least_ends_of_all() -> None:
    numbers = [("A", Number(0.8, 50, 0.6, 0.9, "")), ("B", Number(0.82, 9, 0.4, 0.95, ""))]
    worst = g.worst(numbers, "accuracy")
    assert (worst.value, worst.low, worst.high) == (0.8, 0.4, 0.9)
    largest = g.worst(numbers, "overconfidence", lowest=False)
    assert (largest.value, largest.low, largest.high) == (0.82, 0.6, 0.95)
    assert g.worst([("A", Number.missing("few", ""))], "accuracy").value is None
