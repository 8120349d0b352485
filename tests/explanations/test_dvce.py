"""DVCE's parts against closed forms, and its step against diffusers.

Oracles: the variational inequality that defines a projection, and a fine grid of the plane for the
cone; DDPMScheduler and DDIMScheduler with η = 1 for the posterior; finite differences for the slope
of the crops; with no guidance and a Gaussian's exact denoiser, the variance in closed form.
All models are tiny and random.
"""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from counterlens.ball import row_seeds
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals.dvce import (
    DvceSettings,
    cone,
    dvce,
    posterior,
    rescaled,
    slope_of,
)
from counterlens.generators.diffusion.optimise import Term
from counterlens.generators.diffusion.schedule import STABLE_DIFFUSION, stable_diffusion
from counterlens.objectives import entry
from diffusion_models import tiny_model

diffusers = pytest.importorskip("diffusers")
pytestmark = pytest.mark.usefixtures("one_thread")

FEW = DvceSettings(steps=8, start=4, cuts=2)


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def test_the_cones_nearest_point_is_the_best_of_a_fine_grid_of_the_plane():
    axis = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    for turn in torch.arange(-180, 180, 7.0).tolist():
        angle = math.radians(turn)
        w = 2 * torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64)
        rays = torch.deg2rad(torch.linspace(-30, 30, 601, dtype=torch.float64))
        points = torch.stack([rays.cos(), rays.sin()], 1)[:, None] * torch.linspace(
            0, 3, 601, dtype=torch.float64
        ).view(1, -1, 1)
        best = (points - w).square().sum(-1).min().sqrt()
        ours = (cone(w, axis, 30) - w).norm()
        assert ours.item() == pytest.approx(best.item(), abs=6e-3)
        assert ours <= best + 1e-9


@pytest.mark.parametrize("degrees", [10.0, 30.0, 60.0])
def test_the_projection_obeys_the_inequality_that_defines_it(degrees, rng):
    w, v = torch.randn(2, 40, 9, generator=rng, dtype=torch.float64)
    v[:10] = w[:10] + 0.05 * v[:10]  # inside
    w[10:20] = -v[10:20] + 0.05 * w[10:20]  # opposite
    result = cone(w, v, degrees)

    def angle(a):
        return torch.rad2deg(torch.acos((torch.cosine_similarity(a, v)).clamp(-1, 1)))

    some = result.norm(dim=1) > 1e-9
    assert (angle(result)[some] <= degrees + 1e-6).all()
    torch.testing.assert_close(result[:10], w[:10])
    assert (result[10:20] == 0).all()
    for _ in range(50):  # ⟨w − p, q⟩ ≤ 0 for every q of the cone
        q = v / v.norm(dim=1, keepdim=True) + math.tan(math.radians(degrees)) * _across(v, rng)
        assert (((w - result) * q).sum(1) <= 1e-9).all()
    assert (((w - result) * result).sum(1).abs() < 1e-9).all()


def _across(v, rng):
    """Random directions at a right angle to v, at most one long."""
    u = torch.randn(v.shape, generator=rng, dtype=v.dtype)
    u = u - (u * v).sum(1, keepdim=True) / v.square().sum(1, keepdim=True) * v
    return u / u.norm(dim=1, keepdim=True)


def test_a_gradient_takes_the_length_of_the_noise_and_keeps_its_direction(rng):
    g, noise = torch.randn(2, 5, 4, 3, 3, generator=rng, dtype=torch.float64)
    g[1] *= 1e-12
    g[2] = 0
    result = rescaled(g, noise)
    lengths = noise.flatten(1).norm(dim=1)
    lengths[2] = 0
    torch.testing.assert_close(result.flatten(1).norm(dim=1), lengths)
    cosine = torch.cosine_similarity(result.flatten(1), g.flatten(1), eps=1e-30)
    torch.testing.assert_close(cosine[[0, 1, 3, 4]], torch.ones(4, dtype=torch.float64))


def test_the_step_is_that_of_diffusers_ddim_with_all_noise_and_of_its_ddpm(rng):
    schedule, steps = stable_diffusion(), 200
    ddim = diffusers.DDIMScheduler.from_config(STABLE_DIFFUSION)
    ddpm = diffusers.DDPMScheduler.from_config({**STABLE_DIFFUSION, "variance_type": "fixed_small"})
    ddim.set_timesteps(steps)
    ddpm.set_timesteps(steps)
    z, predicted, drawn = torch.randn(3, 2, 4, 8, 8, generator=rng)
    for time in (996, 496, 251, 6):
        alpha, after = schedule.alpha(time), schedule.alpha(schedule.before(time, steps))
        mean, sigma = posterior(z, predicted, alpha, after)
        theirs = ddim.step(predicted, time, z, eta=1.0, variance_noise=drawn).prev_sample
        torch.testing.assert_close(mean + sigma * drawn, theirs, rtol=1e-4, atol=1e-4)
        torch.manual_seed(3)
        other = ddpm.step(predicted, time, z).prev_sample
        torch.manual_seed(3)
        same = torch.randn(z.shape)
        torch.testing.assert_close(mean + sigma * same, other, rtol=1e-4, atol=1e-4)


