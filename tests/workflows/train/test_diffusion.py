"""Training the small generator: a run that was stopped equals one that was not, files open.

Oracle: bit equality of the exported weights. Sizes are tiny, pictures are the shipped sample's;
nothing is said here about quality.
"""

import json

import pytest
import torch
from safetensors.torch import load_file

from counterlens.data.synthetic import captions
from counterlens.errors import InputError
from counterlens.generators.diffusion import model as latent
from counterlens.generators.diffusion.tiny import TinyShape, build
from counterlens.losses.diffusion import Autoencoder, velocity
from counterlens.workflows.train.captioned import kinds_of, noised
from counterlens.workflows.train.diffusion import train_diffusion
from counterlens.workflows.train.latents import latents, scaled, stored_latents

pytest.importorskip("diffusers")
TINY = [
    "held_out=20", "shape.vae=[8,8]", "shape.unet=[8,16]", "shape.heads=2", "shape.text=16",
    "shape.layers=1", "shape.merges=60", "variants=2", "per_epoch=4", "samples=10", "side=16",
    "vae.steps=8", "vae.batch=8", "vae.warmup=2", "unet.steps=8", "unet.batch=8", "unet.warmup=2",
    "shares=[1.0]",
]  # fmt: skip


pytestmark = pytest.mark.usefixtures("one_thread")


def train(folder, **more):
    return train_diffusion(
        ["sample:cifar10"], changes=TINY, out=folder, device="cpu", quiet=True,
        cache=folder.parent / "cache", **more,
    )  # fmt: skip


def weights(run):
    parts = {"unet": "diffusion_pytorch_model", "vae": "diffusion_pytorch_model"}
    parts["text_encoder"] = "model"
    return {
        f"{part}.{key}": value
        for part, name in parts.items()
        for key, value in load_file(run.folder / "model" / part / f"{name}.safetensors").items()
    }


@pytest.mark.slow
def test_a_stopped_run_continues_to_the_same_weights(tmp_path):
    whole = train(tmp_path / "whole", test="sample:cifar10", judge="zoo:cifar10-plain-small")
    assert whole.done
    assert {"generator.agreement", "generator.psnr", "generator.kid"} <= set(whole.numbers)
    assert (whole.folder / "images" / "samples.png").is_file()
    card = json.loads((whole.folder / "model" / "card.json").read_text())
    assert card["training"]["finished"] and card["classes"][0] == "airplane"
    opened = latent.load(whole.folder / "model")
    assert opened.side == 16 and opened.name == "cifar10-diffusion"

    stopped = train(tmp_path / "stopped", max_minutes=0.0)
    rounds = 1
    while not stopped.done:
        assert rounds < 12, "no progress"
        stopped = train(tmp_path / "stopped", resume=True, max_minutes=0.0)
        rounds += 1
    assert rounds > 2
    first, second = weights(whole), weights(stopped)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_settings_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(InputError, match="no data given"):
        train_diffusion([], out=tmp_path / "a")
    with pytest.raises(InputError, match="which no training has"):
        train_diffusion(["sample:cifar10"], changes=["unet.stepps=3"], out=tmp_path / "b")
    with pytest.raises(InputError, match="shares are"):
        train_diffusion(["sample:cifar10"] * 3, out=tmp_path / "c", quiet=True)


@pytest.mark.slow
def test_a_run_may_begin_with_the_weights_of_another(tmp_path):
    first = train(tmp_path / "first")
    still = ["vae.lr=0", "unet.lr=0", f"start={first.folder / 'model'}"]
    second = train_diffusion(
        ["sample:cifar10"], changes=[*TINY, *still], out=tmp_path / "second", device="cpu",
        quiet=True, cache=tmp_path / "cache", seed=1,
    )  # fmt: skip
    before, after = weights(first), weights(second)
    assert all(torch.equal(before[key], after[key]) for key in before)
    with pytest.raises(InputError, match="has other shapes than the settings"):
        train_diffusion(
            ["sample:cifar10"], changes=[*TINY, "shape.unet=[8,8]", *still], quiet=True,
            out=tmp_path / "third", device="cpu", cache=tmp_path / "cache",
        )  # fmt: skip


PHOTOS = [
    *TINY, "side=16", "stored=20", "views=3", "shape.vae=[8,8,8]", "vae.loss=sharp",
    "vae.critic_from=0.5", "unet.hold=0.5", "kinds=[cat=animal]",
]  # fmt: skip


def train_photographs(folder, **more):
    return train_diffusion(
        ["sample:cifar10"], recipe="photos-diffusion", changes=PHOTOS, out=folder, device="cpu",
        quiet=True, cache=folder.parent / "cache", **more,
    )  # fmt: skip


