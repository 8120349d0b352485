"""Distillation to few steps against what is known in closed form.

For Gaussian data N(μ, s²) the best network and the solution of the probability-flow ODE are closed:
u = (z_t − √ᾱ_t μ) / √(s² ᾱ_t + 1 − ᾱ_t) stays constant, and the clean end is μ + s u. Targets are
affine, so the student is solved from two points and nothing is left to an optimiser.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from counterlens.errors import InputError
from counterlens.generators.diffusion.ddim import ddim, repeated
from counterlens.generators.diffusion.few_steps import (
    Teacher,
    TimeGrid,
    clean,
    halvings,
    stepped,
    target,
    trailing,
)
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.generators.diffusion.schedule import Schedule, named
from counterlens.losses.diffusion import distilling

MEAN, DEVIATION = 0.7, 0.4
LEVEL = st.floats(0.02, 0.98)


@dataclass(frozen=True)
class Affine:
    """A network whose clean latents are offset + slope · z, by time."""

    schedule: Schedule
    by_time: dict[int, tuple[float, float]]

    def __call__(self, z, time, cond):
        pairs = [self.by_time[int(t)] for t in time]
        offset, slope = (
            torch.tensor(part).double().view(-1, 1, 1, 1) for part in zip(*pairs, strict=True)
        )
        x, level = offset + slope * z, self.schedule.alphas[time].double().view(-1, 1, 1, 1)
        if self.schedule.prediction == "epsilon":
            return (z - level.sqrt() * x) / (1 - level).sqrt()
        return (level.sqrt() * z - x) / (1 - level).sqrt()


def exact(schedule: Schedule) -> Affine:
    """E[x₀ | z_t] for Gaussian data."""
    table = {}
    for t, a in enumerate(schedule.alphas.double().tolist()):
        slope = DEVIATION**2 * a**0.5 / (DEVIATION**2 * a + 1 - a)
        table[t] = (MEAN - slope * a**0.5 * MEAN, slope)
    return Affine(schedule, table)


def solved(schedule: Schedule, teacher: Affine, steps: int) -> Affine:
    """The student with the least possible loss."""
    grid = TimeGrid.make(schedule, steps)
    place = torch.arange(1, steps + 1)
    cond, null = torch.zeros(steps, 1, 1), torch.zeros(1, 1, 1)
    made = Teacher(teacher, schedule.prediction, null)
    wide = torch.ones(steps, 1, 1, 1, dtype=torch.float64)
    ends = [made.target(v * wide, place, grid, cond).flatten().tolist() for v in (0, 1)]
    pairs = [(low, high - low) for low, high in zip(*ends, strict=True)]
    return Affine(schedule, dict(zip(grid.start(place)[0].tolist(), pairs, strict=True)))


class Unet(nn.Module):
    """An affine network as a UNet is called."""

    def __init__(self, network: Affine) -> None:
        super().__init__()
        self.network, self.weight = network, nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, z, time, encoder_hidden_states):
        return SimpleNamespace(sample=self.network(z, time, encoder_hidden_states))


def chain(network: Affine, z, steps: int):
    """What the sampler of the package makes of noise."""
    model = LatentDiffusion(nn.Identity(), Unet(network), nn.Identity(), None, network.schedule)
    cond = repeated(torch.zeros(len(z), 1, 1), steps)
    with torch.no_grad():
        return ddim(model, z, cond, cond, guidance=1.0).originals[-1]


def noise(count: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 1, 1, 1, generator=generator, dtype=torch.float64)


def long_chain(schedule: Schedule, z, steps: int):
    """DDIM of the exact network over all times of the first teacher, written out."""
    times = [round(1000 * k / steps) - 1 for k in range(steps, 0, -1)]
    levels = [schedule.alphas[t].item() for t in times] + [1.0]
    for level, after in pairwise(levels):
        gain = DEVIATION**2 * level**0.5 / (DEVIATION**2 * level + 1 - level)
        x = MEAN + gain * (z - level**0.5 * MEAN)
        z = after**0.5 * x + ((1 - after) / (1 - level)) ** 0.5 * (z - level**0.5 * x)
    return z


@pytest.mark.parametrize("name", ["cosine", "stable-diffusion"])
def test_four_steps_end_where_the_ode_does(name):
    """What is left is the error of the first teacher's steps, which halves when they double."""
    schedule = replace(trailing(named(name)), final=1.0)
    network, z, top = exact(schedule), noise(40, 0), schedule.alpha(999)
    solution = MEAN + DEVIATION * (z - top**0.5 * MEAN) / (DEVIATION**2 * top + 1 - top) ** 0.5
    ends = {}
    for first in (256, 512):
        student = network
        for steps in halvings(first, 4, 1000):
            student = solved(schedule, student, steps)
        ends[first] = chain(student, z, 4)
    errors = {first: (end - solution).abs().mean() for first, end in ends.items()}
    assert 1.7 < errors[256] / errors[512] < 2.3  # times are whole numbers: not exactly 2
    torch.testing.assert_close(ends[512], long_chain(schedule, z, 512), rtol=1e-6, atol=1e-6)
    plain = (chain(network, z, 4) - solution).abs().mean()
    assert plain > 20 * errors[512]


