"""Probes: a few evaluations of a model that show whether its gradient can be attacked with.

Paper: Carlini et al. 2019, On Evaluating Adversarial Robustness, arXiv:1902.06705 (section 3.1)
       for the signs of a masked gradient.
Differs: a gradient is compared with differences of the model's own margin at three scales, around
       the images and around random points of the ball. Zero gradients are counted per logit, so
       that neither the scale of the logits nor the loss matters.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from counterlens.ball import Ball, Seeds
from counterlens.notation import EXPONENTS
from counterlens.objectives import full, margin, margin_of
from counterlens.search.fast.engine import Engine
from counterlens.search.pgd import pgd
from counterlens.types import Images, Labels, Scores

FlagStatus = Literal["ok", "weak", "bad", "skipped"]

LOGITS = 10  # classes whose logit is differentiated: the true one and the likeliest others
TINY = 1e-3  # change of the margin, relative to the largest logit, for the derivative
NEAR, WIDE = 0.02, 0.1  # the two other scales, as shares of the radius


@dataclass(frozen=True)
class Flag:
    """One sign.

    Args:
        name: which.
        status: ok, weak, bad, or skipped.
        value: the number it rests on, if any.
        detail: one readable line.
    """

    name: str
    status: FlagStatus
    value: float | None
    detail: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def grade(value: float, weak: float, bad: float) -> FlagStatus:
    """Where a value lies that should be small."""
    return "bad" if value > bad else "weak" if value > weak else "ok"


def masking(
    engine: Engine, ball: Ball, x: Images, y: Labels, seeds: Seeds, *, far_steps: int
) -> list[Flag]:
    """Signs that the gradient is missing or wrong.

    Args:
        y: the class whose margin is measured: the true one, or the predicted one.
        far_steps: steps of the attack that has hardly any limit.
    """
    places = (x, ball.random_point(x, seeds, where="inside"))
    return [
        zero_gradients(engine, places, y),
        honest_gradient(engine, ball, places, y),
        far_attack(engine, ball, x, y, far_steps),
    ]


def randomness(engine: Engine, x: Images) -> Flag:
    """Whether the model answers the same question in the same way."""
    answers = [engine.verify(x, batch=len(x)) for _ in range(3)]
    spread = (answers[0].amax(1) - answers[0].amin(1)).clamp_min(1e-12)
    change = max(((a - answers[0]).abs().amax(1) / spread).max().item() for a in answers[1:])
    if not change > 1e-4:
        return Flag("randomness", "ok", change, "the same image gets the same logits")
    detail = f"the same image gets logits that differ by {change:.1%} of their spread"
    if engine.repeats > 1:
        detail += f"; averaged over {engine.repeats} evaluations"
        return Flag("randomness", "weak", change, detail)
    return Flag("randomness", "bad", change, detail + ": use version rand")


def zero_gradients(engine: Engine, places: tuple[Images, ...], y: Labels) -> Flag:
    """How many logits do not depend on the image at all, to first order."""
    flat = []
    for z in places:
        with torch.enable_grad():
            point = z.detach().requires_grad_(True)
            logits = full(engine.model(point))
            top = logits.detach().scatter(1, y[:, None], torch.inf)
            for classes in top.topk(min(LOGITS, logits.shape[1]), 1).indices.T:
                one = logits.gather(1, classes[:, None]).sum()
                (grad,) = torch.autograd.grad(one, point, retain_graph=True)
                flat.append((grad.flatten(1).abs().amax(1) == 0).float().mean().item())
    share = sum(flat) / len(flat)
    detail = f"the gradient of {share:.0%} of the logits is exactly zero"
    return Flag("zero-gradients", grade(share, 0.02, 0.1), share, detail)


def honest_gradient(engine: Engine, ball: Ball, places: tuple[Images, ...], y: Labels) -> Flag:
    """Whether the margin grows along its gradient as fast as the gradient says.

    Over a tenth of the radius a healthy margin may grow more slowly, for it is curved; that it
    grows many times faster means that the gradient sees little of what moves the model.

    Equation: carlini2019 §3.1   (f(x + h d) − f(x − h d)) / 2h = ⟨∇f, d⟩
    """
    name = "honest-gradient"
    if float(ball.radius) == 0:
        return Flag(name, "skipped", None, "a ball of radius 0 has no direction")
    rates = [rate for z in places for rate in _rates(engine, ball, z, y)]
    if not rates:
        return Flag(name, "bad", None, "the margin has no gradient at any point")
    off = max(rates, key=lambda rate: max(rate, 1 / rate) if rate > 0 else torch.inf)
    status: FlagStatus = "bad" if not 0.2 < off < 5 else "weak" if not 0.5 < off < 2 else "ok"
    detail = (
        f"along its gradient the margin grows at {off:.0%} of the rate that the gradient predicts"
    )
    return Flag(name, status, off, detail)


def _rates(engine: Engine, ball: Ball, z: Images, y: Labels) -> list[float]:
    """Measured over promised growth of the margin, the median over points, for each scale."""
    with torch.enable_grad():
        point = z.detach().requires_grad_(True)
        logits = engine.model(point)
        (grad,) = torch.autograd.grad(margin_of(logits, y).sum(), point)
    grad = grad.nan_to_num(0, 0, 0)
    direction = ball.steepest(grad)
    slope = (grad * direction).flatten(1).sum(1)
    moves = slope > 0
    if not moves.any():
        return []
    radius = float(ball.radius)
    change = max(TINY, 8 * torch.finfo(logits.dtype).eps) * full(logits.detach()).abs().amax(1)
    tiny = (change / slope.clamp_min(1e-30)).clamp_max(NEAR * radius)
    near, wide = torch.full_like(tiny, NEAR * radius), torch.full_like(tiny, WIDE * radius)

    def rate(reach: Scores) -> float:
        away = reach.view(-1, 1, 1, 1) * direction
        up, down = (margin_of(engine.verify(z + s * away, batch=len(z)), y) for s in (1, -1))
        measured = ((up - down) / (2 * reach * slope))[moves]
        return measured.nan_to_num(0, 0, 0).median().item()

    return [rate(tiny), rate(near), max(rate(wide), 1.0)]


def far_attack(engine: Engine, ball: Ball, x: Images, y: Labels, steps: int) -> Flag:
    """An attack with hardly any limit must change nearly every answer."""
    pixels = x[0].numel()
    least = 0.25 if ball.norm == "linf" else 0.1 * pixels ** (1 / EXPONENTS[ball.norm])
    far = Ball(ball.norm, max(8 * float(ball.radius), least))
    result = pgd(margin(engine.model, y), x, far, steps=steps, momentum=0.75)
    share = (~misclassified(engine, result.points, y)).float().mean().item()
    detail = f"{share:.0%} of the points survive an attack of {ball.norm} {far.radius:.3g}"
    return Flag("far-attack", grade(share, 0.1, 0.3), share, detail)


def misclassified(engine: Engine, points: Images, y: Labels) -> Tensor:
    """Which images the model itself gives another class."""
    return engine.verify(points, batch=len(points)).argmax(1) != y
