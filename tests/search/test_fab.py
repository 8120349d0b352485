"""fab against general solvers (its projection) and exact distances to linear boundaries."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize

from counterlens.ball import Ball, row_seeds
from counterlens.errors import InputError
from counterlens.search import fab
from counterlens.search.fab import project_on_plane


def solve(point, normal, value, norm):
    """The nearest point of the box on the plane, by a general solver."""
    n = len(point)
    room = [(-p, 1 - p) for p in point]
    if norm == "l2":
        start = np.clip(point - value * normal / (normal @ normal), 0, 1) - point
        out = minimize(
            lambda d: 0.5 * d @ d,
            start,
            jac=lambda d: d,
            bounds=room,
            constraints=[{"type": "eq", "fun": lambda d: value + normal @ d}],
            method="SLSQP",
            options={"maxiter": 1000, "ftol": 1e-15},
        )
        return np.sqrt(out.x @ out.x)
    if norm == "linf":  # minimise t with |d| ≤ t
        out = linprog(
            np.r_[np.zeros(n), 1.0],
            A_ub=np.block([[np.eye(n), -np.ones((n, 1))], [-np.eye(n), -np.ones((n, 1))]]),
            b_ub=np.zeros(2 * n),
            A_eq=np.r_[normal, 0.0][None],
            b_eq=[-value],
            bounds=[*room, (0, None)],
        )
        return out.fun
    out = linprog(  # l1: d = p − m
        np.ones(2 * n),
        A_eq=np.r_[normal, -normal][None],
        b_eq=[-value],
        bounds=[(0, 1 - p) for p in point] + [(0, p) for p in point],
    )
    return out.fun


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_the_projection_is_as_near_as_a_general_solver_gets(norm):
    rng = np.random.default_rng(3)
    for _ in range(25):
        n = int(rng.integers(2, 9))
        point = rng.random(n)
        point[rng.random(n) < 0.3] = rng.integers(0, 2)  # pixels on the walls of the box
        normal = rng.normal(size=n) * 10.0 ** rng.integers(-1, 2)
        corner = np.where(normal > 0, 1 - point, -point)
        most, least = normal @ corner, normal @ np.where(normal > 0, -point, 1 - point)
        value = -rng.uniform(0.95 * least, 0.95 * most)  # within reach
        out = project_on_plane(
            torch.from_numpy(point).view(1, 1, 1, n),
            torch.from_numpy(normal).view(1, 1, 1, n),
            torch.tensor([value], dtype=torch.float64),
            norm,
        )
        out = out.flatten().numpy()
        assert out.min() >= 0 and out.max() <= 1
        assert value + normal @ (out - point) == pytest.approx(0, abs=1e-7 * abs(value) + 1e-12)
        order = {"l1": 1, "l2": 2, "linf": np.inf}[norm]
        assert np.linalg.norm(out - point, order) <= solve(point, normal, value, norm) + 1e-6


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_a_plane_out_of_reach_gives_the_nearest_corner(norm):
    point = torch.tensor([0.2, 0.9, 0.5]).view(1, 1, 1, 3)
    normal = torch.tensor([1.0, -2.0, 1e-9]).view(1, 1, 1, 3)
    out = project_on_plane(point, normal, torch.tensor([-50.0]), norm)
    assert out.flatten().tolist() == [1.0, 0.0, 0.5]  # a coordinate without slope does not move


def linear_model(rng, classes, pixels):
    w = torch.randn(classes, pixels, generator=rng, dtype=torch.float64) / pixels
    return w, lambda z: z.flatten(1) @ w.T


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize(("norm", "dual"), [("l2", 2), ("linf", 1)])
def test_finds_the_distance_to_a_linear_boundary(classes, targeted, norm, dual, rng):
    w, predict = linear_model(rng, classes, 27)
    x = 0.5 + 0.1 * torch.randn(5, 3, 3, 3, generator=rng, dtype=torch.float64)
    y = predict(x).argmax(1)
    target = (y + 1) % classes if targeted else None
    result = fab(predict, x, y, Ball(norm, 1.0), target=target, steps=30)
    logits = predict(x)
    gaps = logits.gather(1, y[:, None]) - logits
    slopes = torch.linalg.vector_norm(w[None] - w[y][:, None], dual, dim=2)
    exact = (gaps / slopes.clamp_min(1e-12)).scatter(1, y[:, None], torch.inf)
    nearest = exact.gather(1, target[:, None])[:, 0] if targeted else exact.amin(1)
    assert (predict(result.points).argmax(1) != y).all()
    assert (result.distances >= exact.amin(1) * (1 - 1e-9)).all()
    assert (result.distances <= nearest * 1.06).all()  # the overshoot


def test_restarts_and_rows_do_not_disturb_each_other(rng):
    _, predict = linear_model(rng, 3, 27)
    x = torch.rand(4, 3, 3, 3, generator=rng, dtype=torch.float64)
    y = predict(x).argmax(1)
    seeds = row_seeds(4, 1)
    kwargs = {"steps": 10, "restarts": 2}
    whole = fab(predict, x, y, Ball("l2", 0.2), generator=seeds, **kwargs)
    alone = fab(predict, x[2:3], y[2:3], Ball("l2", 0.2), generator=seeds[2:3], **kwargs)
    torch.testing.assert_close(whole.points[2:3], alone.points, rtol=0, atol=1e-12)


def test_a_point_that_cannot_be_misclassified_has_no_distance():
    x = torch.rand(2, 1, 2, 2)
    result = fab(
        lambda z: torch.stack([z.flatten(1).sum(1) * 0 + 1, z.flatten(1).sum(1) * 0], 1),
        x,
        torch.zeros(2, dtype=torch.int64),
        Ball("l2", 1.0),
        steps=3,
    )
    assert torch.isinf(result.distances).all() and torch.equal(result.points, x)


def test_an_unknown_norm_is_refused():
    with pytest.raises(InputError, match="fab knows the norms"):
        project_on_plane(torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 1, 2), torch.ones(1), "l1.5")