def test_a_student_goes_exactly_as_far_as_its_teacher():
    """Two steps of the package's sampler for each of the student's, at every halving."""
    schedule = trailing(named("cosine"))
    network, z = exact(schedule), noise(20, 1)
    for steps in (20, 10, 5):  # 40, 20, 10 divide 1,000, so that the sampler meets the grid
        student = solved(schedule, network, steps)
        torch.testing.assert_close(
            chain(student, z, steps), chain(network, z, 2 * steps), rtol=1e-6, atol=1e-6
        )
        network = student


@given(x=st.floats(-3, 3), z=st.floats(-3, 3), level=LEVEL, more=st.floats(0.01, 1.0))
def test_the_target_leads_to_the_place_it_was_made_from(x, z, level, more):
    after = level + more * (1 - level)
    one = [torch.full((1, 1, 1, 1), v, dtype=torch.float64) for v in (x, z)]
    ends = [torch.tensor([v], dtype=torch.float64) for v in (level, after)]
    reached = stepped(*one, *ends)
    torch.testing.assert_close(target(one[1], reached, *ends), one[0], rtol=1e-6, atol=1e-6)


@given(level=LEVEL, x=st.floats(-2, 2), noise=st.floats(-2, 2))
def test_every_prediction_implies_the_same_clean_latents(level, x, noise):
    a, s = level**0.5, (1 - level) ** 0.5
    z = a * x + s * noise
    wide = lambda v: torch.full((1, 1, 1, 1), v, dtype=torch.float64)  # noqa: E731
    at = torch.tensor([level], dtype=torch.float64)
    for kind, said in (("epsilon", noise), ("v_prediction", a * noise - s * x), ("sample", x)):
        torch.testing.assert_close(clean(wide(said), wide(z), at, kind), wide(x))


def test_a_guided_teacher_is_two_guided_steps_written_out():
    """Oracle: Algorithm 2 in plain numbers, guidance on the noise as in cfg2022."""
    schedule = trailing(named("cosine"))
    grid = TimeGrid.make(schedule, 4)

    def network(z, time, cond):
        return (cond[:, :, :, None] + 0.3 * z) * (1 + time.view(-1, 1, 1, 1) / 1000)

    null, cond, g, z0 = 0.2, 1.1, 3.0, 0.5
    made = Teacher(network, "v_prediction", torch.full((1, 1, 1), null), g)
    ours = made.target(
        torch.full((1, 1, 1, 1), z0), torch.tensor([3]), grid, torch.full((1, 1, 1), cond)
    )
    levels = [schedule.alpha(t) for t in (749, 624, 499)]
    z = z0
    for k, time in enumerate((749, 624)):
        a, s = np.sqrt(levels[k]), np.sqrt(1 - levels[k])
        v = [(c + 0.3 * z) * (1 + time / 1000) for c in (null, cond)]
        noise = [a * one + s * z for one in v]
        noise = noise[0] + g * (noise[1] - noise[0])
        x = (z - s * noise) / a
        z = np.sqrt(levels[k + 1]) * x + np.sqrt(1 - levels[k + 1]) * noise
    (a, s), (a2, s2) = ((np.sqrt(v), np.sqrt(1 - v)) for v in (levels[0], levels[2]))
    wanted = (z - s2 / s * z0) / (a2 - s2 / s * a)
    assert ours.item() == pytest.approx(wanted, rel=1e-4)


def test_every_second_time_of_the_teacher_is_one_of_the_student():
    schedule = trailing(named("cosine"))
    long = schedule.times(8)
    assert long[::2] == schedule.times(4) == (999, 749, 499, 249)
    assert [schedule.before(t, 4) for t in schedule.times(4)] == [749, 499, 249, -1]
    grid = TimeGrid.make(schedule, 4)
    assert grid.times.tolist() == [-1, *reversed(long)] and grid.levels[0] == schedule.final
    assert grid.start(torch.tensor([4]))[0].tolist() == [999]


@pytest.mark.parametrize(("first", "last"), [(64, 3), (60, 4), (4, 4), (2048, 4), (48, 3)])
def test_chains_that_cannot_be_halved_are_refused(first, last):
    with pytest.raises(InputError, match=f"first is {first} and last is {last}"):
        halvings(first, last, 1000)


def test_the_loss_weighs_noise_where_there_is_more():
    """max(SNR, 1) of two levels, by hand."""
    level = torch.tensor([0.8, 0.2])
    batch = {
        "z": torch.zeros(2, 1, 1, 1), "time": torch.zeros(2), "cond": torch.zeros(2, 1, 1),
        "level": level, "target": torch.tensor([1.0, 2.0]).view(2, 1, 1, 1),
    }  # fmt: skip
    loss = distilling(lambda z, time, cond: torch.zeros_like(z), batch, 0, prediction="sample")
    assert loss["clean"].item() == pytest.approx((4 * 1 + 1 * 4) / 2)
