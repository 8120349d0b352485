"""The plan of the photographs' models, end to end with tiny networks on the CPU, killed once.

Pictures are noise and networks tiny: nothing is said here about quality.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from counterlens.data import open_set
from counterlens.data.sources.packed import write_pack
from counterlens.errors import InputError

TOOLS = Path(__file__).parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
light_checkpoint, make_photos, parts, photo_sets = (
    importlib.import_module(name)
    for name in ("light_checkpoint", "make_photos", "parts", "photo_sets")
)

CLASSES = {
    "imagenette": ("tench", "church"),
    "imagewoof": ("beagle", "dingo"),
    "pets": ("Bengal cat", "pug dog"),
}
MODEL = (
    "held_out=4", "side=16", "stored=18", "views=2", "shape.vae=[4,4,4]", "shape.latents=2",
    "shape.unet=[4,8]", "shape.heads=2", "shape.text=8", "shape.layers=1", "shape.merges=30",
    "variants=2", "per_epoch=2",
)  # fmt: skip
CLASSIFIER = (
    "architecture={kind: resnet18, widths: [4, 4, 4, 4], stem: 2}", "size=16", "stored=18",
    "held_out=4", "batch=8", "judge.every=1", "judge.steps=1", "average=0.5",
)  # fmt: skip
CHANGES = {
    "autoencoder": (*MODEL, "vae.batch=4", "vae.average=0.5"),
    "unet": (*MODEL, "unet.batch=4", "unet.warmup=1"),
    "decoder": (*MODEL, "vae.batch=4", "vae.average=0.5"),
    "few": (
        "held_out=4",
        "side=16",
        "stored=18",
        "views=2",
        "variants=2",
        "per_epoch=2",
        "first=16",
        "batch=4",
        "warmup=1",
        "average=0.5",
    ),
    "plain": CLASSIFIER,
    "at": (*CLASSIFIER, "near.steps=1"),
    "ratio": (*CLASSIFIER, "near.steps=1", "far.steps=1", "out_batch=4"),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    rng = np.random.default_rng(0)
    sets = {f"{name}_{part}": (classes, each) for name, classes in CLASSES.items()
            for part, each in (("train", 8), ("test", 2))}  # fmt: skip
    for name, (classes, each) in {**sets, "out_train": (("chair", "lamp"), 10)}.items():
        labels = np.repeat(np.arange(len(classes)), each)
        pictures = [rng.integers(0, 256, (18, 18, 3), dtype=np.uint8) for _ in labels]
        write_pack(folder / f"photos_{name}.npz", pictures, labels, classes)
    return folder


@pytest.fixture(scope="module")
def data(source, tmp_path_factory):
    """The sets, by way of parts as they travel."""
    place = tmp_path_factory.mktemp("data")
    files = sorted(source.glob("*.npz"))
    parts.cut({f.name: f for f in files}, place / "parts", name="files", mib=0.02)
    parts.join(place / "parts", place / "source")
    assert all((place / "source" / f.name).read_bytes() == f.read_bytes() for f in files)
    photo_sets.make(place / "source", place)
    (place / "source" / "photos_out_train.npz").rename(place / "photos_out_train.npz")
    return place


def arguments(data, out, *more):
    changes = [
        t for stage, texts in CHANGES.items() for c in texts for t in ("--set", f"{stage}:{c}")
    ]
    counts = {"autoencoder": 8, "unet": 8, "decoder": 8, "plain": 10, "at": 10, "ratio": 10}
    steps = [f"{stage}={n}" for stage, n in {**counts, "few": 6}.items()]
    return ["train", "--data", str(data), "--out", str(out), "--device", "cpu", "--steps", *steps,
            *changes, *more]  # fmt: skip


def call(*words):
    given = make_photos.arguments().parse_args([str(word) for word in words])
    given.out.mkdir(parents=True, exist_ok=True)
    return make_photos.train_all(make_photos.job_of(given), given.only)


def weights(folder):
    from safetensors.torch import load_file

    files = sorted(folder.rglob("*.safetensors"))
    assert files
    return {f"{f.parent.name}.{k}": v for f in files for k, v in load_file(f).items()}


@pytest.mark.slow
def test_all_stages_on_several_machines_with_a_kill_between(data, tmp_path, monkeypatch):
    """A killed process goes on to the same weights; a second machine goes on from light parts."""
    monkeypatch.setattr(make_photos, "TRIAL", 8)
    pytest.importorskip("diffusers")
    whole = tmp_path / "whole"
    assert call(*arguments(data, whole)) == 0
    numbers = json.loads((whole / "numbers.json").read_text())
    assert all(numbers[stage]["done"] for stage in make_photos.SECONDS)
    assert "held_out.psnr" in numbers["autoencoder"] and "held_out.robust" in numbers["at"]
    before, after = (weights(whole / stage / "model") for stage in ("unet", "decoder"))
    learnt = {key for key in before if not torch.equal(before[key], after[key])}
    assert learnt and all(key.startswith(("vae.decoder", "vae.post_quant")) for key in learnt)
    drawn = open_set(f"pack:{whole}/samples/samples.npz")
    assert len(drawn) == 6 * make_photos.EACH and drawn.classes[0] == "tench"

    first = tmp_path / "first"
    first.mkdir()
    (first / "steps.json").write_text((whole / "steps.json").read_text())
    command = [sys.executable, str(TOOLS / "make_photos.py"), *arguments(data, first)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
    while not (first / "autoencoder" / "DONE").exists():
        assert process.poll() is None, process.stdout.read().decode()
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    while call(*arguments(data, first, "--minutes", 0.02, "--only", "unet")) != 0:
        pass  # each call stops soon; the next one goes on
    same, other = weights(whole / "unet" / "model"), weights(first / "unet" / "model")
    assert all(torch.equal(same[key], other[key]) for key in same)

    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, "--only", "few"], env=alone, **quiet)
    while not (first / "few" / "state" / "few-8" / "checkpoint.pt").exists():
        assert process.poll() is None, process.stdout.read().decode()
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    while call(*arguments(data, first, "--minutes", 0.02, "--only", "few")) != 0:
        pass
    same, other = weights(whole / "few" / "model"), weights(first / "few" / "model")
    learned = [key for key in same if key.startswith("unet.")]  # the decoders differ
    assert learned and all(torch.equal(same[key], other[key]) for key in learned)
    card = json.loads((first / "few" / "model" / "card.json").read_text())
    assert card["sampler"] == {"steps": 4, "guidance": 1.0}
    other = weights(first / "unet" / "model")

    second = tmp_path / "second"
    call(*arguments(data, first, "--minutes", 0.0005, "--only", "plain"))
    make_photos.keep(first, tmp_path / "parts", 0.05)
    assert max(f.stat().st_size for f in (tmp_path / "parts").glob("*.part*[0-9]")) <= 0.05 * 2**20
    make_photos.restore(second, tmp_path / "parts")
    moved = weights(second / "unet" / "model")
    assert all(torch.equal(other[key], moved[key]) for key in other)
    assert call(*arguments(data, second)) == 0
    left = json.loads((second / "numbers.json").read_text())
    assert left["plain"]["updates"] == numbers["plain"]["updates"]


def test_parts_come_back_as_they_were_and_damage_is_named(tmp_path):
    rng = np.random.default_rng(0)
    files = {}
    for name, size in (("a.bin", 70_000), ("b/c.bin", 1), ("d.bin", 0)):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.bytes(size))
        files[name] = path
    cut = parts.cut(files, tmp_path / "parts", name="x", mib=1 / 64)
    assert len(cut) > 3 and all(p.stat().st_size <= 2**14 for p in cut)
    assert sorted(parts.join(tmp_path / "parts", tmp_path / "out")) == sorted(files)
    for name, path in files.items():
        assert (tmp_path / "out" / name).read_bytes() == path.read_bytes()
    damaged = bytearray(cut[1].read_bytes())
    damaged[5] ^= 1
    cut[1].write_bytes(damaged)
    with pytest.raises(InputError, match=r"x\.part01 is damaged"):
        parts.join(tmp_path / "parts", tmp_path / "again")
    cut[1].unlink()
    with pytest.raises(InputError, match=r"lacks x\.part01 of"):
        parts.join(tmp_path / "parts", tmp_path / "again")


def test_a_light_checkpoint_holds_the_average_and_a_factored_second_moment(tmp_path):
    """Rank-one second moments come back exactly; the rest of them in their row and column means."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.Conv2d(5, 2, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(4, 3, 8, 8)).square().mean().backward()
        optimizer.step()
    mean = {k: v.detach() * 0.5 for k, v in net.state_dict().items()}
    progress = {"step": 3, "rows": [], "best_state": None, "best": 1.0}
    state = {"progress": progress, "nets": [net.state_dict()], "averages": [mean],
             "optimizers": [optimizer.state_dict()]}  # fmt: skip
    torch.save(state, tmp_path / "checkpoint.pt")
    light_checkpoint.lighten(tmp_path / "checkpoint.pt", tmp_path / "light.pt")
    light_checkpoint.rebuild(tmp_path / "light.pt", tmp_path / "again.pt")
    again = torch.load(tmp_path / "again.pt", weights_only=True)
    assert again["progress"]["step"] == 3
    for key, value in again["nets"][0].items():
        torch.testing.assert_close(value, mean[key], rtol=1e-3, atol=1e-6)
    other = torch.optim.AdamW(net.parameters(), lr=0.1)
    other.load_state_dict(again["optimizers"][0])
    for weight in net.parameters():
        now, then = (one.state[weight]["exp_avg_sq"] for one in (other, optimizer))
        torch.testing.assert_close(now.flatten(1).mean(1) if now.ndim > 1 else now,
                                   then.flatten(1).mean(1) if now.ndim > 1 else then)  # fmt: skip
        torch.testing.assert_close(now.mean(), then.mean())
        assert other.state[weight]["step"] == 3 and not other.state[weight]["exp_avg"].any()


def test_what_a_call_cannot_mean_is_refused(tmp_path):
    read = make_photos.arguments().parse_args
    common = ["train", "--data", str(tmp_path), "--out", str(tmp_path)]
    for words, message in (
        (["--seconds", "vae=3"], "got --seconds vae=3"),
        (["--steps", "unet=many"], "expected a number"),
        (["--set", "unet.steps=3"], "expected STAGE:KEY=VALUE"),
    ):
        with pytest.raises(InputError, match=message):
            make_photos.job_of(read([*common, *words]))
