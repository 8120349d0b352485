"""Intervals against published tables, scipy, and a plain bootstrap written out here."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import beta, binomtest
from scipy.stats import bootstrap as scipy_bootstrap

from counterlens.errors import InputError
from counterlens.metrics import aupr, auroc, aurra, fpr95
from counterlens.metrics.calibration import count_bins, ece_of, rms_of, width_bins
from counterlens.metrics.intervals.bootstrap import aupr_interval, aurra_interval, fpr95_interval
from counterlens.metrics.intervals.calibration import acceptance, ece_interval, rms_interval
from counterlens.metrics.intervals.closed_form import (
    delong,
    jeffreys,
    mean_interval,
    newcombe,
    newcombe_paired,
    replicates,
    wilson,
)
from counterlens.metrics.intervals.temperature import by_ece_with_interval, by_nll_interval

PROPORTIONS = [(0, 1), (1, 1), (0, 40), (7, 40), (39, 40), (900, 1000)]


@pytest.mark.parametrize(("hits", "n"), PROPORTIONS)
def test_jeffreys_equals_scipy_and_is_closed_at_the_ends(hits, n):
    low, high = beta.ppf((0.025, 0.975), hits + 0.5, n - hits + 0.5)
    expected = (low if hits else 0.0, high if hits < n else 1.0)
    assert jeffreys(hits, n) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("hits", "n"), PROPORTIONS)
def test_wilson_equals_scipy(hits, n):
    expected = binomtest(hits, n).proportion_ci(method="wilson")
    assert wilson(hits, n) == pytest.approx((expected.low, expected.high), abs=1e-9)


@pytest.mark.parametrize(
    ("hits", "n", "expected"),
    [  # Newcombe 1998, table II, method 10
        ((56, 48), (70, 80), (0.0524, 0.3339)),
        ((9, 3), (10, 10), (0.1705, 0.8090)),
        ((10, 0), (10, 10), (0.6075, 1.0)),
    ],
)
def test_newcombe_equals_the_published_table(hits, n, expected):
    assert newcombe(hits, n) == pytest.approx(expected, abs=1e-4)


def test_newcombe_paired_equals_the_published_example():
    """Newcombe 1998b, method 10: cells 36, 12, 2, 0 give 0.0569 … 0.3404."""
    assert newcombe_paired(36, 12, 2, 0) == pytest.approx((0.0569, 0.3404), abs=1e-4)


def test_two_models_with_equal_answers_differ_by_nothing_much():
    low, high = newcombe_paired(90, 0, 0, 10)
    assert low < 0 < high
    assert high - low < 0.1


def test_delong_equals_its_definition_by_double_loops():
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(1, 1, 40).round(1), rng.normal(0, 1, 30).round(1)
    wins = (inside[:, None] > outside) + 0.5 * (inside[:, None] == outside)
    area = wins.mean()
    variance = wins.mean(1).var(ddof=1) / 40 + wins.mean(0).var(ddof=1) / 30
    half = 1.959963984540054 * math.sqrt(variance) / (area * (1 - area))
    logit = math.log(area / (1 - area))
    expected = [1 / (1 + math.exp(-(logit + s * half))) for s in (-1, 1)]
    assert delong(inside, outside) == pytest.approx(expected, abs=1e-12)


def test_delong_agrees_with_a_bootstrap():
    rng = np.random.default_rng(1)
    inside, outside = rng.normal(1.5, 1, 500), rng.normal(0, 1, 300)

    def statistic(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        areas = []
        for drawn_in, drawn_out in zip(a, b, strict=True):
            one = torch.from_numpy(np.repeat(inside, drawn_in))
            two = torch.from_numpy(np.repeat(outside, drawn_out))
            areas.append(auroc(one, two))
        return np.array(areas)

    drawn = replicates(statistic, [500, 300], count=400)
    low, high = delong(inside, outside)
    assert (high - low) / (3.92 * drawn.std()) == pytest.approx(1, abs=0.12)


@pytest.mark.parametrize(("shift", "expected"), [(0.0, (-math.inf, 1.645)), (5.0, (-1.96, 1.96))])
def test_the_unsurprising_region_at_and_far_from_the_bound(shift, expected):
    assert acceptance(shift) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("shift", [0.01, 0.3, 1.0, 1.5, 1.95])
def test_the_unsurprising_region_always_holds_95_percent(shift):
    lower, upper = acceptance(shift)
    mass = 0.5 * (math.erf(upper / math.sqrt(2)) - math.erf(lower / math.sqrt(2)))
    assert mass == pytest.approx(0.95, abs=1e-9)


def test_mean_interval_agrees_with_scipys_bca():
    values = np.random.default_rng(2).exponential(size=200)
    expected = scipy_bootstrap(
        (values,), np.mean, n_resamples=4000, method="BCa", rng=np.random.default_rng(3)
    ).confidence_interval
    low, high = mean_interval(values, (0, math.inf))
    width = expected.high - expected.low
    assert low == pytest.approx(expected.low, abs=0.06 * width)
    assert high == pytest.approx(expected.high, abs=0.06 * width)


def test_equal_values_still_leave_room_for_what_was_not_seen():
    low, high = mean_interval(np.full(100, 0.9), (0.1, 1.0))
    assert low == pytest.approx(0.9 - 0.8 * 0.03689, abs=1e-4)
    assert high == pytest.approx(0.9 + 0.1 * 0.03689, abs=1e-4)
    assert mean_interval(np.array([0.4]), (0.0, 1.0)) == (0.0, 1.0)


def _sample(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    confidence = 0.5 + 0.5 * torch.rand(n, generator=rng, dtype=torch.float64)
    return confidence, torch.rand(n, generator=rng, dtype=torch.float64) < confidence - 0.1


def test_resampled_counts_always_add_up():
    sums = replicates(lambda c: c.sum(1).astype(float), [37], count=50)
    assert (sums == 37).all()
    assert (replicates(lambda c: c[:, 0].astype(float), [5], count=9, seed=4)).shape == (9,)


def test_resampled_statistics_equal_the_metrics_on_repeated_images(monkeypatch):
    """Each replicate, computed from counts, is the metric of the images drawn that often."""
    score, right = _sample(60)
    score = score.round(decimals=2)  # with ties
    outside = _sample(45, seed=1)[0].round(decimals=2) - 0.1
    calls = {}

    def spy(statistic, sizes, *, count=1000, seed=0):
        counts = [np.random.default_rng(7).multinomial(n, np.full(n, 1 / n), 6) for n in sizes]
        calls["values"], calls["counts"] = statistic(*counts), counts
        return replicates(statistic, sizes, count=50, seed=seed)

    monkeypatch.setattr("counterlens.metrics.intervals.bootstrap.replicates", spy)
    aurra_interval(score.numpy(), right.numpy(), aurra(score, right))
    order = np.argsort(-score.numpy(), kind="stable")
    for result, counts in zip(calls["values"], calls["counts"][0], strict=True):
        drawn = torch.from_numpy(np.repeat(order, counts))
        assert result == pytest.approx(aurra(score[drawn], right[drawn]), abs=1e-12)
    for interval, metric, known in (
        (aupr_interval, lambda a, b: aupr(a, b, ratio=45 / 60), np.sort(score)),
        (fpr95_interval, fpr95, np.sort(score)[::-1].copy()),
    ):
        interval(score.numpy(), outside.numpy(), metric(score, outside))
        unknown = np.sort(outside)
        for result, a, b in zip(calls["values"], *calls["counts"], strict=True):
            one = torch.from_numpy(np.repeat(known, a))
            two = torch.from_numpy(np.repeat(unknown, b))
            assert result == pytest.approx(metric(one, two), abs=1e-12)


def test_the_influence_of_an_image_is_the_slope_of_the_metric(monkeypatch):
    """Closed forms against finite differences: one image drawn once more often in a large set."""
    score, right = _sample(400)
    outside = _sample(300, seed=1)[0] - 0.1
    seen = {}
    monkeypatch.setattr(
        "counterlens.metrics.intervals.bootstrap.bca",
        lambda value, values, influence, bounds: seen.update(pulls=influence) or (0.0, 1.0),
    )
    aurra_interval(score.numpy(), right.numpy(), 0.5)
    order = score.argsort(descending=True)
    pulls = seen["pulls"][0] - seen["pulls"][0].mean()
    base = aurra(score, right)
    moved = []
    for i in order[::40].tolist():
        more = torch.cat([torch.arange(400), torch.tensor([i])])
        moved.append(401 * (aurra(score[more], right[more]) - base))
    assert np.corrcoef(moved, pulls[::40])[0, 1] > 0.999
    np.testing.assert_allclose(moved, pulls[::40], atol=0.03)
    aupr_interval(score.numpy(), outside.numpy(), 0.5)
    known, unknown = score.sort().values, outside.sort().values
    base = aupr(score, outside, ratio=0.75)
    for side, pulls in enumerate(seen["pulls"]):
        moved = []
        for i in range(0, len(pulls), 40):
            more = [known, unknown]
            more[side] = torch.cat([more[side], more[side][i : i + 1]])
            moved.append((len(pulls) + 1) * (aupr(*more, ratio=0.75) - base))
        centred = pulls - pulls.mean()
        np.testing.assert_allclose(moved, centred[::40], atol=0.03)


@pytest.mark.parametrize("n", [1, 2, 15, 100, 340])
def test_every_interval_holds_its_value(n):
    score, right = _sample(n)
    outside = _sample(max(1, n // 2), seed=1)[0] - 0.1
    a, b = score.numpy(), outside.numpy()
    wide, equal = width_bins(score, right, start=0.5), count_bins(score, right)
    logits = torch.stack([score.logit(), torch.zeros(n, dtype=torch.float64)], 1)
    labels = (~right).long()
    checks = [
        (ece_of(wide), lambda v: ece_interval(wide, v)),
        (rms_of(equal), lambda v: rms_interval(equal, v)),
        (rms_of(equal, last=False), lambda v: rms_interval(equal, v, last=False)),
        (aurra(score, right), lambda v: aurra_interval(a, right.numpy(), v)),
        (aupr(score, outside), lambda v: aupr_interval(a, b, v)),
        (fpr95(score, outside), lambda v: fpr95_interval(a, b, v)),
        (auroc(score, outside), lambda v: delong(a, b)),
        (1.3, lambda v: by_nll_interval(logits, labels, v)),
    ]
    value, ends = by_ece_with_interval(logits, labels)
    checks.append((value, lambda v: ends))
    for value, interval in checks:
        low, high = interval(value)
        assert low <= value <= high
        assert n == 1 or high > low or value == 0


@pytest.mark.parametrize("right", [True, False])
def test_answers_that_are_all_alike_do_not_give_an_interval_of_no_width(right):
    score = torch.linspace(0.5, 0.99, 50, dtype=torch.float64)
    hits = torch.full((50,), right)
    low, high = aurra_interval(score.numpy(), hits.numpy(), aurra(score, hits))
    assert high - low > 0.05
    low, high = delong(np.arange(10.0), np.arange(10.0) - 100)
    assert (low, high) == pytest.approx(wilson(10, 10))
    low, high = ece_interval(*_binned(torch.ones(50, dtype=torch.float64), torch.ones(50)))
    assert low == 0
    assert 0.02 < high < 0.12  # 50 of 50 right: Wilson's lower end is 0.93


def _binned(confidence: torch.Tensor, right: torch.Tensor) -> tuple:
    bins = width_bins(confidence, right)
    return bins, ece_of(bins)


def test_the_same_seed_gives_the_same_interval():
    confidence, right = _sample(200)
    bins = width_bins(confidence, right)
    assert ece_interval(bins, ece_of(bins), seed=3) == ece_interval(bins, ece_of(bins), seed=3)
    values = confidence.numpy()
    assert mean_interval(values, (0, 1), seed=3) == mean_interval(values, (0, 1), seed=3)
    assert mean_interval(values, (0, 1), seed=3) != mean_interval(values, (0, 1), seed=4)


@pytest.mark.parametrize(("hits", "n"), [(0, 0), (-1, 5), (6, 5)])
def test_impossible_counts_are_refused(hits, n):
    with pytest.raises(InputError, match="expected 0 ≤ hits ≤ n"):
        wilson(hits, n)
