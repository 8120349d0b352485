"""Ball against closed forms: norms of the results, hand-made projections, scipy for l1 and l1.5."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from counterlens.ball import NORMS, Ball, normal, row_seeds, uniform
from counterlens.errors import InputError


def test_l2_projection_rescales_then_clips():
    center = torch.tensor([0.5, 0.5]).view(1, 1, 1, 2)
    far = torch.tensor([0.5 + 3.0, 0.5 + 4.0]).view(1, 1, 1, 2)
    out = Ball("l2", 0.5).project(far, center)
    torch.testing.assert_close(out.flatten(), torch.tensor([0.8, 0.9]))
    clipped = Ball("l2", 1.0).project(far, center)
    torch.testing.assert_close(clipped.flatten(), torch.tensor([1.0, 1.0]))


def test_linf_projection_clips_each_pixel():
    center = torch.tensor([0.05, 0.5]).view(1, 1, 1, 2)
    out = Ball("linf", 0.1).project(torch.tensor([-1.0, 2.0]).view(1, 1, 1, 2), center)
    torch.testing.assert_close(out.flatten(), torch.tensor([0.0, 0.6]))


@pytest.mark.parametrize("norm", ["l1", "l1.5"])
@pytest.mark.parametrize("radius", [0.2, 0.7, 5.0])
def test_sparse_projections_agree_with_a_general_solver(norm, radius, rng):
    center = torch.rand(1, 1, 2, 3, generator=rng, dtype=torch.float64)
    far = center + torch.randn(1, 1, 2, 3, generator=rng, dtype=torch.float64)
    out = Ball(norm, radius).project(far, center).flatten().numpy()
    c, u = center.flatten().numpy(), far.flatten().numpy()
    exponent = 1.0 if norm == "l1" else 1.5
    n = len(c)  # split into positive and negative parts, so that the constraint is smooth
    solved = minimize(
        lambda v: 0.5 * np.sum((c + v[:n] - v[n:] - u) ** 2),
        np.full(2 * n, 1e-2),
        bounds=[(0, 1 - a) for a in c] + [(0, a) for a in c],
        constraints=[
            {"type": "ineq", "fun": lambda v: radius**exponent - np.sum(np.abs(v) ** exponent)}
        ],
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-14},
    )
    theirs = c + solved.x[:n] - solved.x[n:]
    assert np.sum((out - u) ** 2) <= np.sum((theirs - u) ** 2) + 1e-6
    np.testing.assert_allclose(out, theirs, atol=2e-3)


@pytest.mark.parametrize("norm", NORMS)
def test_steepest_has_unit_length_and_rises(norm, rng):
    grad = torch.randn(4, 3, 8, 8, generator=rng)
    ball = Ball(norm, 1.0)
    step = ball.steepest(grad)
    torch.testing.assert_close(ball.distance(step, torch.zeros_like(step)), torch.ones(4))
    assert ((step * grad).sum((1, 2, 3)) > 0).all()
    assert not ball.steepest(torch.zeros_like(grad)).any()


def test_l15_step_is_the_best_of_its_length(rng):
    grad = torch.randn(1, 1, 3, 3, generator=rng, dtype=torch.float64)
    ours = (Ball("l1.5", 1.0).steepest(grad) * grad).sum().item()
    dual = grad.abs().pow(3).sum().pow(1 / 3).item()  # Hölder: the dual norm of l1.5 is l3
    assert ours == pytest.approx(dual)


@pytest.mark.parametrize("norm", NORMS)
def test_random_points_lie_on_the_sphere_and_do_not_depend_on_the_batch(norm):
    center = torch.full((6, 3, 8, 8), 0.5)
    seeds = row_seeds(6, 3)
    ball = Ball(norm, 0.05)
    points = ball.random_point(center, seeds)
    torch.testing.assert_close(
        ball.distance(points, center), torch.full((6,), 0.05), rtol=1e-3, atol=0
    )
    alone = ball.random_point(center[4:5], seeds[4:5])
    assert torch.equal(alone[0], points[4])
    inside = ball.distance(ball.random_point(center, seeds, where="inside"), center)
    assert (inside <= 0.05 * (1 + 1e-4)).all()


def test_random_numbers_have_the_moments_of_their_law():
    seeds = row_seeds(50, 0)
    like = torch.zeros(1)
    flat = uniform(seeds, (1000,), like=like)
    assert flat.min() > 0 and flat.max() < 1
    assert flat.mean().item() == pytest.approx(0.5, abs=0.01)
    assert flat.var().item() == pytest.approx(1 / 12, abs=0.003)
    bell = normal(seeds, (1000,), like=like)
    assert bell.mean().item() == pytest.approx(0, abs=0.02)
    assert bell.var().item() == pytest.approx(1, abs=0.03)
    neighbours = torch.corrcoef(torch.stack([flat[:, :-1].flatten(), flat[:, 1:].flatten()]))
    assert abs(neighbours[0, 1].item()) < 0.02
    rows = torch.corrcoef(flat[:2])
    assert abs(rows[0, 1].item()) < 0.15


@pytest.mark.parametrize("norm", NORMS)
def test_radius_zero_leaves_only_the_centre(norm, rng):
    center = torch.rand(3, 1, 4, 4, generator=rng)
    ball = Ball(norm, 0)
    assert torch.equal(ball.project(center + 1, center), center)
    assert torch.equal(ball.random_point(center, row_seeds(3, 0)), center)


def test_rows_may_have_their_own_radius(rng):
    center = torch.full((3, 1, 4, 4), 0.5)
    radii = torch.tensor([0.0, 0.1, 0.2])
    ball = Ball("l2", radii)
    out = ball.project(center + 0.4, center)
    torch.testing.assert_close(ball.distance(out, center), radii)
    assert torch.equal(ball.rows(torch.tensor([2])).radius, radii[2:])


@pytest.mark.parametrize("radius", [-0.1, float("nan"), float("inf")])
def test_a_radius_that_is_no_length_is_refused(radius):
    with pytest.raises(InputError, match="radius is"):
        Ball("l2", radius)


def test_an_unknown_norm_is_refused():
    with pytest.raises(InputError, match="expected one of l1"):
        Ball("l3", 1.0)
