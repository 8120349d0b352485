"""Few steps: what one step of a student is to be, so that it goes as far as two of its teacher.

A chain of N steps visits the times that are N-ths of the schedule ("trailing"), so that every
second time of a teacher's 2N is one of its student's N, and the first is the noisiest of all.

Paper: Salimans and Ho 2022 (salimans2022), Algorithm 2 and section 4; Meng et al. 2023
       (meng2023), section 3, for guidance in the teacher of the first halving.
Differs: one fixed guidance, which the network is not told. Times are those of the schedule's table,
       not continuous.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterlens.errors import InputError
from counterlens.generators.diffusion.ddim import guided
from counterlens.generators.diffusion.model import Cond, LatentDiffusion, Latents
from counterlens.generators.diffusion.schedule import Prediction, Schedule

Levels = Float[Tensor, "b"]
Times = Int[Tensor, "b"]
Network = Callable[[Latents, Times, Cond], Latents]
"""Noisy latents, the time of each and its condition to what the network predicts."""


def trailing(schedule: Schedule) -> Schedule:
    """The same noise levels, visited from the noisiest on; the network keeps its prediction."""
    return replace(schedule, spacing="trailing", offset=0)


def halvings(first: int, last: int, count: int) -> tuple[int, ...]:
    """Steps of each student, from a teacher of `first` steps down to `last`.

    >>> halvings(32, 4, 1000)
    (16, 8, 4)
    """
    steps = [first]
    while steps[-1] > last and steps[-1] % 2 == 0:
        steps.append(steps[-1] // 2)
    if len(steps) < 2 or steps[-1] != last or first > count or count % last:
        raise InputError(
            f"first is {first} and last is {last}, expected a number of steps up to {count} that "
            f"halves down to a divisor of {count}, e.g. first=64 last=4."
        )
    return tuple(steps[1:])


@dataclass(frozen=True)
class TimeGrid:
    """The times of a chain and of one with twice the steps.

    Args:
        times: of the long chain, the clean end first: −1, then the times from the least noisy on.
        levels: ᾱ at these times.
    """

    times: Int[Tensor, "m"]
    levels: Float[Tensor, "m"]

    @staticmethod
    def make(schedule: Schedule, steps: int, device: torch.device | str = "cpu") -> "TimeGrid":
        """Of a student of so many steps and its teacher of twice as many."""
        times = (*trailing(schedule).times(2 * steps), -1)[::-1]
        levels = [schedule.alpha(time) for time in times]
        return TimeGrid(
            torch.tensor(times, device=device),
            torch.tensor(levels, dtype=torch.float64, device=device).float(),
        )

    def start(self, place: Int[Tensor, "b"]) -> tuple[Times, Levels]:
        """Where step `place` of the student begins, counted from 1, the last step of a chain."""
        return self.times[2 * place], self.levels[2 * place]


def clean(predicted: Latents, z: Latents, level: Levels, prediction: Prediction) -> Latents:
    """The clean latents that a prediction implies, each at a noise level of its own.

    Equation: salimans2022 §4   x̂ = √ᾱ z − √(1 − ᾱ) v̂;  x̂ = (z − √(1 − ᾱ) ε̂) / √ᾱ
    """
    if prediction == "sample":
        return predicted
    alpha, sigma = _parts(level)
    if prediction == "v_prediction":
        return alpha * z - sigma * predicted
    return (z - sigma * predicted) / alpha


def stepped(x: Latents, z: Latents, level: Levels, after: Levels) -> Latents:
    """One DDIM step with given clean latents, each between noise levels of its own.

    Equation: salimans2022 (8)   z_s = √ᾱ_s x̂ + √(1 − ᾱ_s) (z_t − √ᾱ_t x̂) / √(1 − ᾱ_t)
    """
    (alpha, sigma), (alpha_after, sigma_after) = _parts(level), _parts(after)
    return alpha_after * x + sigma_after * (z - alpha * x) / sigma


def target(z: Latents, reached: Latents, level: Levels, after: Levels) -> Latents:
    """The clean latents with which one DDIM step from z ends where the teacher's two did.

    Equation: salimans2022 Alg. 2   x̃ = (z_s − (σ_s/σ_t) z_t) / (α_s − (σ_s/σ_t) α_t)
    """
    (alpha, sigma), (alpha_after, sigma_after) = _parts(level), _parts(after)
    ratio = sigma_after / sigma
    return (reached - ratio * z) / (alpha_after - ratio * alpha)


@dataclass(frozen=True)
class Teacher:
    """Two DDIM steps of a network, guided or not.

    Args:
        null: the condition of no text.
        guidance: g; 1 uses the condition alone.
    """

    network: Network
    prediction: Prediction
    null: Cond
    guidance: float = 1.0

    def clean(self, z: Latents, time: Times, level: Levels, cond: Cond) -> Latents:
        """The clean latents that the teacher sees in z."""
        if self.guidance == 1:
            return clean(self.network(z, time, cond), z, level, self.prediction)
        null = self.null.expand(len(z), -1, -1)
        both = self.network(torch.cat([z, z]), torch.cat([time, time]), torch.cat([null, cond]))
        without, within = both.chunk(2)
        # x̂ and v̂ are affine in ε̂, so guiding any of them is guiding all
        return clean(guided(without, within, self.guidance), z, level, self.prediction)

    @torch.no_grad()
    def target(self, z: Latents, place: Int[Tensor, "b"], grid: TimeGrid, cond: Cond) -> Latents:
        """What a student that begins its step `place` with z is to see."""
        (time, level), at = grid.start(place), 2 * place
        middle, end = grid.levels[at - 1], grid.levels[at - 2]
        half = stepped(self.clean(z, time, level, cond), z, level, middle)
        seen = self.clean(half, grid.times[at - 1], middle, cond)
        return target(z, stepped(seen, half, middle, end), level, end)


def network_of(model: LatentDiffusion) -> Network:
    """The UNet of a model as it is."""

    def predict(z: Latents, time: Times, cond: Cond) -> Latents:
        out: Tensor = model.unet(z, time, encoder_hidden_states=cond).sample
        return out.to(z.dtype)

    return predict


def _parts(level: Levels) -> tuple[Tensor, Tensor]:
    wide = level.view(-1, 1, 1, 1)
    return wide.sqrt(), (1 - wide).sqrt()
