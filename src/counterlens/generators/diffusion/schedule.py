"""The noise schedule of a diffusion model: how much signal is left at each time.

Paper: Ho et al. 2020 (ddpm2020), section 2, for ᾱ; Rombach et al. 2022 (ldm2022) for the
       scaled-linear β; Nichol and Dhariwal 2021 (iddpm2021) for the cosine; Song et al. 2021
       (ddim2021), section 4.2, for fewer steps.
Differs: nothing. Clipping of predicted images, which inversion cannot undo, does not exist here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.errors import InputError

Prediction = Literal["epsilon", "v_prediction", "sample"]
Spacing = Literal["leading", "trailing", "linspace"]


@dataclass(frozen=True)
class Schedule:
    """Signal left at each training time, and which times a short chain visits.

    Args:
        alphas: ᾱ_t, the share of the variance that is signal, for t = 0, 1, …
        final: ᾱ after the last step of a chain: 1, or ᾱ_0.
        prediction: what the network says: the noise, the velocity, or the clean latents.
        spacing, offset: which times are visited.
    """

    alphas: Float[Tensor, "s"]
    final: float
    prediction: Prediction = "epsilon"
    spacing: Spacing = "leading"
    offset: int = 0

    def times(self, steps: int) -> tuple[int, ...]:
        """The times of a chain of so many steps, noisiest first.

        Equation: ddim2021 §4.2   τ_i = ⌊c i⌋

        >>> stable_diffusion().times(20)[:3], stable_diffusion().times(25)[-1]
        ((951, 901, 851), 1)
        """
        count = len(self.alphas)
        if not 1 <= steps <= count:
            raise InputError(f"steps are {steps}, expected 1 … {count} for this model.")
        if self.spacing == "leading":
            times = [i * (count // steps) + self.offset for i in range(steps)][::-1]
        elif self.spacing == "trailing":
            points = torch.arange(count, 0, -count / steps, dtype=torch.float64)
            times = [int(t) - 1 for t in points.round()][:steps]
        else:
            points = torch.linspace(0, count - 1, steps, dtype=torch.float64)
            times = [int(t) for t in points.round()][::-1]
        return tuple(min(t, count - 1) for t in times)

    def alpha(self, time: int) -> float:
        """ᾱ at a time; before time 0 it is the final one."""
        return float(self.alphas[time]) if time >= 0 else self.final

    def before(self, time: int, steps: int) -> int:
        """The time that a chain of so many steps reaches from `time`; below 0 it has ended."""
        return time - len(self.alphas) // steps

    def config(self) -> dict[str, Any]:
        """What a scheduler_config.json needs beside the betas."""
        return {
            "prediction_type": self.prediction,
            "timestep_spacing": self.spacing,
            "steps_offset": self.offset,
            "set_alpha_to_one": self.final == 1.0,
            "clip_sample": False,
        }


def from_config(config: Mapping[str, Any]) -> Schedule:
    """The schedule of a diffusers scheduler_config.json, whichever sampler it was written for."""
    count = int(config.get("num_train_timesteps", 1000))
    first, last = float(config.get("beta_start", 1e-4)), float(config.get("beta_end", 0.02))
    kind = config.get("beta_schedule", "linear")
    if config.get("rescale_betas_zero_snr"):
        raise InputError(
            "this model's schedule ends in pure noise (rescale_betas_zero_snr), which "
            "is not supported. Use a model of the Stable Diffusion 1 or 2 kind."
        )
    if config.get("trained_betas") is not None:
        betas = torch.tensor(config["trained_betas"], dtype=torch.float32)
    elif kind == "scaled_linear":
        betas = torch.linspace(first**0.5, last**0.5, count, dtype=torch.float32) ** 2
    elif kind == "linear":
        betas = torch.linspace(first, last, count, dtype=torch.float32)
    elif kind == "squaredcos_cap_v2":
        betas = cosine_betas(count)
    else:
        raise InputError(
            f"beta_schedule is {kind!r}, expected scaled_linear, linear or squaredcos_cap_v2."
        )
    alphas = torch.cumprod(1 - betas, 0)
    prediction = config.get("prediction_type", "epsilon")
    spacing = config.get("timestep_spacing", "leading")
    for name, value, known in (
        ("prediction_type", prediction, get_args(Prediction)),
        ("timestep_spacing", spacing, get_args(Spacing)),
    ):
        if value not in known:
            raise InputError(f"{name} is {value!r}, expected one of {', '.join(known)}.")
    whole = config.get("set_alpha_to_one", config.get("_class_name") != "PNDMScheduler")
    return Schedule(
        alphas,
        1.0 if whole else float(alphas[0]),
        prediction,
        spacing,
        int(config.get("steps_offset", 0)),
    )


def cosine_betas(count: int, *, most: float = 0.999) -> Float[Tensor, "s"]:
    """The β of a cosine schedule, called squaredcos_cap_v2 in diffusers.

    Equation: iddpm2021 (17)   ᾱ_t = f(t)/f(0), f(t) = cos²((t/T + s)/(1 + s) · π/2), β ≤ 0.999

    >>> cosine_betas(4)[-1].item() < 0.9991
    True
    """
    time = torch.arange(count + 1, dtype=torch.float64) / count
    signal = torch.cos((time + 0.008) / 1.008 * math.pi / 2) ** 2
    return (1 - signal[1:] / signal[:-1]).clamp_max(most).to(torch.float32)


STABLE_DIFFUSION: dict[str, Any] = {
    "num_train_timesteps": 1000,
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "prediction_type": "epsilon",
    "timestep_spacing": "leading",
    "steps_offset": 1,
    "set_alpha_to_one": False,
    "clip_sample": False,
}
"""The schedule of Stable Diffusion 1.4, which the paper and our own model use."""


COSINE: dict[str, Any] = {
    "num_train_timesteps": 1000,
    "beta_schedule": "squaredcos_cap_v2",
    "prediction_type": "v_prediction",
    "timestep_spacing": "leading",
    "steps_offset": 1,
    "set_alpha_to_one": True,
    "clip_sample": False,
}
"""The schedule of the generator of photographs, whose network predicts the velocity."""

SCHEDULES: dict[str, dict[str, Any]] = {"stable-diffusion": STABLE_DIFFUSION, "cosine": COSINE}
"""The schedules a model of our own can be trained with and saved by."""


def named(name: str) -> Schedule:
    """One of our own schedules.

    >>> named("cosine").prediction
    'v_prediction'
    """
    if name not in SCHEDULES:
        raise InputError(f"schedule is {name!r}, expected one of {', '.join(SCHEDULES)}.")
    return from_config(SCHEDULES[name])


def scheduler_config(schedule: Schedule) -> dict[str, Any]:
    """The scheduler_config.json of a schedule, if it is one of our own."""
    for config in SCHEDULES.values():
        if torch.equal(from_config(config).alphas, schedule.alphas.cpu()):
            return {"_class_name": "DDIMScheduler", **config, **schedule.config()}
    raise InputError(f"only models with one of the schedules {', '.join(SCHEDULES)} can be saved.")


def stable_diffusion() -> Schedule:
    """The schedule of Stable Diffusion 1.x.

    >>> round(stable_diffusion().alpha(951), 5), round(stable_diffusion().final, 5)
    (0.00815, 0.99915)
    """
    return from_config(STABLE_DIFFUSION)
