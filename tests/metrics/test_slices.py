"""Slices: what is planted is found, what is not is not; the excess against literal sums.

Features are drawn from Gaussians here: the search is tested, not an encoder. Real features are in
benchmarks/planted_slices.py.
"""

from math import hypot

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from counterlens.errors import InputError
from counterlens.metrics.intervals.closed_form import newcombe
from counterlens.metrics.intervals.multiple import bonferroni
from counterlens.metrics.slices import LEAST, Slice, excess, find_slices, fit_mixture, standardised

K = 5


def world(seed: int, worse: float, n: int = 800) -> tuple[np.ndarray, ...]:
    """Features in clusters by class, 6 % of them moved; of the moved `worse` more are wrong."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, K, n)
    z = 3 * np.random.default_rng(0).normal(size=(K, 16))[y] + rng.normal(size=(n, 16))
    moved = rng.random(n) < 0.06
    z[moved, 0] += 6.0
    wrong = rng.random(n) < 0.05 + worse * moved
    answers = np.where(wrong, (y + rng.integers(1, K, n)) % K, y)
    return z, y, answers, moved


def test_a_planted_slice_is_found_and_found_again() -> None:
    z, y, answers, moved = world(0, 0.5)
    found, fits = find_slices(z, y, answers, repeats=2)
    first = found[0]
    assert first.confirmed and moved[first.members].mean() > 0.8
    assert first.again == 2 and fits.sum() == 400


def test_a_hard_class_is_no_slice() -> None:
    z, y, _, _ = world(1, 0.0)
    rng = np.random.default_rng(5)
    wrong = rng.random(len(y)) < np.where(y == 2, 0.5, 0.03)
    answers = np.where(wrong, (y + 1) % K, y)
    found, _ = find_slices(z, y, answers, repeats=0)
    assert not any(one.confirmed for one in found)


def test_membership_on_other_images_does_not_look_at_the_answer() -> None:
    z, y, answers, _ = world(2, 0.5)
    mixture = fit_mixture(z, y, answers, K, np.random.default_rng(0), components=8)
    assert mixture.assign(z, y).shape == (len(y),)  # no answer is taken, so none can leak
    assert np.allclose(mixture.weights.sum(), 1) and np.allclose(mixture.labels.sum(1), 1)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), worse=st.sampled_from([0.0, 0.15, 0.3]))
def test_a_slice_is_confirmed_exactly_where_its_corrected_interval_lies_above_0(seed, worse):
    """The interval is computed again from the half that fitted nothing, at Bonferroni's level."""
    z, y, answers, moved = world(seed, worse, n=400)
    measures = {"moved": moved + np.random.default_rng(seed).random(400)}
    found, fits = find_slices(z, y, answers, measures=measures, seed=seed, repeats=0)
    for one in found:
        inside, wrong = one.members[~fits], (answers != y)[~fits]
        again = excess(inside, wrong, y[~fits], z=bonferroni(len(found)))
        few = again is None or again.n < LEAST
        assert few == (one.check is None) and one.fit.n >= LEAST
        if not few:
            assert one.check.low == pytest.approx(again.low)
        assert one.confirmed == (not few and again.low > 0)


def test_a_slice_with_a_small_p_value_but_an_interval_that_holds_0_is_not_confirmed():
    """Half of fifty images err, in classes that leave one other image each."""
    labels = np.repeat(np.arange(10), 6)
    inside = np.tile([True, True, True, True, True, False], 10)
    wrong = np.zeros(60, bool)
    wrong[inside] = np.arange(50) % 2 == 0
    check = excess(inside, wrong, labels, z=bonferroni(5))
    assert check is not None and check.p < 0.05 and check.low < 0
    assert not Slice(inside, check, check).confirmed


def test_expected_errors_are_those_of_the_same_classes() -> None:
    labels = np.array([0] * 40 + [1] * 40)
    inside = np.array(([True] * 10 + [False] * 30) + ([True] * 30 + [False] * 10))
    wrong = np.zeros(80, bool)
    wrong[[0, 1, 12, 13, 14, 40, 41, 42, 70]] = True
    one = excess(inside, wrong, labels, z=1.96)
    assert one is not None
    assert one.error == pytest.approx(5 / 40)
    assert one.expected == pytest.approx(10 / 40 * 3 / 30 + 30 / 40 * 1 / 10)
    assert one.low < one.value < one.high


def test_with_one_class_the_interval_is_square_and_add_of_jeffreys_intervals() -> None:
    """SciPy's beta quantiles in Newcombe's formula; nearly Newcombe's own interval."""
    labels, inside = np.zeros(400, int), np.arange(400) < 100
    wrong = (np.arange(400) % 100 < 30) & inside | (np.arange(400) % 10 == 0) & ~inside
    one = excess(inside, wrong, labels, z=bonferroni(1))
    (l1, u1), (l2, u2) = (beta.ppf((0.025, 0.975), x + 0.5, n - x + 0.5)
                          for x, n in ((30, 100), (30, 300)))  # fmt: skip
    low, high = 0.2 - hypot(0.3 - l1, u2 - 0.1), 0.2 + hypot(u1 - 0.3, 0.1 - l2)
    assert one is not None and (one.low, one.high) == pytest.approx((low, high), abs=0.001)
    assert newcombe((30, 30), (100, 300)) == pytest.approx((low, high), abs=0.01)


def test_a_slice_that_is_its_class_cannot_be_compared() -> None:
    labels = np.repeat([0, 1], 20)
    assert excess(labels == 0, np.zeros(40, bool), labels, z=2.0) is None


def test_the_extremes_of_an_attribute_are_candidates() -> None:
    rng = np.random.default_rng(3)
    y, z, dark = rng.integers(0, K, 800), rng.normal(size=(800, 4)), rng.random(800)
    wrong = rng.random(800) < np.where(dark < 0.08, 0.6, 0.05)
    answers = np.where(wrong, (y + 1) % K, y)
    found, _ = find_slices(z, y, answers, measures={"brightness": dark}, repeats=0)
    assert found[0].confirmed and found[0].rule.startswith("brightness ≤")


def test_images_whose_class_no_other_image_has_confirm_nothing() -> None:
    """A thousand classes of an image each, and two of twenty: too few can be compared."""
    rng = np.random.default_rng(0)
    labels = np.r_[np.arange(1000), np.repeat([1000, 1001], 10)]
    dark = rng.random(len(labels))
    answers = np.where(dark < 0.1, (labels + 1) % 1002, labels)
    found, _ = find_slices(
        rng.normal(size=(len(labels), 4)), labels, answers, measures={"dark": dark}, repeats=0
    )
    assert all(one.fit.n >= LEAST and not one.confirmed for one in found)


def test_too_few_images_are_refused() -> None:
    with pytest.raises(InputError, match="40 images or more, got 20"):
        find_slices(np.zeros((20, 3)), np.zeros(20, int), np.zeros(20, int))


def test_a_standardised_difference_leaves_out_what_is_unknown() -> None:
    values = np.array([1.0, 1.0, 0.0, 0.0, np.nan])
    inside = np.array([True, True, False, False, True])
    assert standardised(values, inside) == pytest.approx(2.0)
    assert standardised(np.ones(5), inside) == 0.0
