"""Adam over named groups of variables, one set of them per image.

Paper: Kingma and Ba 2015 (adam2015); Augustin et al. 2024 (digin2024), appendix A and code, for the
       rest: step sizes per group, gradients clipped by their largest entry, cosine schedule, and
       the best image by the score without augmentation in place of the last.
Differs: each row of a batch is a search of its own: clipping and the best are per row. The cosine
       schedule ends at a tenth of each group's own step size; with `floor="shared"` at a tenth of
       the largest, which is what the reference does and which makes small step sizes grow.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.errors import InputError
from counterlens.progress import steps as counted
from counterlens.search.result import SearchResult
from counterlens.types import Images, Scores

Variables = dict[str, Tensor]


@dataclass(frozen=True)
class VariableGroup:
    """One variable of the search.

    Args:
        value: where it starts, one row per image.
        step_size: Adam's.
        after: what is done to it after each step, e.g. bringing it back to its length.
    """

    value: Float[Tensor, "b *rest"]
    step_size: float
    after: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Moments:
    """Running means of a variable's gradients and of their squares."""

    mean: Tensor
    square: Tensor

    @classmethod
    def zeros(cls, like: Tensor) -> "Moments":
        """Before the first step."""
        return cls(torch.zeros_like(like), torch.zeros_like(like))

    def after(self, grad: Tensor) -> "Moments":
        """With one more gradient.

        Equation: adam2015 Alg. 1   m ← β₁ m + (1 − β₁) g,  v ← β₂ v + (1 − β₂) g²
        """
        mean = 0.9 * self.mean + 0.1 * grad
        return Moments(mean, 0.999 * self.square + 0.001 * grad.square())

    def moved(self, value: Tensor, rate: float, step: int) -> Tensor:
        """The variable after its step number `step`, counted from 1, upwards.

        Equation: adam2015 Alg. 1   θ ← θ + α m̂ / (√v̂ + ε)
        """
        scale = (self.square / (1 - 0.999**step)).sqrt() + 1e-8
        return value + rate * (self.mean / (1 - 0.9**step)) / scale


@dataclass(frozen=True)
class Iterate:
    """The scores and images of the variables at one step.

    Args:
        raised: the scores whose gradient is followed, augmented or averaged.
        judged: the scores by which the best is chosen.
        points: the images they make.
    """

    raised: Scores
    judged: Scores
    points: Images


def adam(
    evaluate: Callable[[Variables, int], Iterate],
    groups: Mapping[str, VariableGroup],
    *,
    steps: int,
    clip: float | None = None,
    schedule: Literal["constant", "cosine"] = "constant",
    floor: Literal["own", "shared"] = "own",
    callback: Callable[[int, Iterate], None] | None = None,
    enough: float | None = None,
) -> tuple[SearchResult, Variables]:
    """Raise a score over several variables; return the best images and their variables.

    `steps` updates and `steps` + 1 evaluations: the start counts as a candidate.

    Args:
        evaluate: (values, step) → scores and images; each row depends on its own values only.
        clip: largest entry of a row's gradient of a variable; larger ones are scaled down.
        callback: called with the step and the iterate after every evaluation.
        enough: a row whose judged score is at least this has converged; when all have, the search
            ends.
    """
    if steps < 0:
        raise InputError(f"steps are {steps}, expected 0 or more.")
    values = {name: group.value.detach().clone() for name, group in groups.items()}
    moments = {name: Moments.zeros(value) for name, value in values.items()}
    best: tuple[Iterate, Variables] | None = None
    start = torch.zeros(0)
    for k in counted(range(steps + 1), steps):
        leaves = {name: value.requires_grad_(k < steps) for name, value in values.items()}
        with torch.set_grad_enabled(k < steps):
            now = evaluate(leaves, k)
        if callback is not None:
            callback(k, now)
        start = now.judged.detach() if best is None else start
        best = _better(now, values, best, enough)
        if k == steps or (enough is not None and bool((best[0].judged >= enough).all())):
            break
        grads = torch.autograd.grad(now.raised.sum(), list(leaves.values()))
        for (name, group), grad in zip(groups.items(), grads, strict=True):
            if clip is not None:
                largest = grad.flatten(1).abs().amax(1).clamp_min(1e-30)
                grad = grad * _wide((clip / largest).clamp_max(1), grad)
            moments[name] = moments[name].after(grad)
            rate = rate_at(k, steps, groups, name, schedule, floor)
            moved = moments[name].moved(values[name].detach(), rate, k + 1)
            values[name] = group.after(moved) if group.after is not None else moved
    assert best is not None
    return SearchResult(best[0].points, best[0].judged, start), best[1]


def _better(
    now: Iterate,
    values: Variables,
    best: tuple[Iterate, Variables] | None,
    enough: float | None,
) -> tuple[Iterate, Variables]:
    """The best iterate of each row so far, and its variables; a converged row stays as it is."""
    judged, points = now.judged.detach(), now.points.detach()
    if best is None:
        return Iterate(judged, judged, points), _copy(values)
    top, of_top = best
    better = judged > top.judged
    if enough is not None:
        better &= top.judged < enough
    chosen = Iterate(judged, _pick(better, judged, top.judged), _pick(better, points, top.points))
    return chosen, {n: _pick(better, v.detach(), of_top[n]) for n, v in values.items()}


def rate_at(
    k: int,
    steps: int,
    groups: Mapping[str, VariableGroup],
    name: str,
    schedule: str,
    floor: str,
) -> float:
    """The step size of a group at step k.

    Equation: digin2024 §B.1   α_k = α_min + ½ (α − α_min) (1 + cos(π k / K)),  α_min = α / 10
    """
    rate = groups[name].step_size
    if schedule == "constant":
        return rate
    top = rate if floor == "own" else max(group.step_size for group in groups.values())
    low = top / 10
    return low + (rate - low) * (1 + math.cos(math.pi * k / steps)) / 2


def _copy(values: Variables) -> Variables:
    return {name: value.detach().clone() for name, value in values.items()}


def _wide(flags: Tensor, like: Tensor) -> Tensor:
    return flags.view(-1, *[1] * (like.ndim - 1))


def _pick(better: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(_wide(better, new), new, old)
