"""Fast adaptive boundary attack: the nearest misclassified point.

Paper: Croce and Hein 2020, Minimally Distorted Adversarial Examples with a Fast Adaptive
       Boundary Attack, arXiv:1907.02044 (section 2).
Differs: the projection on hyperplane and box solves its one-dimensional equation by Newton
       steps instead of sorting: it is concave and piecewise linear, so they end at the exact
       root. After crossing the boundary the hyperplane of the crossing point is used for the
       step from the point pulled back; the reference evaluates that point once more
       (`relinearise=True` does so, at up to twice the evaluations). No final bisection.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from counterlens.ball import Ball, Norm, Seeds, mix, row_seeds
from counterlens.errors import InputError
from counterlens.objectives import Predict, at, decision_margin_of, full
from counterlens.search.rule import Evaluation, RuleState, tall
from counterlens.types import Images, Labels, Logits, Scores

OVERSHOOT = 1.05
PULL_BACK = 0.9
MOST_ORIGINAL = 0.1
NEWTON_STEPS = 10
FAB_NORMS = ("l1", "l2", "linf")
_FLOOR = 1e-8


@dataclass(frozen=True)
class Fab:
    """The rule of the boundary attack; the score is z_t − z_y with its gradient.

    Args:
        steps: linearisations.
        wander: start at a random point at half the radius instead of the image itself.
        relinearise: evaluate the point again after pulling it back.
    """

    steps: int = 100
    wander: bool = False
    relinearise: bool = False
    strays: bool = field(default=True, init=False)

    @property
    def evaluations(self) -> int:
        """The last step's point is evaluated too; pulled-back points count double."""
        return (2 if self.relinearise else 1) * self.steps + 1

    def start(self, x: Images, ball: Ball, seeds: Seeds) -> RuleState:
        """The images themselves, or random points at half the radius."""
        half = Ball(ball.norm, ball.radius / 2)
        rows = x.new_zeros(len(x))
        return {
            "z": half.random_point(x, seeds) if self.wander else x,
            "best": x,
            "distance": torch.full_like(rows, torch.inf),
            "i": torch.zeros_like(rows, dtype=torch.int64),
        }

    def update(self, state: RuleState, x: Images, ball: Ball, evaluation: Evaluation) -> RuleState:
        """Keep the nearest misclassified point, then step to the linearised boundary.

        Equation: fab2020 (7)   z ← P((1 − α)(z + η δ₁) + α (x + η δ₂)),
        α = min(‖δ₁‖/(‖δ₁‖ + ‖δ₂‖), α_max)
        """
        assert evaluation.grad is not None
        z = state["z"]
        grad = torch.nan_to_num(evaluation.grad, 0, 0, 0)
        value = torch.nan_to_num(evaluation.score, 0, 0, 0)
        crossed = evaluation.margin > 0
        distance = ball.distance(z, x)
        nearer = crossed & (distance < state["distance"])
        pulled = x + PULL_BACK * (z - x)
        here = torch.where(tall(crossed), pulled, z)

        there = torch.cat([here, x])
        slopes = grad.repeat(2, 1, 1, 1)
        values = value.repeat(2) + (slopes * (there - z.repeat(2, 1, 1, 1))).sum((1, 2, 3))
        both = project_on_plane(there, slopes, values, ball.norm)
        first, second = both[: len(z)] - here, both[len(z) :] - x
        length_1 = ball.distance(first, torch.zeros_like(first)).clamp_min(_FLOOR)
        length_2 = ball.distance(second, torch.zeros_like(second)).clamp_min(_FLOOR)
        share = tall((length_1 / (length_1 + length_2)).clamp_max(MOST_ORIGINAL))
        moved = (1 - share) * (here + OVERSHOOT * first) + share * (x + OVERSHOOT * second)
        moved = moved.clamp(0, 1)
        if self.relinearise:
            moved = torch.where(tall(crossed), pulled, moved)
        return {
            "z": moved,
            "best": torch.where(tall(nearer), z, state["best"]),
            "distance": torch.where(nearer, distance, state["distance"]),
            "i": state["i"] + 1,
        }


def project_on_plane(point: Images, normal: Images, value: Scores, norm: Norm) -> Images:
    """The nearest point of the box on the plane value + ⟨normal, v − point⟩ = 0.

    Where the plane misses the box, the corner nearest to the plane. Coordinates with
    |normal| < 1e-8 do not move.

    Equation: fab2020 (5)   min ‖v − u‖_p  with  ⟨w, v⟩ + b = 0,  0 ≤ v ≤ 1
    """
    if norm not in FAB_NORMS:
        raise InputError(f"fab knows the norms {', '.join(FAB_NORMS)}, not {norm}.")
    sign = -tall(value.sign()) * normal.sign()  # along it the value goes to 0
    size = functional.threshold(normal.abs(), _FLOOR, 0.0).flatten(1)
    room = (0.5 + sign * (0.5 - point)).flatten(1)  # to the wall of the box
    if norm == "l1":
        move = _greedy(size, room, value.abs())
    else:
        move = _newton(size, room, value.abs(), size if norm == "l2" else size.sign())
    return (point + sign * move.view_as(point)).clamp(0, 1)


