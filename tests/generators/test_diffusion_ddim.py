"""The chain against diffusers' own scheduler and pipeline, and its gradient against itself.

Oracles: DDIMScheduler's times and steps, StableDiffusionPipeline on the saved folder, finite
differences, and a Gaussian whose chain is known in closed form. All models are tiny and random.
"""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from counterlens.ball import row_seeds
from counterlens.errors import InputError
from counterlens.generators.diffusion import model as latent
from counterlens.generators.diffusion.ddim import (
    ddim,
    guided,
    guided_noise,
    original,
    repeated,
    step,
)
from counterlens.generators.diffusion.optimise import begin
from counterlens.generators.diffusion.schedule import (
    COSINE,
    STABLE_DIFFUSION,
    from_config,
    named,
    stable_diffusion,
)
from diffusion_models import tiny_model

diffusers = pytest.importorskip("diffusers")


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("generator") / "tiny"
    latent.save(model, folder, card={"name": "tiny random"})
    return folder


@pytest.mark.parametrize("spacing", ["leading", "trailing", "linspace"])
@pytest.mark.parametrize("steps", [1, 4, 20, 25, 50])
def test_times_are_those_of_diffusers(spacing, steps):
    config = {**STABLE_DIFFUSION, "timestep_spacing": spacing}
    peer = diffusers.DDIMScheduler.from_config(config)
    peer.set_timesteps(steps)
    assert list(from_config(config).times(steps)) == peer.timesteps.tolist()


def test_the_cosine_schedule_and_its_steps_are_those_of_diffusers(rng, model):
    peer = diffusers.DDIMScheduler.from_config(COSINE)
    schedule = named("cosine")
    torch.testing.assert_close(schedule.alphas, peer.alphas_cumprod, rtol=1e-4, atol=1e-9)
    peer.set_timesteps(25)
    assert list(schedule.times(25)) == peer.timesteps.tolist()
    z, velocity = torch.randn(2, 1, 4, 8, 8, generator=rng)
    ours = replace(model, unet=_Says(velocity), schedule=schedule)
    for time in schedule.times(25):
        noise = ours.noise(z, time, torch.zeros(1, 1, 16))
        alpha, after = schedule.alpha(time), schedule.alpha(schedule.before(time, 25))
        theirs = peer.step(velocity, time, z).prev_sample
        torch.testing.assert_close(step(z, noise, alpha, after), theirs, rtol=1e-3, atol=1e-3)


def test_a_model_with_the_cosine_schedule_opens_with_it(model, tmp_path):
    latent.save(replace(model, schedule=named("cosine")), tmp_path / "cosine", card={})
    opened = latent.load(tmp_path / "cosine").schedule
    assert opened.prediction == "v_prediction" and opened.final == 1
    torch.testing.assert_close(opened.alphas, named("cosine").alphas, rtol=0, atol=0)
    with pytest.raises(InputError, match="expected one of stable-diffusion, cosine"):
        named("linear")


def test_the_papers_chain_starts_at_951_and_ends_at_1():
    assert stable_diffusion().times(20)[0] == 951
    assert stable_diffusion().times(20)[-1] == 1
    assert stable_diffusion().times(25)[0] == 961
    assert stable_diffusion().final == pytest.approx(0.99915, abs=1e-5)


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
@pytest.mark.parametrize("final", [True, False])
def test_every_step_equals_that_of_diffusers(prediction, final, rng, model):
    config = {**STABLE_DIFFUSION, "prediction_type": prediction, "set_alpha_to_one": final}
    peer = diffusers.DDIMScheduler.from_config(config)
    peer.set_timesteps(5)
    schedule = from_config(config)
    z = torch.randn(2, 4, 8, 8, generator=rng)
    said = torch.randn(2, 4, 8, 8, generator=rng)
    unet = _Says(said)
    ours = replace(model, unet=unet, schedule=schedule)
    for time in schedule.times(5):
        noise = ours.noise(z, time, torch.zeros(2, 1, 16))
        alpha, after = schedule.alpha(time), schedule.alpha(schedule.before(time, 5))
        theirs = peer.step(said, time, z)
        torch.testing.assert_close(step(z, noise, alpha, after), theirs.prev_sample)
        torch.testing.assert_close(
            original(z, noise, alpha), theirs.pred_original_sample, rtol=1e-4, atol=1e-4
        )


class _Says(torch.nn.Module):
    """A network that always says the same."""

    def __init__(self, said):
        super().__init__()
        self.said = torch.nn.Parameter(said, requires_grad=False)

    def forward(self, z, times, encoder_hidden_states):
        return SimpleNamespace(sample=self.said)


def test_the_papers_guidance_is_ours_minus_one(rng):
    null, cond = torch.randn(2, 1, 4, 3, 3, generator=rng, dtype=torch.float64)
    w = 2.0
    torch.testing.assert_close(
        guided(null, cond, w + 1), cond + w * (cond - null), rtol=0, atol=1e-12
    )
    torch.testing.assert_close(guided(null, cond, 1.0), cond)


