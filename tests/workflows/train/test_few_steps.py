"""Distilling a tiny generator: resumed to the bit, opened and used like any other, refusals.

Oracle: bit equality; the distance between chains. Networks are tiny with random weights and the
pictures are the shipped sample's, so nothing is said here about quality.
"""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from counterlens.errors import InputError
from counterlens.generators.diffusion import model as latent
from counterlens.generators.diffusion.optimise import draw
from counterlens.images import write_png
from counterlens.workflows._shared.generation.generate import check_steps, fitting, sampling
from counterlens.workflows.explain.run import explain
from counterlens.workflows.train.few_steps import train_few_steps
from diffusion_models import TINY as TINY_SHAPE
from diffusion_models import tiny_model

pytest.importorskip("diffusers")
pytestmark = pytest.mark.usefixtures("one_thread")
TINY = [
    "held_out=20", "side=16", "variants=1", "shares=[1.0]", "per_epoch=4", "samples=0", "first=8",
    "last=4", "updates=8", "batch=8", "warmup=2", "lr=0.0003", "average=0.5", "guidance=1.0",
]  # fmt: skip


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher") / "model"
    latent.save(
        tiny_model(replace(TINY_SHAPE, schedule="cosine")),
        folder,
        card={"name": "tiny", "classes": ["cat"]},
    )
    return folder


def train(teacher, folder, *changes, **more):
    return train_few_steps(
        ["sample:cifar10"], generator=str(teacher), changes=[*TINY, *changes], out=folder,
        device="cpu", quiet=True, cache=folder.parent / "cache", **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def distilled(teacher, tmp_path_factory):
    return train(teacher, tmp_path_factory.mktemp("few") / "run")


def unet(result):
    return load_file(result.folder / "model" / "unet" / "diffusion_pytorch_model.safetensors")


@pytest.mark.slow
def test_the_student_ends_nearer_to_its_teacher_than_fewer_steps_of_it(teacher, tmp_path):
    result = train(teacher, tmp_path / "run", "updates=40")
    rows = result.table("epochs_few")
    assert {row["chain"] for row in rows} == {4} and result.done
    last = rows[-1]
    assert last["loss.clean"] < rows[0]["loss.clean"]
    assert last["held_out.distance"] < 0.8 * last["held_out.undistilled"]


@pytest.mark.slow
def test_a_stopped_distillation_continues_to_the_same_weights(teacher, tmp_path):
    """Two halvings of eight updates; a call whose time is over stops after the next four of one."""
    two = ("last=2", "guidance=2.0")
    whole = unet(train(teacher, tmp_path / "whole", *two))
    calls, result = 1, train(teacher, tmp_path / "run", *two, max_minutes=0.0001)
    while not result.done:
        result = train(teacher, tmp_path / "run", *two, max_minutes=0.0001, resume=True)
        calls += 1
    assert calls == 3 and {row["chain"] for row in result.table("epochs_few")} == {4, 2}
    parts = unet(result)
    assert all(torch.equal(whole[key], parts[key]) for key in whole)


def test_it_is_a_generator_with_a_sampler_of_its_own(distilled, tmp_path):
    folder = distilled.folder / "model"
    model = latent.load(folder)
    assert model.sampler == (1.0, 4) and model.schedule.spacing == "trailing"
    card = json.loads((folder / "card.json").read_text())
    assert card["training"]["teacher"] == "tiny" and card["training"]["guidance"] == 1.0
    from diffusers import DDIMScheduler

    peer = DDIMScheduler.from_pretrained(folder, subfolder="scheduler")
    peer.set_timesteps(4)
    assert tuple(peer.timesteps.tolist()) == model.schedule.times(4)
    images = draw(model, ["a photograph of a cat"], torch.tensor([1]), guidance=1.0, steps=4)
    assert images.shape == (1, 3, 16, 16)


def test_the_commands_take_its_steps(distilled, tmp_path):
    model = latent.load(distilled.folder / "model")
    assert sampling(model, None, None, _usual()) == (1.0, 4)
    assert (fitting(_usual(), model).guidance, fitting(_usual(), model).steps) == (1.0, 4)
    check_steps(model, 4)
    with pytest.raises(InputError, match="distilled for chains of 4 steps and is asked for 20"):
        check_steps(model, 20)
    write_png(tmp_path / "a.png", 0.2 + 0.6 * torch.rand(3, 16, 16))
    common = {
        "generator": str(distilled.folder / "model"), "device": "cpu", "quiet": True,
        "out": tmp_path / "run",
    }  # fmt: skip
    one = ["zoo:cifar10-plain-small", [str(tmp_path / "a.png")]]
    with pytest.raises(InputError, match="DVCE walks the second half"):
        explain(*one, method="dvce", target="cat", **common)
    made = explain(*one, method="diffusion", target="near", updates=1, rounds=0, **common)
    settings = made.run.manifest["settings"]
    assert (settings["sampling_steps"], settings["guidance"]) == (4, 1.0)
    assert len(made.table("uvce")) >= 1


def _usual():
    from counterlens.generators.diffusion.optimise import COUNTERFACTUAL

    return COUNTERFACTUAL


def test_what_cannot_be_distilled_is_refused(teacher, distilled, tmp_path):
    for changes, match in (
        (["side=32"], "draws 16 pixels, the recipe is for 32"),
        (["first=6"], "first is 6 and last is 4"),
        (["guidance=0.5"], "guidance is 0.5"),
    ):
        with pytest.raises(InputError, match=match):
            train(teacher, tmp_path / "none", *changes)
    with pytest.raises(InputError, match="draws in 4 steps already"):
        train(distilled.folder / "model", tmp_path / "none")
    with pytest.raises(InputError, match="no data given"):
        train_few_steps([], generator=str(teacher), changes=TINY, quiet=True)
    assert not (tmp_path / "none").exists()
