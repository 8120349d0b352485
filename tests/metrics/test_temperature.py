"""Temperatures against a literal search, scipy's bounded minimiser, and worlds of known truth."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

import metric_references as literal
from counterlens.errors import InputError
from counterlens.metrics import by_ece, by_nll, split_by_id
from counterlens.metrics.intervals.temperature import by_ece_with_interval
from counterlens.metrics.temperature import grid, grid_confidence


def _world(n: int, factor: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    u = rng.normal(size=(n, 6)) * 2
    labels = (u + rng.gumbel(size=u.shape)).argmax(1)
    return torch.from_numpy(u * factor), torch.from_numpy(labels)


def test_the_grid_is_the_papers():
    result = grid()
    assert len(result) == 500
    assert result[0].item() == pytest.approx(0.05)
    assert result[-1].item() == pytest.approx(2.71)
    ratios = result[1:] / result[:-1]
    torch.testing.assert_close(ratios, torch.full_like(ratios, (2.71 / 0.05) ** (1 / 499)))


def test_the_search_equals_the_literal_one():
    logits, labels = _world(120, 1.4)
    at = grid(steps=40)
    errors = [
        literal.ece([literal.softmax(r, t) for r in logits.tolist()], labels.tolist(), 10, 1 / 6)
        for t in at.tolist()
    ]
    assert by_ece(logits, labels, temperatures=at) == at[int(np.argmin(errors))].item()


def test_of_equal_errors_the_smallest_temperature_wins():
    logits = torch.zeros(8, 2)  # the confidence is ½ at every temperature
    assert by_ece(logits, torch.tensor([0, 1] * 4)) == pytest.approx(0.05)


def test_confidences_of_the_grid_equal_softmax_even_with_far_logits():
    rng = torch.Generator().manual_seed(1)
    logits = torch.randn(20, 50, generator=rng) * 40
    at = grid(steps=25)
    expected = torch.stack([(logits.double() / t).softmax(1).amax(1) for t in at])
    torch.testing.assert_close(grid_confidence(logits, at), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.6])
def test_both_searches_find_the_factor_that_broke_calibration(factor):
    logits, labels = _world(5_000, factor)
    assert by_nll(logits, labels) == pytest.approx(factor, rel=0.06)
    assert by_ece(logits, labels) == pytest.approx(factor, rel=0.15)


@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_nll_equals_scipys_bounded_minimiser(factor):
    logits, labels = _world(500, factor)

    def loss(beta: float) -> float:
        return torch.nn.functional.cross_entropy(logits * beta, labels).item()

    best = minimize_scalar(loss, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-10})
    assert by_nll(logits, labels) == pytest.approx(1 / best.x, rel=1e-5)


def test_nll_without_a_minimum_inside_stops_at_the_better_bound():
    right = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    assert by_nll(right, torch.tensor([0, 1])) == 0.05  # sharper is always better
    assert by_nll(right, torch.tensor([1, 0])) == 20.0  # softer is always better


def test_the_split_depends_on_the_id_alone():
    ids = [f"val/{i}.jpg" for i in range(5000)]
    held = split_by_id(ids)
    assert abs(held.mean() - 0.2) < 3 * math.sqrt(0.2 * 0.8 / 5000)
    backwards = split_by_id(ids[::-1])[::-1]
    assert (held == backwards).all()
    assert (split_by_id(ids[:100]) == held[:100]).all()
    assert (held <= split_by_id(ids, 0.5)).all()  # a larger share only adds images


@pytest.mark.parametrize(("share", "marked"), [(0.0, 0), (1.0, 3)])
def test_the_split_reaches_its_ends(share, marked):
    assert split_by_id(["a", "b", "c"], share).sum() == marked


def test_a_share_outside_0_1_is_refused():
    with pytest.raises(InputError, match="share is 20"):
        split_by_id(["a"], 20)


def test_the_temperature_with_an_interval_is_the_one_without():
    logits, labels = _world(300, 1.4)
    value, (low, high) = by_ece_with_interval(logits, labels)
    assert value == by_ece(logits, labels)
    assert 0.05 <= low < value < high <= 2.71
