"""l1-APGD against the paper's loop in plain numbers and against a fractional knapsack.

In an l1 ball cut with the box, the best point of a linear score spends the radius on the largest
weights first, each up to the wall of the box: a fractional knapsack.
"""

import numpy as np
import pytest
import torch

from attack_models import short
from counterlens.ball import Ball, normal
from counterlens.search import AttackSettings, robust
from counterlens.search.apgd_l1 import ApgdL1, apgd_l1, phase_steps
from counterlens.search.ensemble.protocols import lacking, stages_of
from counterlens.search.rule import Evaluation
from counterlens.search.square import patch, square


def knapsack(w: np.ndarray, x: np.ndarray, radius: float) -> float:
    """The highest w · δ within the ball and the box."""
    room = np.where(w > 0, 1 - x, x)
    left, total = radius, 0.0
    for k in np.argsort(-np.abs(w)):
        step = min(left, room[k])
        total, left = total + step * abs(w[k]), left - step
    return total


def linear(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(3, 6, 6, generator=rng), torch.rand(4, 3, 6, 6, generator=rng)


@pytest.mark.parametrize("radius", [0.5, 3.0, 10.0])
def test_a_linear_score_is_raised_to_the_knapsack(radius):
    w, x = linear(0)
    ball = Ball("l1", radius)
    found = apgd_l1(lambda z: (z * w).flatten(1).sum(1), x, ball, steps=100)
    assert ball.contains(found.points, x).all()
    for row, one in enumerate(x):
        best = knapsack(w.flatten().numpy(), one.flatten().numpy(), radius)
        gain = float(found.scores[row] - found.start[row])
        assert 0.85 * best <= gain <= best + 1e-4


def project(y: np.ndarray, x: np.ndarray, radius: float) -> np.ndarray:
    """The nearest point to y of ball and box, by a fine search over the multiplier."""
    delta = y - x
    room = np.where(delta > 0, 1 - x, x)

    def sizes(m: float) -> np.ndarray:
        return np.minimum(np.maximum(np.abs(delta) - m, 0), room)

    low, high = 0.0, np.abs(delta).max()
    if sizes(0).sum() > radius:
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if sizes(middle).sum() > radius else (low, middle)
    return x + np.sign(delta) * sizes(high if sizes(0).sum() > radius else 0.0)


def literal(w, x, eps, steps, start):
    """The paper's algorithm for one image and the score w · z − |z − 0.4|², phase by phase."""

    def score(z):
        return float(w @ z - ((z - 0.4) ** 2).sum())

    def slope(z):
        return w - 2 * (z - 0.4)

    d, best = len(x), project(start, x, 3 * eps)
    for width, count in zip((3, 2, 1), (int(0.3 * steps), int(0.3 * steps), None), strict=True):
        n = count if count is not None else steps - 2 * int(0.3 * steps)
        radius = width * eps
        z = project(best, x, radius)
        best, top = z, score(z)
        changed = np.count_nonzero(z - x)
        k, eta, window = changed / (1.5 * d), radius, max(int(0.04 * n), 1)
        for j in range(n):
            grad = slope(z)
            place = min(max(int((1 - k) * d), 0), d - 1)
            signs = np.sign(grad) * (np.abs(grad) >= np.sort(np.abs(grad))[place])
            z = project(z + eta * signs / max(np.abs(signs).sum(), 1e-10), x, radius)
            if score(z) > top:
                best, top = z, score(z)
            if (j + 1) % window == 0:
                now = np.count_nonzero(best - x)
                if now < 0.95 * changed:
                    eta, z = radius, best
                else:
                    eta = max(eta / 1.5, radius / 10)
                k, changed = now / (1.5 * d), now
    return best, top


def test_every_step_is_that_of_the_papers_loop():
    rng = torch.Generator().manual_seed(3)
    w = torch.randn(1, 5, 5, generator=rng, dtype=torch.float64)
    x = torch.rand(2, 1, 5, 5, generator=rng, dtype=torch.float64)
    seeds, ball, rule = torch.tensor([11, 12]), Ball("l1", 0.8), ApgdL1(40)
    state = rule.start(x, ball, seeds)
    for _ in range(rule.evaluations):
        z = state["z"]
        scores = (w * z).flatten(1).sum(1) - (z - 0.4).square().flatten(1).sum(1)
        state = rule.update(state, x, ball, Evaluation(scores, scores, w - 2 * (z - 0.4)))
    noise = normal(seeds, x.shape[1:], like=x)
    for row in range(2):
        start = (x + noise)[row].flatten().numpy()
        best, top = literal(w.flatten().numpy(), x[row].flatten().numpy(), 0.8, 40, start)
        assert float(state["top"][row]) == pytest.approx(top, abs=1e-9)
        np.testing.assert_allclose(state["best"][row].flatten().numpy(), best, atol=1e-7)


def test_phases_share_the_steps():
    assert phase_steps(100) == (30, 30, 40)
    assert ApgdL1(100).evaluations == 103


def test_standard_for_l1_lacks_nothing():
    stages, notes = stages_of("standard", 10, "l1")
    assert [(s.name, s.variants) for s in stages] == [
        *(("apgd-ce", 5), ("apgd-t", 5), ("fab-t", 9), ("square", 1)),
    ]
    assert not notes and lacking(stages, 10, "l1") == []


def test_square_raises_a_linear_score_within_the_ball():
    w, x = linear(1)
    ball = Ball("l1", 2.0)
    found = square(lambda z: (z * w).flatten(1).sum(1), x, ball, queries=2000)
    assert ball.contains(found.points, x).all()
    for row, one in enumerate(x):
        best = knapsack(w.flatten().numpy(), one.flatten().numpy(), 2.0)
        gain = float(found.scores[row] - found.start[row])
        assert 0.5 * best < gain <= best + 1e-4


def test_the_l1_patch_has_unit_length_and_falls_as_the_fourth_power():
    """Upper half of side 3: squares of side 1 and 3 with weights 1 and 1/16, so 1 : 17 : 1."""
    assert float(patch(29, "l1").abs().sum()) == pytest.approx(1)
    upper = patch(3, "l1")[0]
    assert float(upper[1] / upper[0]) == pytest.approx(17) and upper[0] == upper[2]
    assert float(patch(7, "l1")[:3].sum()) == pytest.approx(-float(patch(7, "l1")[3:].sum()))


def test_the_ensemble_runs_every_stage_of_l1():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 5)).requires_grad_(False)
    x = torch.rand(6, 3, 4, 4, generator=torch.Generator().manual_seed(2))
    y = net(x).argmax(1)
    stages = short(5, "l1", steps=20, queries=50)
    small = robust(net, x, y, Ball("l1", 0.01), version=stages, settings=AttackSettings(batch=8))
    large = robust(net, x, y, Ball("l1", 12.0), version=stages, settings=AttackSettings(batch=8))
    assert small.accuracy >= large.accuracy and large.accuracy < 1
    broken = large.correct & ~large.robust
    assert Ball("l1", 12.0).contains(large.points[broken], x[broken]).all()