@pytest.mark.slow
def test_the_training_of_photographs_goes_on_where_it_stopped_and_opens_as_it_was(tmp_path):
    whole = train_photographs(tmp_path / "whole")
    stopped = train_photographs(tmp_path / "stopped", max_minutes=0.0)
    rounds = 1
    while not stopped.run.done:
        assert rounds < 12, "no progress"
        stopped = train_photographs(tmp_path / "stopped", resume=True, max_minutes=0.0)
        rounds += 1
    first, second = weights(whole), weights(stopped)
    assert all(torch.equal(first[key], second[key]) for key in first)
    opened = latent.load(whole.folder / "model")
    assert opened.schedule.prediction == "v_prediction" and opened.side == 16
    rows = whole.table("epochs_vae")
    assert "loss.0.fool" not in rows[0] and rows[-1]["loss.0.fool"] != 0


def test_views_are_crops_of_the_side_and_their_latents_are_in_half_precision(rng):
    net = Autoencoder(build(TinyShape(side=16, vae=(8, 8)), ["a cat"]).vae).eval()
    pixels = torch.randint(0, 256, (3, 3, 20, 20), generator=rng, dtype=torch.uint8)
    z = latents(net, pixels, crops=(4, 16))
    assert z.shape == (3, 4, 4, 8, 8) and z.dtype == torch.float16
    assert not torch.equal(z[:, 0], z[:, 1])
    assert torch.equal(z, latents(net, pixels, crops=(4, 16)))  # by the seed alone
    whole = latents(net, pixels)
    assert whole.shape == (3, 2, 4, 10, 10)


def test_normalised_channels_leave_reconstructions_and_the_posterior_as_they_were(rng):
    """Of x the pictures, of z the standard score, and KL to the same posterior in new units."""
    vae = build(TinyShape(side=16, vae=(8, 8)), ["a cat"], seed=1).vae
    vae = vae.double().requires_grad_(False)
    x = 2 * torch.rand(6, 3, 16, 16, generator=rng, dtype=torch.float64) - 1
    before = vae.encode(x).latent_dist
    pictures = vae.decode(before.mean).sample
    z = before.mean[:, None].clone()
    mean, std = z.mean((0, 1, 3, 4)), z.transpose(0, 2).flatten(1).std(1, correction=0)
    new, _, scale = scaled(vae, z, z[:, 0], each=True)
    after = vae.encode(x).latent_dist
    assert scale == 1.0 and vae.config.scaling_factor == 1.0
    tight = {"rtol": 1e-4, "atol": 1e-5}
    wanted = (before.mean - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)
    torch.testing.assert_close(after.mean, wanted, **tight)
    torch.testing.assert_close(new[:, 0].double(), wanted, rtol=1e-2, atol=2e-3)
    torch.testing.assert_close(after.std, before.std / std.view(-1, 1, 1), **tight)
    torch.testing.assert_close(vae.decode(after.mean).sample, pictures, **tight)


def test_latents_are_stored_for_the_weights_they_are_of(tmp_path):
    made = []

    def make():
        made.append(1)
        return torch.full((2, 3), float(len(made)))

    file, device = tmp_path / "latents.pt", torch.device("cpu")
    first = stored_latents(file, "a", make, device)
    assert torch.equal(stored_latents(file, "a", make, device), first) and made == [1]
    assert stored_latents(file, "b", make, device)[0, 0] == 2


def test_a_velocity_and_the_noisy_latents_give_back_noise_and_latents(rng):
    """The inverse that salimans2022 states: x₀ = α z − σ v, ε = σ z + α v."""
    clean, noise = torch.randn(2, 5, 4, 3, 3, generator=rng, dtype=torch.float64)
    alpha = torch.rand(5, generator=rng, dtype=torch.float64)
    z, v = noised(clean, noise, alpha), velocity(clean, noise, alpha)
    a, s = alpha.sqrt().view(-1, 1, 1, 1), (1 - alpha).sqrt().view(-1, 1, 1, 1)
    torch.testing.assert_close(a * z - s * v, clean)
    torch.testing.assert_close(s * z + a * v, noise)


def test_captions_say_what_a_breed_is_where_its_name_does_not():
    attributes = captions.measure(torch.zeros(200, 3, 8, 8, dtype=torch.uint8))
    rows = captions.captions(["beagle"] * 200, attributes, variants=4, kinds={"beagle": "dog"})
    assert {row[0] for row in rows} == {"a photograph of a beagle"}
    texts = [text for row in rows for text in row[1:]]
    share = sum("beagle, a dog" in text for text in texts) / len(texts)
    assert 0.4 < share < 0.6
    with pytest.raises(InputError, match="expected NAME=KIND"):
        kinds_of(["beagle"])


def test_an_unknown_recipe_or_schedule_is_refused(tmp_path):
    with pytest.raises(InputError, match="expected one of cifar10-diffusion, photos-diffusion"):
        train_diffusion(["sample:cifar10"], recipe="photo", out=tmp_path / "a")
    with pytest.raises(InputError, match="schedule is 'linear'"):
        train_diffusion(["sample:cifar10"], changes=["schedule=linear"], out=tmp_path / "b")
