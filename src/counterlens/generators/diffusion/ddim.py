"""Differentiable DDIM sampling with classifier-free guidance.

Paper: Song, Meng, Ermon 2021 (ddim2021), η = 0; Ho and Salimans 2022 (cfg2022); Augustin et al.
       2024 (digin2024), section 3 and appendix B, for a condition and a null text per step and for
       checkpointing each step.
Differs: guidance g multiplies ε_c − ε_∅ from ε_∅, as in common code; the paper's w is g − 1. The
       misprints of the paper's (13) and (15) are not repeated.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from counterlens.errors import InputError
from counterlens.generators.diffusion.model import Cond, LatentDiffusion, Latents
from counterlens.generators.diffusion.recompute import StoredSteps, blocks_again

Conds = Float[Tensor, "b t n d"]
"""One text condition per image and step."""


@dataclass(frozen=True)
class Chain:
    """Where a chain ended.

    Args:
        z: the latents after the last step.
        originals: the clean latents predicted in the last steps, the final one last.
    """

    z: Latents
    originals: tuple[Latents, ...]


def original(z: Latents, noise: Latents, alpha: float) -> Latents:
    """The clean latents that a noise prediction implies.

    Equation: ddim2021 (9)   x̂₀ = (z_t − √(1 − ᾱ_t) ε̂) / √ᾱ_t
    """
    return (z - math.sqrt(1 - alpha) * noise) / math.sqrt(alpha)


def step(z: Latents, noise: Latents, alpha: float, after: float) -> Latents:
    """One deterministic step from ᾱ_t to the ᾱ of another time, either way.

    Equation: digin2024 (1)   z_{t−1} = √ᾱ_{t−1} x̂₀ + √(1 − ᾱ_{t−1}) ε̂
    """
    return math.sqrt(after) * original(z, noise, alpha) + math.sqrt(1 - after) * noise


def guided(null: Latents, cond: Latents, guidance: float) -> Latents:
    """The noise prediction pushed from the null text towards the condition.

    Equation: digin2024 (17)   ε̂ = ε_c + w (ε_c − ε_∅),  w = g − 1
    """
    return null + guidance * (cond - null)


def guided_noise(
    model: LatentDiffusion, z: Latents, time: int, cond: Cond, null: Cond, guidance: float
) -> Latents:
    """The guided prediction at one time: null and condition in one batch, the null first."""
    if guidance == 1:
        return model.noise(z, time, cond)
    without, within = model.noise(torch.cat([z, z]), time, torch.cat([null, cond])).chunk(2)
    return guided(without, within, guidance)


@dataclass(frozen=True)
class Hooks:
    """What is done in each step of a chain.

    Args:
        around: what surrounds the network at step i, see `attention`.
        enter: what is done to the latents with which step i begins, such as blending.
    """

    around: Callable[[int], AbstractContextManager[None]] | None = None
    enter: Callable[[int, Latents], Latents] | None = None


def ddim(
    model: LatentDiffusion,
    z: Latents,
    cond: Conds,
    null: Conds,
    *,
    guidance: float = 3.0,
    last: int = 1,
    stored: StoredSteps = None,
    hooks: Hooks = Hooks(),  # noqa: B008  frozen
) -> Chain:
    """Run the chain from noise to latents; its gradient reaches z, every C_t and every ∅_t.

    Equation: digin2024 Alg. 1   z_{t−1} = step(z_t, ε̂(z_t, t, C_t, ∅_t))

    Args:
        z: noise of unit variance.
        cond, null: one condition and one null text per step; their number is the number of steps.
        guidance: g; 1 uses the condition alone.
        last: how many of the last predicted clean latents to return.
        stored: steps, counted from the end, whose activations are stored for the backward pass; the
            others are recomputed there, with "blocks" all, block by block. None stores all. The
            gradient is the same.
        hooks: what is done in each step.
    """
    steps = cond.shape[1]
    if null.shape != cond.shape:
        raise InputError(
            f"null texts have the shape {tuple(null.shape)}, expected {tuple(cond.shape)}."
        )
    if not guidance >= 1:
        raise InputError(f"guidance is {guidance}, expected 1 or more, e.g. 3.")
    schedule = model.schedule
    originals: list[Latents] = []
    whole = steps if stored is None else 0 if stored == "blocks" else stored
    for i, time in enumerate(schedule.times(steps)):
        before = schedule.before(time, steps)
        alphas = schedule.alpha(time), schedule.alpha(before)
        one = _step(
            model, time, *alphas, guidance,
            nullcontext if hooks.around is None else partial(hooks.around, i),
            None if hooks.enter is None else partial(hooks.enter, i), stored == "blocks",
        )  # fmt: skip
        again = i < steps - whole and torch.is_grad_enabled()
        if again and not getattr(model.unet, "recomputes", False):  # see `cuda_graph`
            # nothing random happens inside, so no random state needs to be saved
            z, clean = checkpoint(
                one, z, cond[:, i], null[:, i], use_reentrant=False, preserve_rng_state=False
            )
        else:
            z, clean = one(z, cond[:, i], null[:, i])
        if i >= steps - last:
            originals.append(clean)
    return Chain(z, tuple(originals))


def _step(
    model: LatentDiffusion,
    time: int,
    alpha: float,
    after: float,
    guidance: float,
    around: Callable[[], AbstractContextManager[None]],
    enter: Callable[[Latents], Latents] | None,
    blocks: bool,
) -> Callable[[Latents, Cond, Cond], tuple[Latents, Latents]]:
    def one(z: Latents, cond: Cond, null: Cond) -> tuple[Latents, Latents]:
        if enter is not None:
            z = enter(z)
        lean = blocks and torch.is_grad_enabled()
        with around(), blocks_again(model.unet, around) if lean else nullcontext():
            noise = guided_noise(model, z, time, cond, null, guidance)
        return step(z, noise, alpha, after), original(z, noise, alpha)

    return one


def repeated(cond: Cond, steps: int) -> Conds:
    """The same condition for every step."""
    return cond[:, None].expand(-1, steps, -1, -1)
