"""pgd against the closed form of a linear score and a plain-loop reading of the RATIO attack."""

import numpy as np
import pytest
import torch

from counterlens.ball import Ball, row_seeds
from counterlens.objectives import wrongness
from counterlens.search import adversarial_noise, frozen, pgd


def linear(w):
    return lambda z: (z * w).flatten(1).sum(1)


def test_reaches_the_closed_form_optimum_of_a_linear_score(rng):
    w = torch.randn(3, 4, 4, generator=rng)
    x = torch.full((5, 3, 4, 4), 0.5)
    result = pgd(linear(w), x, Ball("l2", 0.1), steps=10)
    torch.testing.assert_close(result.points, x + 0.1 * w / w.norm(), rtol=0, atol=1e-4)
    result = pgd(linear(w), x, Ball("linf", 0.1), steps=10)
    torch.testing.assert_close(result.points, x + 0.1 * w.sign(), rtol=0, atol=1e-4)


def by_loops(f, grad, x, radius, step, momentum, steps):
    """The RATIO attack for one image as plain numbers: l1-normalised gradient, ball, then box."""
    delta = np.zeros_like(x)
    velocity = np.zeros_like(x)
    best, best_delta = -np.inf, None
    for i in range(steps + 1):
        value = f(x + delta)
        if value > best:
            best, best_delta = value, delta.copy()
        if i == steps:
            break
        g = grad(x + delta)
        velocity = momentum * velocity + g / np.abs(g).sum()
        delta = delta + step * velocity / np.sqrt((velocity**2).sum())
        size = np.sqrt((delta**2).sum())
        if size > radius:
            delta = delta * radius / size
        delta = np.clip(x + delta, 0, 1) - x
    return x + best_delta, best


@pytest.mark.parametrize("steps", [1, 7, 20])
def test_is_the_ratio_training_attack_step_by_step(steps, rng):
    a = torch.randn(12, 12, generator=rng, dtype=torch.float64)
    x = torch.rand(4, 3, 2, 2, generator=rng, dtype=torch.float64)

    def score(z):
        return (z.flatten(1) @ a).sin().sum(1)

    result = pgd(score, x, Ball("l2", 0.5), steps=steps, step_size=0.1, momentum=0.9)
    plain = a.numpy()
    for row in range(4):
        point, best = by_loops(
            lambda v: np.sin(v @ plain).sum(),
            lambda v: plain @ np.cos(v @ plain),
            x[row].flatten().numpy(),
            0.5,
            0.1,
            0.9,
            steps,
        )
        assert result.scores[row].item() == pytest.approx(best, abs=1e-12)
        np.testing.assert_allclose(result.points[row].flatten().numpy(), point, atol=1e-12)


def test_the_paper_and_the_code_differ_only_through_momentum(rng):
    a = torch.randn(12, 12, generator=rng, dtype=torch.float64)
    x = torch.rand(2, 3, 2, 2, generator=rng, dtype=torch.float64)

    def score(z):
        return (z.flatten(1) @ a).sin().sum(1)

    def run(**kwargs):
        return pgd(score, x, Ball("l2", 0.5), steps=7, step_size=0.1, **kwargs).points

    torch.testing.assert_close(run(normalise="l1"), run(normalise="l2"))
    assert not torch.allclose(
        run(momentum=0.9, normalise="l1"), run(momentum=0.9, normalise="l2"), atol=1e-6
    )


def test_start_and_end_compete_and_every_point_is_scored_once():
    calls = []

    def score(z):
        calls.append(len(z))
        return -(z - 0.5).square().flatten(1).sum(1)  # best at the start

    x = torch.full((2, 1, 2, 2), 0.5)
    result = pgd(score, x, Ball("l2", 0.3), steps=4, step_size=0.1)
    assert torch.equal(result.points, x)
    assert len(calls) == 5

    def rising(z):
        return z.flatten(1).sum(1)

    result = pgd(rising, x, Ball("linf", 0.3), steps=3, step_size=0.1)
    torch.testing.assert_close(result.points, x + 0.3)


def test_a_zero_gradient_moves_nothing_and_nan_never_wins():
    x = torch.full((1, 1, 2, 2), 0.5)
    result = pgd(lambda z: z.flatten(1).sum(1) * 0, x, Ball("l2", 0.3), steps=3)
    assert torch.equal(result.points, x)
    nan = pgd(
        lambda z: torch.where(z > 0.5, torch.nan, z).flatten(1).sum(1), x, Ball("l2", 0.3), steps=3
    )
    assert torch.equal(nan.points, x) and torch.isfinite(nan.scores).all()


def test_random_start_needs_no_gradient_to_move():
    x = torch.full((3, 1, 4, 4), 0.5)
    seeds = row_seeds(3, 1)
    w = torch.zeros(1, 4, 4)
    w[0, 0, 0] = 1.0
    moved = pgd(linear(w), x, Ball("l2", 0.3), steps=0, generator=seeds)
    assert (moved.scores >= moved.start).all()
    assert (moved.scores > moved.start).any()


def test_frozen_restores_mode_and_gradients():
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 1), torch.nn.BatchNorm2d(2))
    net[1].eval()
    net[0].bias.requires_grad_(False)
    with frozen(net):
        assert not net.training and not any(w.requires_grad for w in net.parameters())
    assert net.training and net[0].training and not net[1].training
    assert net[0].weight.requires_grad and not net[0].bias.requires_grad


@pytest.mark.parametrize("kind", ["uniform", "fgsm", "pgd"])
def test_adversarial_noise_has_a_strength_of_its_own_in_every_row(kind, rng):
    x = torch.full((64, 1, 4, 4), 0.5)
    y = torch.zeros(64, dtype=torch.int64)
    w = torch.randn(16, 3, generator=rng)

    def predict(z):
        return z.flatten(1) @ w

    seeds = row_seeds(64, 5)
    z = adversarial_noise(predict, x, y, kind, seeds=seeds, radius=0.1)
    strength = (z - x).flatten(1).abs().amax(1)
    assert strength.max() <= 0.1 + 1e-6
    assert strength.min() < 0.02 and strength.max() > 0.08
    assert torch.equal(z, adversarial_noise(predict, x, y, kind, seeds=seeds, radius=0.1))
    if kind != "uniform":
        gain = wrongness(predict, y)(z) - wrongness(predict, y)(x)
        assert (gain >= 0).all()
        plain = adversarial_noise(predict, x, y, "uniform", seeds=seeds, radius=0.1)
        assert gain.mean() > 2 * (wrongness(predict, y)(plain) - wrongness(predict, y)(x)).mean()
