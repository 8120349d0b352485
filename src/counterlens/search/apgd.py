"""Auto-PGD: gradient ascent whose step size adapts to its own progress.

Paper: Croce and Hein 2020, Reliable Evaluation of Adversarial Robustness with an Ensemble of
       Diverse Parameter-free Attacks, arXiv:2003.01690 (section 3, algorithm 1).
Differs: two habits of the reference implementation are retained, because published numbers rest on
       them: rule 1 is "≤" where the paper has "<", and in the first window the first
       score is compared with 0 instead of the score at the start. The best point by score is
       returned, never one below the clean image. For l1 we take the sparse step of `Ball` with
       the same schedule, not the separate l1 algorithm of Croce and Hein 2021, whose wider
       balls `apgd_from_afar` borrows for all norms.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from counterlens.ball import Ball, Seeds, mix, row_seeds
from counterlens.progress import steps as counted
from counterlens.search.pgd import keep, value_and_grad
from counterlens.search.result import SearchResult
from counterlens.search.rule import Evaluation, RuleState, finite, tall
from counterlens.types import Images, Objective

MOMENTUM = 0.75
RHO = 0.75
AFAR = ((2.0, 0.25), (1.4, 0.25))  # how wide, and which share of the steps; the rest at 1


@lru_cache
def checkpoints(steps: int) -> tuple[int, ...]:
    """After how many steps the step size is reconsidered.

    Equation: autoattack2020 §3.1   w_{j+1} = w_j + max(p_{j+1} N, 0.06 N), p shrinking by 0.03

    >>> checkpoints(100)
    (22, 41, 57, 70, 80, 87, 93, 99)
    """
    window, least, drop = (max(int(share * steps), 1) for share in (0.22, 0.06, 0.03))
    steps_at = []
    at = window
    while at <= steps:
        steps_at.append(at)
        window = max(window - drop, least)
        at += window
    return tuple(steps_at)


@dataclass(frozen=True)
class Apgd:
    """The rule of Auto-PGD.

    Args:
        steps: gradient steps; one evaluation more.
    """

    steps: int = 100
    strays: bool = field(default=False, init=False)

    @property
    def evaluations(self) -> int:
        """The start and every step."""
        return self.steps + 1

    def start(self, x: Images, ball: Ball, seeds: Seeds) -> RuleState:
        """Random points on the sphere, step size twice the radius."""
        z = ball.random_point(x, seeds)
        rows = x.new_zeros(len(x))
        low = torch.full_like(rows, -torch.inf)
        return {
            "z": z,
            "before": z,
            "best": z,
            "grad": torch.zeros_like(z),  # at the best point
            "top": low,
            "mark": low,  # best score at the last checkpoint
            "last": rows,
            "ups": rows,
            "step": rows + 2 * ball.reach(x).flatten(),
            "halved": torch.ones_like(rows, dtype=torch.bool),
            "i": torch.zeros_like(rows, dtype=torch.int64),
        }

    def update(self, state: RuleState, x: Images, ball: Ball, evaluation: Evaluation) -> RuleState:
        """Keep the best, at a checkpoint perhaps halve the step and go back to it, then move.

        Equation: autoattack2020 (1)   x_{k+1} = P(x_k + α (z − x_k) + (1 − α)(x_k − x_{k−1})),
        z = P(x_k + η ∇)
        """
        assert evaluation.grad is not None
        z, i = state["z"], state["i"]
        score, grad = finite(evaluation.score), torch.nan_to_num(evaluation.grad, 0, 0, 0)
        better = score > state["top"]
        top = torch.where(better, score, state["top"])
        best = torch.where(tall(better), z, state["best"])
        best_grad = torch.where(tall(better), grad, state["grad"])

        first = i == 0
        ups = state["ups"] + ((score > state["last"]) & ~first)
        mark = torch.where(first, top, state["mark"])
        window = self._windows(z)[i.clamp_max(self.steps)]
        check = window > 0
        slow = ups <= RHO * window  # rule 1: too few steps went up
        stuck = ~state["halved"] & (mark >= top)  # rule 2: no new best since the last checkpoint
        halve = check & (slow | stuck)
        step = torch.where(halve, state["step"] / 2, state["step"])
        z = torch.where(tall(halve), best, z)
        grad = torch.where(tall(halve), best_grad, grad)

        share = tall(torch.where(first, 1.0, MOMENTUM).to(z))
        proposal = ball.project(z + tall(step) * ball.steepest(grad), x)
        proposal = z + share * (proposal - z) + (1 - share) * (z - state["before"])
        return {
            "z": ball.project(proposal, x),
            "before": z,
            "best": best,
            "grad": best_grad,
            "top": top,
            "mark": torch.where(check, top, mark),
            "last": torch.where(first, torch.zeros_like(score), score),
            "ups": torch.where(check, torch.zeros_like(ups), ups),
            "step": step,
            "halved": torch.where(check, halve, state["halved"]),
            "i": i + 1,
        }

    def _windows(self, like: Tensor) -> Tensor:
        return _windows(self.steps, like.dtype, like.device)


@lru_cache
def _windows(steps: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """For each step count: the length of the window that ends there, 0 where none does."""
    table = torch.zeros(steps + 1, dtype=dtype)
    for before, at in zip((0, *checkpoints(steps)), checkpoints(steps), strict=False):
        table[at] = at - before
    return table.to(device)


def apgd(
    objective: Objective,
    x: Images,
    ball: Ball,
    *,
    steps: int = 100,
    restarts: int = 1,
    generator: torch.Generator | Seeds | None = None,
    begin: Images | None = None,
) -> SearchResult:
    """Raise the objective inside a ball by Auto-PGD; the best point of all restarts.

    Args:
        generator: a generator or one seed per row; None means the fixed seed 0.
        begin: points of the ball where the first run begins; None means random ones.
    """
    x = x.detach()
    rule = Apgd(steps)
    seeds = generator if isinstance(generator, Tensor) else row_seeds(len(x), generator)
    with torch.no_grad():
        start = finite(objective(x).detach())
    best, points = start, x
    for restart in range(restarts):
        state = rule.start(x, ball, mix(seeds, restart))
        if begin is not None and restart == 0:
            state |= {"z": begin, "before": begin, "best": begin}
        for _ in counted(range(rule.evaluations), rule.evaluations):
            score, grad = value_and_grad(objective, state["z"])
            state = rule.update(state, x, ball, Evaluation(score, score, grad))
        best, points = keep(best, points, state["top"], state["best"])
    return SearchResult(points, best, start)


def apgd_from_afar(
    objective: Objective,
    x: Images,
    ball: Ball,
    *,
    steps: int = 100,
    generator: torch.Generator | Seeds | None = None,
) -> SearchResult:
    """Auto-PGD in wider balls first, each search going on from the best point of the one before.

    Around an image a robust classifier is flat or has several tops; in a wider ball the search gets
    past them, and its best point is projected into the ball of the query.
    """
    parts = [(width, int(share * steps)) for width, share in AFAR]
    parts.append((1.0, steps - sum(count for _, count in parts)))
    begin = None
    for width, count in parts:
        if count or width == 1:
            part = Ball(ball.norm, width * ball.radius)
            begin = begin if begin is None else part.project(begin, x)
            result = apgd(objective, x, part, steps=count, generator=generator, begin=begin)
            begin = result.points
    return result