def test_a_whole_chain_equals_the_pipeline_of_diffusers(folder):
    ours = latent.load(folder)
    pipeline = diffusers.StableDiffusionPipeline.from_pretrained(folder).to(torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    prompts = ["a photograph of a cat", "a red potter's wheel"]
    given = begin(ours, prompts, row_seeds(2, 0), steps=6)
    with torch.no_grad():
        mine = ddim(ours, given.z, given.cond, given.null, guidance=3.0).z
    theirs = pipeline(
        prompts, latents=given.z, num_inference_steps=6, guidance_scale=3.0, output_type="latent"
    ).images
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_a_gaussian_is_carried_to_its_known_end():
    """For data N(0, s²) the best noise prediction is linear, and so is every step."""
    schedule, s2 = stable_diffusion(), 0.25

    class Gaussian:
        def noise(self, z, time, cond):
            alpha = self.schedule.alpha(time)
            return math.sqrt(1 - alpha) / (alpha * s2 + 1 - alpha) * z

    Gaussian.schedule = schedule
    z = torch.randn(3, 1, 2, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    texts = torch.zeros(3, 500, 1, 1, dtype=torch.float64)
    end = ddim(Gaussian(), z, texts, texts, guidance=3.0).z
    start, last = schedule.alpha(schedule.times(500)[0]), schedule.final
    exact = z * math.sqrt((last * s2 + 1 - last) / (start * s2 + 1 - start))
    torch.testing.assert_close(end, exact, rtol=5e-3, atol=5e-3)


def test_gradients_with_and_without_checkpointing_are_equal(model, rng):
    given = begin(model, ["a cat", "a bridge"], row_seeds(2, 3), steps=4)
    weight = torch.randn(2, 4, 8, 8, generator=rng)

    def gradients(stored):
        leaves = [t.clone().requires_grad_() for t in (given.z, given.cond, given.null)]
        chain = ddim(model, *leaves, guidance=3.0, last=2, stored=stored)
        total = sum((weight * clean).sum() for clean in chain.originals)
        return torch.autograd.grad(total, leaves)

    plain = gradients(None)
    for stored in (0, 1, 3, 4):
        for a, b in zip(plain, gradients(stored), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_every_condition_and_every_null_text_gets_a_gradient(model):
    given = begin(model, ["a cat"], row_seeds(1, 3), steps=5)
    leaves = [t.clone().requires_grad_() for t in (given.z, given.cond, given.null)]
    chain = ddim(model, *leaves, guidance=3.0, stored=0)
    z, cond, null = torch.autograd.grad(chain.originals[-1].square().sum(), leaves)
    assert z.abs().sum() > 0
    assert (cond.abs().sum((0, 2, 3)) > 0).all()
    assert (null.abs().sum((0, 2, 3)) > 0).all()


def test_the_gradient_of_the_chain_is_its_slope(model):
    doubled = tiny_model()
    for net in (doubled.vae, doubled.unet, doubled.text):
        net.double()
    given = begin(model, ["a cat"], row_seeds(1, 3), steps=3)
    cond, null = given.cond.double(), given.null.double()

    def total(z):
        return ddim(doubled, z, cond, null, guidance=3.0, stored=1).originals[-1].pow(2).sum()

    z = given.z.double().requires_grad_()
    (grad,) = torch.autograd.grad(total(z), z)
    way = torch.randn(z.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    h = 1e-5
    with torch.no_grad():
        slope = (total(z + h * way) - total(z - h * way)) / (2 * h)
    assert (grad * way).sum().item() == pytest.approx(slope.item(), rel=1e-5)


def test_a_step_forth_and_back_is_nothing(rng):
    z, noise = torch.randn(2, 1, 4, 4, 4, generator=rng, dtype=torch.float64)
    there = step(z, noise, 0.9, 0.3)
    torch.testing.assert_close(step(there, noise, 0.3, 0.9), z)


def test_guidance_one_asks_once(model):
    calls = []
    given = begin(model, ["a cat"], row_seeds(1, 3), steps=2)
    hook = model.unet.register_forward_hook(lambda *a: calls.append(len(a[1][0])))
    try:
        guided_noise(model, given.z, 1, given.cond[:, 0], given.null[:, 0], 1.0)
        guided_noise(model, given.z, 1, given.cond[:, 0], given.null[:, 0], 3.0)
    finally:
        hook.remove()
    assert calls == [1, 2]


def test_what_does_not_fit_is_refused(model, tmp_path):
    given = begin(model, ["a cat"], row_seeds(1, 3), steps=2)
    with pytest.raises(InputError, match=r"guidance is 0\.5"):
        ddim(model, given.z, given.cond, given.null, guidance=0.5)
    with pytest.raises(InputError, match="null texts have the shape"):
        ddim(model, given.z, given.cond, repeated(given.null[:, 0], 3))
    with pytest.raises(InputError, match=r"1 … 1000"):
        stable_diffusion().times(0)
    with pytest.raises(InputError, match="beta_schedule is 'sigmoid'"):
        from_config({"beta_schedule": "sigmoid"})
    with pytest.raises(InputError, match=r"no model_index\.json"):
        latent.load(tmp_path)
    with pytest.raises(InputError, match="expected a diffusers folder or a hub id"):
        latent.load(tmp_path / "nothing here")


def test_encoding_takes_the_mean_and_decoding_stays_in_the_box(model, rng):
    x = torch.rand(2, 3, 16, 16, generator=rng)
    assert torch.equal(model.encode(x), model.encode(x))
    far = model.decode(100 * torch.randn(2, 4, 8, 8, generator=rng))
    assert far.min() == 0 and far.max() == 1


def test_a_saved_folder_opens_as_it_was(folder, model):
    opened = latent.load(folder)
    assert opened.name == "tiny random" and opened.side == 16 and opened.factor == 2
    prompts = ["a dark photograph of a steel arch bridge", "wholly new wörds", ""]
    torch.testing.assert_close(opened.embed(prompts), model.embed(prompts), rtol=0, atol=0.01)
    assert not any(p.requires_grad for p in opened.unet.parameters())
