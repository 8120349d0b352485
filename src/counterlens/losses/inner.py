"""The inner maximisation of robust training: which point near an image the update will see.

Paper: Augustin et al. 2020 (ratio2020), section 3 and appendix; Madry et al. 2018 (madry2018).
Differs: nothing in the search itself, which is `search.pgd`: no random start, momentum 0.9 on
       l1-normalised gradients, the best point. In-distribution the paper raises the logit
       margin, its newest code the cross-entropy; `raises` chooses.
"""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from counterlens.ball import Ball
from counterlens.errors import InputError
from counterlens.objectives import (
    margin,
    uniform_divergence,
    uniform_divergence_of,
    wrongness,
)
from counterlens.search import frozen, pgd
from counterlens.types import Batch, Images, Labels, Objective, Scores

RAISES = {"margin": margin, "ce": wrongness}
"""What an in-distribution attack of a recipe may raise: network and labels to an objective."""


@dataclass(frozen=True)
class Attack:
    """A training attack.

    Args:
        ball: where it may go.
        stages: (from update, steps) pairs; the number of steps may grow during training.
        step_size: length of one step; None means 2.5 · radius / steps.
        momentum: of the velocity.
        raises: what the in-distribution attack raises, the logit margin or the cross-entropy.
    """

    ball: Ball
    stages: tuple[tuple[int, int], ...] = ((0, 7),)
    step_size: float | None = 0.1
    momentum: float = 0.9
    raises: str = "margin"

    def __post_init__(self) -> None:
        if not self.stages or self.stages[0][0] != 0:
            raise InputError(f"attack stages are {self.stages}, expected the first at update 0.")
        if self.raises not in RAISES:
            raise InputError(f"raises is {self.raises!r}, expected one of {', '.join(RAISES)}.")

    def steps(self, step: int) -> int:
        """Gradient steps at this update.

        >>> Attack(Ball("l2", 1.0), stages=((0, 20), (100, 25))).steps(100)
        25
        """
        return [steps for start, steps in self.stages if start <= step][-1]

    def near(self, net: nn.Module, x: Images, y: Labels, step: int) -> Images:
        """The most misleading image near each in-distribution image."""
        return self.search(net, RAISES[self.raises](net, y), x, step)

    def far(self, net: nn.Module, x: Images, step: int) -> Images:
        """The image near each out-distribution image about which the network is surest."""
        return self.search(net, uniform_divergence(net), x, step)

    def search(
        self,
        net: nn.Module,
        objective: Objective,
        x: Images,
        step: int,
        generator: torch.Generator | None = None,
    ) -> Images:
        """The best point, with the network in eval mode and its weights unchanged."""
        if not isinstance(self.ball.radius, Tensor) and self.ball.radius == 0:
            return x
        with frozen(net):
            result = pgd(
                _recorded(objective),
                x,
                self.ball,
                steps=self.steps(step),
                step_size=self.step_size,
                momentum=self.momentum,
                generator=generator,
            )
        return result.points.detach()


def attack_both(
    near: Attack, far: Attack, net: nn.Module, x: Images, y: Labels, out: Images, step: int
) -> tuple[Images, Images]:
    """Both attacks; as one search over all rows where they take the same steps.

    Rows do not see each other, so the points are those of two searches; twice the rows per
    pass keep a GPU busier.
    """
    apart = near.steps(step) != far.steps(step) or near.momentum != far.momentum
    lengths = (near.ball.radius, far.ball.radius, near.step_size, far.step_size)
    if apart or near.ball.norm != far.ball.norm or not all(lengths):
        return near.near(net, x, y, step), far.far(net, out, step)
    ball, length = _by_row(near, far, len(x), len(out), x.device)
    raised = RAISES[near.raises]

    def objective(z: Images) -> Scores:
        inside, outside = net(z).split([len(x), len(out)])
        return torch.cat([raised(lambda _: inside, y)(z), uniform_divergence_of(outside)])

    with frozen(net):
        points = pgd(
            _recorded(objective),
            torch.cat([x, out]),
            ball,
            steps=near.steps(step),
            step_size=length,
            momentum=near.momentum,
        ).points.detach()
    return points[: len(x)], points[len(x) :]


@functools.lru_cache(maxsize=8)
def _by_row(
    near: Attack, far: Attack, first: int, second: int, device: torch.device
) -> tuple[Ball, Tensor]:
    """Radius and step size per row; cached, because checking a radius waits for the device."""
    pairs = ((near.ball.radius, far.ball.radius), (near.step_size, far.step_size))
    radius, length = (
        torch.tensor([a] * first + [b] * second, device=device, dtype=torch.float32)
        for a, b in pairs
    )
    return Ball(near.ball.norm, radius), length


def _recorded(objective: Objective) -> Objective:
    """The objective with gradients recorded even where none are needed.

    A compiled network has one graph per mode: this way the last evaluation needs no third.
    """

    def score(z: Images) -> Scores:
        if z.requires_grad:
            return objective(z)
        with torch.enable_grad():
            return objective(z.detach().requires_grad_(True)).detach()

    return score


def need(batch: Batch, key: str, loss: str) -> Tensor:
    """One entry of the batch, or a clear refusal."""
    if key not in batch:
        raise InputError(
            f"the {loss} loss needs {'out-distribution images' if key == 'out' else key}, which "
            "the batches do not hold. Name a set of them: out_data=SPEC."
        )
    return batch[key]
