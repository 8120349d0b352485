"""Null-text inversion: inputs with which the model makes a given image again.

First the chain is walked backwards with the caption alone; then, step by step, a null text is
learned so that the guided chain meets the same latents.

Paper: Mokady et al. 2023 (nulltext2023), Algorithm 1; Augustin et al. 2024 (digin2024), appendix D,
       and its code for the constants.
Differs: many images are one batch, each ending when it has arrived. The caption's prediction does
       not depend on the null text, so it is evaluated once per step; the best null text is taken,
       not the last. The step size stays above 0 for chains of any length.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.checks import check_images
from counterlens.errors import InputError
from counterlens.generators.diffusion.ddim import guided, original, repeated, step
from counterlens.generators.diffusion.model import Cond, LatentDiffusion, Latents
from counterlens.generators.diffusion.optimise import Inputs
from counterlens.search.adam import Iterate, VariableGroup, Variables, adam
from counterlens.types import Images, Scores

RATE = 0.01
Path = Float[Tensor, "b t c h w"]


@dataclass(frozen=True)
class Inversion:
    """Inputs that make images again.

    Args:
        inputs: noise, captions and null texts.
        path: the latents with which each step begins; the last is the noise-free end.
        latents: of the images themselves, E(x).
        images: what the inputs make.
        error: mean squared error of each step's latents.
    """

    inputs: Inputs
    path: Path
    latents: Latents
    images: Images
    error: Float[Tensor, "t b"]


def invert(
    model: LatentDiffusion,
    x: Images,
    prompts: Sequence[str],
    *,
    guidance: float = 3.0,
    steps: int = 20,
    inner: int = 10,
    rate: float = RATE,
    callback: Callable[[int, Scores], None] | None = None,
) -> Inversion:
    """Invert images under their captions.

    Equation: nulltext2023 (3)   min_∅ ‖z*_{t−1} − z_{t−1}(z̄_t, ∅_t, C)‖²

    Args:
        x: images of the model's side.
        guidance: of the chain that will be run; inversion holds for this one only.
        inner: updates of each null text, at most.
        rate: step size of the null text at the first step.
        callback: called with each step's number and errors.
    """
    check_images(x)
    if x.shape[-2:] != (model.side, model.side):
        raise InputError(
            f"images are {x.shape[-1]} × {x.shape[-2]}, expected {model.side} × {model.side} for "
            f"{model.name}."
        )
    if len(prompts) != len(x):
        raise InputError(f"{len(prompts)} captions for {len(x)} images, expected one each.")
    cond = model.embed(prompts)
    with torch.no_grad():
        latents = model.encode(x.to(model.device))
    marks = backwards(model, latents, cond, steps)
    z, null = marks[-1], model.embed([""]).expand(len(x), -1, -1)
    path, nulls, errors = [z], [], []
    clean = z
    for i, time in enumerate(model.schedule.times(steps)):
        if guidance == 1:
            z, clean, error = _plain(model, z, time, cond, marks[-2 - i], steps)
        else:
            z, clean, null, error = _optimise_null_text(
                model, z, time, cond, null, marks[-2 - i],
                _Learning(guidance, steps, inner, rate * max(1 - i / 100, 0.01), 1e-5 + 2e-5 * i),
            )  # fmt: skip
        path.append(z)
        nulls.append(null)
        errors.append(error)
        if callback is not None:
            callback(i, error)
    with torch.no_grad():
        images = model.decode(clean)
    inputs = Inputs(marks[-1], repeated(cond, steps), torch.stack(nulls, 1))
    return Inversion(inputs, torch.stack(path, 1), latents, images, torch.stack(errors))


@torch.no_grad()
def backwards(model: LatentDiffusion, z: Latents, cond: Cond, steps: int) -> list[Latents]:
    """The chain walked from the image to noise with the caption alone; the image first.

    Equation: nulltext2023 (2)   z*_{t+1} = √ᾱ_{t+1} x̂₀ + √(1 − ᾱ_{t+1}) ε(z*_t, t + 1, C)
    """
    latents = [z]
    schedule = model.schedule
    for time in reversed(schedule.times(steps)):
        before = schedule.before(time, steps)
        noise = model.noise(z, time, cond)
        z = step(z, noise, schedule.alpha(before), schedule.alpha(time))
        latents.append(z)
    return latents


@torch.no_grad()
def _plain(
    model: LatentDiffusion, z: Latents, time: int, cond: Cond, mark: Latents, steps: int
) -> tuple[Latents, Latents, Scores]:
    """A step without guidance: there is no null text to learn."""
    alpha, after = _alphas(model, time, steps)
    noise = model.noise(z, time, cond)
    z, clean = step(z, noise, alpha, after), original(z, noise, alpha)
    return z, clean, (z - mark).square().flatten(1).mean(1)


@dataclass(frozen=True)
class _Learning:
    """How one step's null text is learned: at most `inner` updates, until the error is `enough`."""

    guidance: float
    steps: int
    inner: int
    rate: float
    enough: float


def _optimise_null_text(
    model: LatentDiffusion,
    z: Latents,
    time: int,
    cond: Cond,
    null: Cond,
    mark: Latents,
    settings: _Learning,
) -> tuple[Latents, Latents, Cond, Scores]:
    """Learn one step's null text; the latents after it, the clean ones, the text and the error."""
    alpha, after = _alphas(model, time, settings.steps)
    with torch.no_grad():
        within = model.noise(z, time, cond)

    def evaluate(values: Variables, k: int) -> Iterate:
        noise = guided(model.noise(z, time, values["null"]), within, settings.guidance)
        reached = step(z, noise, alpha, after)
        worth = -(reached - mark).square().flatten(1).mean(1)
        return Iterate(worth, worth, noise)

    group = {"null": VariableGroup(null, settings.rate)}
    result, best = adam(evaluate, group, steps=settings.inner, enough=-settings.enough)
    noise = result.points
    return step(z, noise, alpha, after), original(z, noise, alpha), best["null"], -result.scores


def _alphas(model: LatentDiffusion, time: int, steps: int) -> tuple[float, float]:
    schedule = model.schedule
    return schedule.alpha(time), schedule.alpha(schedule.before(time, steps))
