"""square against its published window schedule, the patch drawn by hand, and brute force."""

import pytest
import torch

from counterlens.ball import Ball, row_seeds
from counterlens.errors import InputError
from counterlens.search import square
from counterlens.search.rule import Evaluation
from counterlens.search.square import Square, bump, patch, window_sizes


def test_window_sizes_are_the_published_ones():
    assert window_sizes("l2", 32, 32)[:8] == [29, 21, 15, 11, 7, 5, 5, 3]
    assert window_sizes("linf", 32, 32)[0] == 29
    assert max(window_sizes("l2", 1, 2)) == 1


def test_the_bump_is_a_stack_of_centred_squares_drawn_by_hand():
    by_hand = torch.zeros(5, 5, dtype=torch.float64)
    for k in range(1, 4):
        r = k - 1
        by_hand[2 - r : 3 + r, 2 - r : 3 + r] += 1 / k**2
    torch.testing.assert_close(bump(5, 5), by_hand / by_hand.norm())
    both = patch(7)
    assert both.norm().item() == pytest.approx(1)
    assert (both[:3] > 0).all() and (both[3:] < 0).all()


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_proposals_use_the_whole_radius_and_change_a_window(norm):
    x = torch.full((8, 3, 16, 16), 0.5, dtype=torch.float64)
    ball, rule = Ball(norm, 0.2), Square(300)
    state = rule.start(x, ball, row_seeds(8, 0))
    full = torch.full((8,), 0.2, dtype=torch.float64)
    for i in range(300):
        torch.testing.assert_close(ball.distance(state["z"], x), full, rtol=1e-9, atol=0)
        score = state["z"].flatten(1)[:, 0] if i % 3 else torch.zeros(8, dtype=torch.float64)
        state = rule.update(state, x, ball, Evaluation(score, score))
        if norm == "linf":
            changed = (state["z"] != state["best"]).any(1).flatten(1).sum(1)
            side = window_sizes("linf", 16, 16)[sum(i + 1 > t for t in (10, 50, 200, 500))]
            assert (changed <= side**2).all()


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_two_pixels_against_every_point_of_a_grid(norm):
    def score(z):
        a, b = z.flatten(1).T
        return (3 * a).sin() * (5 * b + 0.3).cos() + 0.5 * a * b

    x = torch.tensor([[0.4, 0.6], [0.05, 0.9]]).view(2, 1, 1, 2)
    ball = Ball(norm, 0.25)
    line = torch.linspace(-0.25, 0.25, 201)
    steps = torch.cartesian_prod(line, line).view(-1, 1, 1, 2)
    result = square(score, x, ball, queries=400)
    for row in range(2):
        grid = x[row : row + 1] + steps
        grid = grid[ball.contains(grid, x[row : row + 1].expand_as(grid))]
        reach = ball.distance(grid, x[row : row + 1].expand_as(grid))
        sphere = reach > 0.249  # it only tries the full radius
        assert result.scores[row] >= score(grid[sphere]).median()
        assert result.scores[row] <= score(grid).max() + 2e-3


def test_rises_on_a_plain_score_and_only_accepts_gains(rng):
    w = torch.randn(3, 8, 8, generator=rng)
    x = torch.full((4, 3, 8, 8), 0.5)

    def score(z):
        return ((z - 0.5) * w).flatten(1).sum(1)

    few = square(score, x, Ball("linf", 0.1), queries=20)
    many = square(score, x, Ball("linf", 0.1), queries=400)
    best = 0.1 * w.abs().sum()
    assert (many.scores > few.scores).all()
    assert (many.scores > 0.4 * best).all() and (many.scores <= best * (1 + 1e-5)).all()


def test_other_norms_are_refused():
    with pytest.raises(InputError, match=r"l1, l2 and linf, not l1\.5"):
        square(lambda z: z.flatten(1).sum(1), torch.rand(1, 1, 2, 2), Ball("l1.5", 1.0), queries=1)
