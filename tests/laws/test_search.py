"""Laws of every search, whatever the model, the ball and the seed.

Never below its start · stays in ball and box · leaves the model as it was · same seed, same
answer · a batch of one equals the row of a batch · radius 0 returns the input.
"""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterlens.ball import Ball, row_seeds
from counterlens.objectives import confidence_anywhere, dlr, wrongness
from counterlens.search import apgd, apgd_from_afar, fab, pgd, square

SEARCHES = {
    "pgd": lambda f, x, b, s: pgd(f, x, b, steps=4),
    "pgd-momentum": lambda f, x, b, s: pgd(f, x, b, steps=4, momentum=0.9, generator=s),
    "apgd": lambda f, x, b, s: apgd(f, x, b, steps=6, restarts=2, generator=s),
    "apgd-from-afar": lambda f, x, b, s: apgd_from_afar(f, x, b, steps=8, generator=s),
    "square": lambda f, x, b, s: square(f, x, b, queries=12, generator=s),
}
NORMS = {"square": ["l2", "linf"]}
radii = st.floats(0, 2, allow_subnormal=False)
laws = settings(max_examples=6, deadline=None)


def model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3, padding=1),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 5),
    )
    return net.double().eval()


def case(seed: int):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(3, 2, 4, 4, generator=generator, dtype=torch.float64)
    x = torch.where(x < 0.2, 0.0, x)  # some pixels at the wall
    y = torch.randint(5, (3,), generator=generator)
    return x, y, row_seeds(3, seed)


def objective(net, y, seed):
    return [wrongness(net, y), dlr(net, y), confidence_anywhere(net)][seed % 3]


@pytest.mark.parametrize("name", SEARCHES)
@given(data=st.data(), radius=radii, seed=st.integers(0, 2**31))
@laws
def test_a_search_keeps_the_laws(name, data, radius, seed):
    norm = data.draw(st.sampled_from(NORMS.get(name, ["l1", "l1.5", "l2", "linf"])))
    net = model(seed % 7)
    before = copy.deepcopy(net.state_dict())
    x, y, seeds = case(seed)
    ball = Ball(norm, radius)
    search = SEARCHES[name]
    result = search(objective(net, y, seed), x, ball, seeds)

    assert (result.scores >= result.start).all()
    torch.testing.assert_close(objective(net, y, seed)(result.points), result.scores)
    torch.testing.assert_close(objective(net, y, seed)(x), result.start)
    assert result.points.min() >= 0 and result.points.max() <= 1
    assert (ball.distance(result.points, x) <= radius * (1 + 1e-9) + 1e-12).all()
    assert not result.points.requires_grad and not result.scores.requires_grad

    assert not net.training
    assert all(weight.grad is None and weight.requires_grad for weight in net.parameters())
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())

    again = search(objective(net, y, seed), x, ball, seeds)
    assert torch.equal(again.points, result.points)
    alone = search(objective(net, y[1:2], seed), x[1:2], ball, seeds[1:2])
    torch.testing.assert_close(alone.points, result.points[1:2], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("norm", ["l1", "l1.5", "l2", "linf"])
def test_radius_zero_returns_the_input(name, norm):
    if norm not in NORMS.get(name, [norm]):
        return
    x, y, seeds = case(1)
    result = SEARCHES[name](wrongness(model(0), y), x, Ball(norm, 0), seeds)
    assert torch.equal(result.points, x)


@given(norm=st.sampled_from(["l1", "l2", "linf"]), seed=st.integers(0, 2**31))
@laws
def test_the_boundary_search_keeps_the_laws(norm, seed):
    net = model(seed % 7)
    before = copy.deepcopy(net.state_dict())
    x, _, seeds = case(seed)
    y = net(x).argmax(1)
    result = fab(net, x, y, Ball(norm, 0.5), steps=4, restarts=2, generator=seeds)
    met = torch.isfinite(result.distances)
    assert (net(result.points).argmax(1) != y)[met].all()
    assert torch.equal(result.points[~met], x[~met])
    torch.testing.assert_close(Ball(norm, 1).distance(result.points, x)[met], result.distances[met])
    assert result.points.min() >= 0 and result.points.max() <= 1
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert all(weight.grad is None for weight in net.parameters())
    alone = fab(net, x[1:2], y[1:2], Ball(norm, 0.5), steps=4, restarts=2, generator=seeds[1:2])
    torch.testing.assert_close(alone.points, result.points[1:2], rtol=1e-6, atol=1e-7)
