"""Projected gradient ascent with momentum.

Paper: Madry et al. 2018, Towards Deep Learning Models Resistant to Adversarial Attacks,
       arXiv:1706.06083 (section 2.1); Augustin et al. 2020 (ratio2020) for the momentum form.
Differs: the best point is returned, start and end included, not the last one. The RATIO
       paper normalises the gradient by its l2 norm before it enters the velocity, its code by
       the l1 norm; `normalise` chooses, and without momentum they are the same.
"""

from typing import Literal

import torch
from torch import Tensor

from counterlens.ball import Ball, Seeds, row_seeds
from counterlens.errors import NO_GRADIENTS, InputError
from counterlens.progress import steps as counted
from counterlens.search.result import SearchResult
from counterlens.types import Images, Objective


def pgd(
    objective: Objective,
    x: Images,
    ball: Ball,
    *,
    steps: int = 20,
    step_size: float | Tensor | None = None,
    momentum: float = 0.0,
    normalise: Literal["l1", "l2"] = "l1",
    generator: torch.Generator | Seeds | None = None,
) -> SearchResult:
    """Raise the objective inside a ball by `steps` gradient steps.

    Equation: madry2018 §2.1   z ← Π(z + η · steepest(v)),  v ← μ v + ∇ / ‖∇‖

    `steps` + 1 evaluations; nothing waits for the device. The training attack of RATIO is
    `pgd(uniform_divergence(net), x, Ball("l2", 1), steps=20, step_size=0.1, momentum=0.9)`.

    Args:
        step_size: one number or one per row; None means 2.5 · radius / steps.
        normalise: norm by which the gradient is divided before it enters the velocity.
        generator: a generator or one seed per row: random start inside the ball;
            None starts at x.
    """
    x = x.detach()
    step = _step(step_size, ball, steps, x)
    z = x
    with torch.no_grad():
        start = objective(x).detach() if generator is not None or steps == 0 else None
        if generator is not None:
            seeds = generator if isinstance(generator, Tensor) else row_seeds(len(x), generator)
            z = ball.random_point(x, seeds, where="inside")
    best, points = start, x
    velocity = torch.zeros_like(x)

    for _ in counted(range(steps), steps):
        score, grad = value_and_grad(objective, z)
        if best is None:
            start, best, points = score, score, z
        else:
            best, points = keep(best, points, score, z)
        velocity = grad_step(velocity, grad, momentum, normalise)
        z = ball.project(z + step * ball.steepest(velocity), x)

    with torch.no_grad():
        if steps or generator is not None:
            last = objective(z).detach()
            assert best is not None
            best, points = keep(best, points, last, z)
    assert best is not None and start is not None
    return SearchResult(points, best, start)


def value_and_grad(objective: Objective, z: Images) -> tuple[Tensor, Tensor]:
    """The scores at z and the gradient of each row's score with respect to that row."""
    with torch.enable_grad():
        z = z.detach().requires_grad_(True)
        score = objective(z)
        if not score.requires_grad:
            raise InputError(NO_GRADIENTS)
        (grad,) = torch.autograd.grad(score.sum(), z)
    return score.detach(), grad


def keep(best: Tensor, points: Images, score: Tensor, z: Images) -> tuple[Tensor, Images]:
    """The better of two points per row; a NaN score never wins."""
    better = score > best
    return torch.where(better, score, best), torch.where(better.view(-1, 1, 1, 1), z, points)


def grad_step(velocity: Tensor, grad: Tensor, momentum: float, normalise: str) -> Tensor:
    """The velocity after one more gradient."""
    order = 1.0 if normalise == "l1" else 2.0
    size: Tensor = torch.linalg.vector_norm(grad, order, dim=(1, 2, 3), keepdim=True)
    return momentum * velocity + grad / size.clamp_min(1e-30)  # a zero gradient stays zero


def _step(step_size: float | Tensor | None, ball: Ball, steps: int, x: Images) -> Tensor:
    if step_size is None:
        return 2.5 * ball.reach(x) / max(steps, 1)
    if isinstance(step_size, Tensor):
        return step_size.to(x).view(-1, 1, 1, 1)
    return torch.full((), step_size, dtype=x.dtype, device=x.device)
