"""Training the small generator: a run that was stopped equals one that was not, files open.

Oracle: bit equality of the exported weights. Sizes are tiny, pictures are the shipped sample's;
nothing is said here about quality.
"""

import json

import pytest
import torch
from safetensors.torch import load_file

from counterlens.errors import InputError
from counterlens.generators.diffusion import model as latent
from counterlens.workflows.train.diffusion import train_diffusion

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
    with pytest.raises(InputError, match="no data came"):
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
    with pytest.raises(InputError, match="has other shapes than asked for"):
        train_diffusion(
            ["sample:cifar10"], changes=[*TINY, "shape.unet=[8,8]", *still], quiet=True,
            out=tmp_path / "third", device="cpu", cache=tmp_path / "cache",
        )  # fmt: skip