def test_the_slope_of_the_crops_is_that_of_finite_differences(rng):
    weight = torch.randn(3 * 64, 4, generator=rng, dtype=torch.float64)
    term = Term(entry(lambda x: (x.flatten(1) @ weight).log_softmax(1), torch.tensor([2, 0])), 8)
    x = torch.rand(2, 3, 8, 8, generator=rng, dtype=torch.float64)
    seeds = row_seeds(2, 0)
    for settings in (DvceSettings(cuts=3), DvceSettings(cuts=0)):
        slope = slope_of(term, x, settings, seeds)
        way = torch.randn(x.shape, generator=rng, dtype=x.dtype)
        from counterlens.generators.diffusion.cutouts import cutouts

        def value(image, settings=settings):
            if not settings.cuts:
                return term.objective(image)
            crops = cutouts(image, 8, count=3, sigma=settings.sigma, seeds=seeds)
            rows = [(crops[i].flatten(1) @ weight).log_softmax(1)[:, k].mean()
                    for i, k in enumerate((2, 0))]  # fmt: skip
            return torch.stack(rows)

        step = 1e-6
        rise = (value(x + step * way) - value(x - step * way)) / (2 * step)
        torch.testing.assert_close((slope * way).flatten(1).sum(1), rise, rtol=1e-6, atol=1e-8)


def test_without_guidance_gaussian_data_ends_with_the_variance_in_closed_form():
    """For data N(0, s²) every step is linear, so the variance at the end is known."""
    schedule, s2 = stable_diffusion(), 0.5
    base = tiny_model()

    class Gaussian:
        side, device = 4, torch.device("cpu")

        def embed(self, prompts):
            return torch.zeros(len(prompts), 1, 1)

        def encode(self, x):
            return x

        def decode(self, z):
            return z

        def noise(self, z, time, cond):
            alpha = schedule.alpha(time)
            return math.sqrt(1 - alpha) / (alpha * s2 + 1 - alpha) * z

    fake = Gaussian()
    fake.schedule = base.schedule
    x = math.sqrt(s2) * torch.randn(150, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    term = Term(entry(lambda images: images.flatten(1), torch.zeros(150, dtype=torch.long)), 4)
    unguided = DvceSettings(steps=100, start=50, towards=0.0, near=0.0, cuts=0)
    sampled = dvce(fake, x, term, settings=unguided, seeds=row_seeds(150, 0))
    assert sampled.var().item() == pytest.approx(_variance(schedule, s2, 100, 50), rel=0.06)
    assert _variance(schedule, s2, 1000, 500) == pytest.approx(s2, rel=0.02)
    pulled = dvce(fake, x, term, settings=replace(unguided, towards=0.1), seeds=row_seeds(150, 0))
    near = dvce(fake, x, term, settings=replace(unguided, near=0.15), seeds=row_seeds(150, 0))
    assert (pulled[:, 0, 0, 0] - sampled[:, 0, 0, 0]).min() > 0  # the score is the first pixel
    assert (near - x).abs().mean() < 0.97 * (sampled - x).abs().mean()


def _variance(schedule, s2, steps, start):
    """z' = √ᾱ' x̂₀ + √(1 − ᾱ' − σ²) ε̂ + σ n with the best x̂₀ and ε̂ of Gaussian data."""
    times = schedule.times(steps)[steps - start :]
    alpha = schedule.alpha(times[0])
    variance = alpha * s2 + 1 - alpha
    for i, time in enumerate(times):
        alpha, after = schedule.alpha(time), schedule.alpha(schedule.before(time, steps))
        sigma2 = (1 - after) / (1 - alpha) * (1 - alpha / after)
        whole = alpha * s2 + 1 - alpha
        clean, noise = math.sqrt(alpha) * s2 / whole, math.sqrt(1 - alpha) / whole
        slope = math.sqrt(after) * clean + math.sqrt(1 - after - sigma2) * noise
        variance = slope**2 * variance + (sigma2 if i < len(times) - 1 else 0)
    return variance


def test_rows_depend_on_their_seed_alone_and_images_stay_in_the_box(model, rng):
    x = torch.rand(3, 3, 16, 16, generator=rng)
    weight = torch.randn(3 * 64, 4, generator=rng)

    def term(column):
        return Term(
            entry(lambda im: (im.flatten(1) @ weight).log_softmax(1), torch.tensor(column)), 8
        )

    seen = []
    seeds = row_seeds(3, 5)
    whole = dvce(
        model, x, term([0, 1, 2]), helper=term([0, 1, 2]), settings=FEW, seeds=seeds,
        callback=lambda i, images: seen.append(images.shape),
    )  # fmt: skip
    one = dvce(model, x[1:2], term([1]), helper=term([1]), settings=FEW, seeds=seeds[1:2])
    torch.testing.assert_close(whole[1:2], one, rtol=1e-3, atol=1e-3)
    assert whole.min() >= 0 and whole.max() <= 1 and len(seen) == 4
    assert not torch.equal(whole, dvce(model, x, term([0, 1, 2]), settings=FEW, seeds=seeds))


def test_images_of_another_size_and_odd_settings_are_refused(model):
    term = Term(entry(lambda x: x.flatten(1), torch.tensor([0])), 16)
    with pytest.raises(InputError, match="expected 16 × 16"):
        dvce(model, torch.rand(1, 3, 8, 8), term, seeds=row_seeds(1, 0))
    with pytest.raises(InputError, match="start is 300"):
        DvceSettings(start=300)
    with pytest.raises(InputError, match="between 0 and 90"):
        DvceSettings(angle=90.0)


def test_the_chain_starts_in_the_middle_and_walks_down_to_the_first_step(model, rng):
    times = []
    spy = SimpleNamespace(
        side=16, device=model.device, schedule=model.schedule, embed=model.embed,
        encode=lambda x: x, decode=lambda z: z.clamp(0, 1),
        noise=lambda z, time, cond: times.append(time) or 0.1 * z,
    )  # fmt: skip
    term = Term(entry(lambda x: x.flatten(1), torch.tensor([0])), 16)
    x = torch.rand(1, 3, 16, 16, generator=rng)
    dvce(spy, x, term, settings=DvceSettings(cuts=0), seeds=row_seeds(1, 0))
    assert len(times) == 100 and times[0] == 496 and times[-1] == 1
