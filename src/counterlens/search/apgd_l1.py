"""Auto-PGD for l1: sparse steps in wider balls that shrink to the one asked for.

Paper: Croce and Hein 2021, Mind the Box: l1-APGD for Sparse Adversarial Attacks on Image
       Classifiers, arXiv:2103.01208 (section 4).
Differs: nothing; ball and box are projected on at once (`Ball.project`), by bisection where the
       paper sorts. The best point returned is one of the last phase, so it lies in the ball.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from counterlens.ball import Ball, Norm, Seeds, normal, row_seeds
from counterlens.search.apgd import Apgd
from counterlens.search.pgd import keep, value_and_grad
from counterlens.search.result import SearchResult
from counterlens.search.rule import Evaluation, RuleState, SearchRule, finite, tall
from counterlens.types import Images, Objective

WIDTHS = (3.0, 2.0, 1.0)  # radii of the phases
SHARES = (0.3, 0.3, 0.4)  # of the steps
DENSITY = 1.5  # a step moves the changed coordinates over this
SLOWER, SLOWEST = 1.5, 10.0  # what a step is divided by, once and at most
CHANGED = 0.95  # fewer changed coordinates than this share: the search has become sparser
WINDOW = 0.04  # share of a phase's steps between two looks at the step


@dataclass(frozen=True)
class ApgdL1:
    """The rule of l1-APGD.

    Args:
        steps: gradient steps of all phases; one evaluation more for each phase.
    """

    steps: int = 100
    strays: bool = field(default=True, init=False)  # the first phases leave the ball

    @property
    def evaluations(self) -> int:
        """The start and every step of each phase."""
        return sum(phase_steps(self.steps)) + len(WIDTHS)

    def start(self, x: Images, ball: Ball, seeds: Seeds) -> RuleState:
        """Normal noise, projected on the widest ball."""
        wide = Ball("l1", WIDTHS[0] * _radii(ball, x))
        z = wide.project(x + normal(seeds, x.shape[1:], like=x), x)
        rows = x.new_zeros(len(x))
        return {
            "z": z,
            "best": z,
            "grad": torch.zeros_like(z),  # at the best point
            "top": torch.full_like(rows, -torch.inf),
            "share": rows,  # of the coordinates that a step moves
            "changed": rows,  # coordinates of the best point that differ, at the last look
            "step": rows,
            "distance": rows,
            "i": torch.zeros_like(rows, dtype=torch.int64),
        }

    def update(self, state: RuleState, x: Images, ball: Ball, evaluation: Evaluation) -> RuleState:
        """Keep the best; now and then adapt step and sparsity; move, or begin the next phase.

        Equation: croce2021 Alg. 1   x' = P(x + η sign(g_k) / ‖sign(g_k)‖₁), g_k the k largest
        """
        assert evaluation.grad is not None
        z, i = state["z"], state["i"]
        score, grad = finite(evaluation.score), torch.nan_to_num(evaluation.grad, 0, 0, 0)
        table = _phases(self.steps, x.device)[i.clamp_max(self.evaluations - 1)]
        first, last, checkpoint = (table[:, k] > 0 for k in range(3))
        width, next_width = (table[:, k].to(x) for k in (3, 4))
        radius = _radii(ball, x)

        better = first | (score > state["top"])
        top = torch.where(better, score, state["top"])
        best = torch.where(tall(better), z, state["best"])
        best_grad = torch.where(tall(better), grad, state["grad"])

        changed = ((best - x).flatten(1) != 0).sum(1).to(x)
        sparser = checkpoint & (changed < CHANGED * state["changed"])
        full = width * radius
        step = torch.where(checkpoint & ~sparser, state["step"] / SLOWER, state["step"])
        step = torch.where(first | sparser, full, step)
        step = torch.minimum(torch.maximum(step, full / SLOWEST), full)
        share = torch.where(first | checkpoint, changed / (DENSITY * x[0].numel()), state["share"])
        start = torch.where(tall(sparser), best, z)
        slope = torch.where(tall(sparser), best_grad, grad)

        moved = start + tall(step) * _sparse_sign(slope, share)
        place = torch.where(tall(last), best, moved)
        phase = Ball("l1", torch.where(last, next_width, width) * radius)
        return {
            "z": phase.project(place, x),
            "best": best,
            "grad": best_grad,
            "top": top,
            "share": share,
            "changed": torch.where(first | checkpoint, changed, state["changed"]),
            "step": step,
            "distance": ball.distance(best, x),
            "i": i + 1,
        }


def climbing(norm: Norm, steps: int) -> SearchRule:
    """The gradient search of AutoAttack for a norm."""
    return ApgdL1(steps) if norm == "l1" else Apgd(steps)


def phase_steps(steps: int) -> tuple[int, ...]:
    """How many of the steps each phase has.

    >>> phase_steps(100)
    (30, 30, 40)
    """
    counts = [int(share * steps + 1e-9) for share in SHARES[:-1]]
    return (*counts, steps - sum(counts))


@lru_cache
def _phases(steps: int, device: torch.device) -> Tensor:
    """For each evaluation: first of its phase, last, whether the step is looked at, two widths."""
    rows = []
    for p, count in enumerate(phase_steps(steps)):
        window = max(int(WINDOW * count), 1)
        after = WIDTHS[min(p + 1, len(WIDTHS) - 1)]
        for j in range(count + 1):
            checkpoint = j > 0 and j % window == 0
            rows.append([float(j == 0), float(j == count), float(checkpoint), WIDTHS[p], after])
    return torch.tensor(rows, dtype=torch.float64, device=device)


def _radii(ball: Ball, x: Images) -> Tensor:
    """One radius per row."""
    return ball.reach(x).flatten().expand(len(x))


def _sparse_sign(grad: Images, share: Tensor) -> Images:
    """Signs of the largest coordinates of each row, of unit l1 length."""
    flat = grad.flatten(1).abs()
    count = flat.shape[1]
    place = ((1 - share) * count).long().clamp(0, count - 1)
    least = flat.sort(dim=1).values.gather(1, place[:, None])
    signs = grad.flatten(1).sign() * (flat >= least)
    return (signs / signs.abs().sum(1, keepdim=True).clamp_min(1e-10)).view_as(grad)


def apgd_l1(
    objective: Objective,
    x: Images,
    ball: Ball,
    *,
    steps: int = 100,
    generator: torch.Generator | Seeds | None = None,
) -> SearchResult:
    """Raise the objective inside an l1 ball by l1-APGD.

    Args:
        generator: a generator or one seed per row; None means the fixed seed 0.
    """
    x = x.detach()
    rule = ApgdL1(steps)
    seeds = generator if isinstance(generator, Tensor) else row_seeds(len(x), generator)
    with torch.no_grad():
        start = finite(objective(x).detach())
    state = rule.start(x, ball, seeds)
    for _ in range(rule.evaluations):
        score, grad = value_and_grad(objective, state["z"])
        state = rule.update(state, x, ball, Evaluation(score, score, grad))
    best, points = keep(start, x, state["top"], state["best"])
    return SearchResult(points, best, start)
