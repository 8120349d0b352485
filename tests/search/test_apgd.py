"""apgd against a one-image plain-loop reading of the algorithm, and its published checkpoints."""

import math
import sys

import numpy as np
import pytest
import torch

from counterlens.ball import Ball, mix, row_seeds
from counterlens.search import apgd, apgd_from_afar
from counterlens.search.apgd import Apgd, checkpoints
from counterlens.search.rule import Evaluation


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (100, [22, 41, 57, 70, 80, 87, 93, 99]),
        (500, [110, 205, 285, 350, 400, 435, 465, 495]),
        (20, [4, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]),
        (10, [2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (7, [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_checkpoints_are_the_published_ones(steps, expected):
    assert list(checkpoints(steps)) == expected


def by_loops(f, grad, x, start, radius, steps, norm):
    """Auto-PGD for one image, read off the page; the loss list begins after the first step."""

    def project(v):
        if norm == "linf":
            return np.clip(np.clip(v, x - radius, x + radius), 0, 1)
        size = np.sqrt(((v - x) ** 2).sum())
        return np.clip(x + (v - x) * min(1.0, radius / size if size else 1.0), 0, 1)

    def direction(g):
        return np.sign(g) if norm == "linf" else g / np.sqrt((g**2).sum())

    z, before = start.copy(), start.copy()
    g = grad(z)
    best, best_value, best_grad = z.copy(), f(z), g
    mark, halved, step = best_value, True, 2 * radius
    losses, sizes = [], [step]
    marks = [0]
    window = max(int(0.22 * steps), 1)
    since = 0
    for i in range(steps):
        share = 1.0 if i == 0 else 0.75
        prebuild = project(z + step * direction(g))
        prebuild = project(z + share * (prebuild - z) + (1 - share) * (z - before))
        before, z = z, prebuild
        g = grad(z)
        losses.append(f(z))
        if losses[-1] > best_value:
            best, best_value, best_grad = z.copy(), losses[-1], g
        since += 1
        if since == window:
            past = [0.0, *losses]  # the loss before the first counts as zero
            ups = sum(past[k + 1] > past[k] for k in range(i + 1 - window, i + 1))
            slow = ups <= 0.75 * window
            stuck = (not halved) and mark >= best_value
            halved = slow or stuck
            mark = best_value
            if halved:
                step /= 2
                z, g = best.copy(), best_grad
            since = 0
            window = max(window - max(int(0.03 * steps), 1), max(int(0.06 * steps), 1))
            marks.append(i + 1)
        sizes.append(step)
    return best, best_value, sizes


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("steps", [7, 30, 100])
@pytest.mark.parametrize("shift", [0.0, -50.0])
def test_follows_the_algorithm_step_by_step(norm, steps, shift, rng):
    a = torch.randn(8, 8, generator=rng, dtype=torch.float64) * 4
    x = torch.rand(3, 2, 2, 2, generator=rng, dtype=torch.float64)
    ball = Ball(norm, 0.4)
    seeds = row_seeds(3, 2)
    plain = a.numpy()

    def score(z):
        return (z.flatten(1) @ a).sin().sum(1) + shift

    result = apgd(score, x, ball, steps=steps, generator=seeds)
    start = ball.random_point(x, mix(seeds, 0))
    for row in range(3):
        _, best, _ = by_loops(
            lambda v: np.sin(v @ plain).sum() + shift,
            lambda v: plain @ np.cos(v @ plain),
            x[row].flatten().numpy(),
            start[row].flatten().numpy(),
            0.4,
            steps,
            norm,
        )
        best = max(best, score(x[row : row + 1]).item())
        assert result.scores[row].item() == pytest.approx(best, abs=1e-9)


def test_steps_are_twice_the_radius_halved_and_rule_two_waits_for_the_second_checkpoint(rng):
    x = torch.full((4, 1, 2, 2), 0.5, dtype=torch.float64)
    ball, rule = Ball("l2", 0.3), Apgd(100)
    state = rule.start(x, ball, row_seeds(4, 0))
    seen = []
    score = torch.arange(1.0, 102.0, dtype=torch.float64)
    for i in range(rule.evaluations):  # rises at every step: rule 1 never fires
        evaluation = Evaluation(score[i].expand(4), score[i].expand(4), torch.ones_like(x))
        state = rule.update(state, x, ball, evaluation)
        seen.append(state["step"][0].item())
    assert set(seen) == {0.6}

    state = rule.start(x, ball, row_seeds(4, 0))
    seen = []
    for i in range(rule.evaluations):  # best at the start, then rising from far below
        score = torch.full((4,), 1000.0 if i == 0 else float(i), dtype=torch.float64)
        state = rule.update(state, x, ball, Evaluation(score, score, torch.ones_like(x)))
        seen.append(state["step"][0].item())
    assert seen[22] == 0.6  # no new best, but the first checkpoint only looks at rule 1
    assert seen[41] == 0.3
    assert seen[57] == 0.3  # just halved: rule 2 rests once
    assert seen[70] == 0.15


def test_restarts_only_help_and_linear_scores_are_solved(rng):
    w = torch.randn(3, 4, 4, generator=rng, dtype=torch.float64)
    x = torch.full((2, 3, 4, 4), 0.5, dtype=torch.float64)
    for norm, best in [("l2", 0.1 * w.norm()), ("linf", 0.1 * w.abs().sum())]:
        result = apgd(lambda z: ((z - x) * w).flatten(1).sum(1), x, Ball(norm, 0.1), steps=100)
        torch.testing.assert_close(result.scores, best.expand(2), rtol=1e-6, atol=0)

    def bumpy(z):
        return (z.flatten(1) * 40).sin().sum(1)

    one = apgd(bumpy, x, Ball("l2", 0.3), steps=10, restarts=1)
    five = apgd(bumpy, x, Ball("l2", 0.3), steps=10, restarts=5)
    assert (five.scores >= one.scores).all() and (five.scores > one.scores).any()


def test_scores_that_are_no_numbers_are_not_followed(rng):
    x = torch.full((2, 1, 2, 2), 0.5)

    def cliff(z):
        total = z.flatten(1).sum(1)
        return torch.where(total > 2.1, total * math.nan, total)

    result = apgd(cliff, x, Ball("l2", 0.4), steps=20)
    assert torch.isfinite(result.scores).all() and torch.isfinite(result.points).all()


def test_from_afar_a_linear_score_is_solved_in_the_ball_that_was_asked_for(rng):
    x = torch.full((3, 1, 4, 4), 0.5, dtype=torch.float64)
    slope = torch.randn(16, generator=rng, dtype=torch.float64)
    result = apgd_from_afar(lambda z: z.flatten(1) @ slope, x, Ball("l2", 0.3), steps=60)
    exact = 0.5 * slope.sum() + 0.3 * slope.norm()  # no pixel meets its wall
    torch.testing.assert_close(result.scores, exact.expand(3), rtol=1e-6, atol=0)


@pytest.mark.parametrize("steps", [1, 2, 5, 50])
def test_from_afar_costs_a_start_and_a_look_at_the_image_for_each_ball_more(steps, rng):
    calls = []

    def counted(z: torch.Tensor) -> torch.Tensor:
        calls.append(z.requires_grad)
        return z.flatten(1).sum(1)

    x = torch.rand(2, 1, 3, 3, generator=rng, dtype=torch.float64)
    result = apgd_from_afar(counted, x, Ball("l2", 0.5), steps=steps)
    assert sum(calls) <= steps + 3 and len(calls) - sum(calls) <= 3
    assert (result.points - x).flatten(1).norm(dim=1).max() <= 0.5 + 1e-9


def test_without_wider_balls_it_is_the_published_search(rng, monkeypatch):
    monkeypatch.setattr(sys.modules["counterlens.search.apgd"], "AFAR", ())
    x = torch.rand(3, 1, 4, 4, generator=rng, dtype=torch.float64)
    slope = torch.randn(16, generator=rng, dtype=torch.float64)

    def wavy(z: torch.Tensor) -> torch.Tensor:
        return torch.sin(7 * z.flatten(1)) @ slope

    ball = Ball("l2", 0.4)
    one, two = apgd(wavy, x, ball, steps=20), apgd_from_afar(wavy, x, ball, steps=20)
    assert torch.equal(one.points, two.points) and torch.equal(one.scores, two.scores)