def _newton(size: Tensor, room: Tensor, need: Tensor, rate: Tensor) -> Tensor:
    """Moves min(t·rate, room) with Σ size · move = need.

    The left side is concave, increasing and piecewise linear in t, so Newton's method from
    t = 0 climbs to the root without passing it, one linear piece at least per step.
    """
    slopes = size * rate
    goal = need[:, None]
    slack = 16 * torch.finfo(need.dtype).eps
    t = torch.zeros_like(goal)
    move, spare = torch.zeros_like(room), torch.empty_like(room)  # two buffers for all steps
    for _ in range(NEWTON_STEPS):
        slope = torch.sub(room, move, out=spare).sign_().mul_(slopes).sum(1, keepdim=True)
        reached = torch.mul(size, move, out=spare).sum(1, keepdim=True)
        missing = (goal - reached).clamp_min(0)
        if missing.device.type == "cpu" and not (missing > slack * goal).any():
            break  # elsewhere looking would cost more than the steps that change nothing
        t = t + missing / slope.clamp_min(1e-30)  # no slope: the plane misses the box
        torch.minimum(torch.mul(t, rate, out=move), room, out=move)
    return move


def _greedy(size: Tensor, room: Tensor, need: Tensor) -> Tensor:
    """Least l1 move with Σ size · move = need: the steepest coordinates first."""
    order = size.argsort(1, descending=True)
    steep = size.gather(1, order)
    gain = steep * room.gather(1, order)
    before = gain.cumsum(1) - gain
    used = torch.minimum((need[:, None] - before).clamp_min(0), gain) / steep.clamp_min(1e-30)
    return torch.zeros_like(size).scatter(1, order, used)


def nearest_plane(logits: Logits, z: Images, label: Labels, norm: Norm) -> tuple[Scores, Images]:
    """Value and gradient of z_k − z_y for the class k whose linearised boundary is nearest.

    Equation: fab2020 (4)   k = argmin_{k≠y} |z_k − z_y| / ‖∇(z_k − z_y)‖_q

    One backward pass per class; `z` must require grad and `logits` depend on it.
    """
    dual = {"l1": torch.inf, "l2": 2.0, "linf": 1.0}[norm]
    true = at(logits, label)
    value, grad = torch.zeros_like(true).detach(), torch.zeros_like(z)
    least = torch.full_like(value, torch.inf)
    for k in range(logits.shape[1]):
        gap = logits[:, k] - true
        (slope,) = torch.autograd.grad(gap.sum(), z, retain_graph=True)
        size: Tensor = torch.linalg.vector_norm(slope, dual, dim=(1, 2, 3))
        away = gap.detach().abs() / size.clamp_min(1e-12)
        closer = (away < least) & (label != k)
        least = torch.where(closer, away, least)
        value = torch.where(closer, gap.detach(), value)
        grad = torch.where(tall(closer), slope, grad)
    return value, grad


@dataclass(frozen=True)
class Nearest:
    """The nearest misclassified point of each row; the image itself where there is none.

    Args:
        points: misclassified points.
        distances: how far they are; ∞ where there is none.
    """

    points: Images
    distances: Scores


def fab(
    predict: Predict,
    x: Images,
    label: Labels,
    ball: Ball,
    *,
    target: Labels | None = None,
    steps: int = 100,
    restarts: int = 1,
    generator: torch.Generator | Seeds | None = None,
) -> Nearest:
    """Search the nearest misclassified point, towards one class or towards any.

    Args:
        target: class whose boundary is approached; None linearises all boundaries (one backward
            pass per class) and takes the nearest. Any misclassification counts either way.
        ball: its norm measures the distance; restarts after the first begin at a random point at
            half its radius.
    """
    x = x.detach()
    seeds = generator if isinstance(generator, Tensor) else row_seeds(len(x), generator)
    points, distances = x, x.new_full((len(x),), torch.inf)
    for restart in range(restarts):
        rule = Fab(steps, wander=restart > 0)
        state = rule.start(x, ball, mix(seeds, restart))
        for _ in range(rule.evaluations):
            with torch.enable_grad():
                z = state["z"].detach().requires_grad_(True)
                logits = full(predict(z))
                if target is None:
                    score, grad = nearest_plane(logits, z, label, ball.norm)
                else:
                    score = at(logits, target) - at(logits, label)
                    (grad,) = torch.autograd.grad(score.sum(), z)
            evaluation = Evaluation(
                score.detach(), decision_margin_of(logits.detach(), label), grad
            )
            state = rule.update(state, x, ball, evaluation)
        nearer = state["distance"] < distances
        points = torch.where(tall(nearer), state["best"], points)
        distances = torch.where(nearer, state["distance"], distances)
    return Nearest(points, distances)
