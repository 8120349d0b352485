"""The training workflow end to end on made-up pictures, and the inputs it must refuse.

Oracles: a run cut into pieces against one that ran through (equal bytes), two processes against
one with the doubled batch, the settings of the papers as their text states them.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from counterlens.data import write_pack
from counterlens.errors import InputError, RunExists, TrainingFailed
from counterlens.models import load
from counterlens.models.nets import resnets as nets
from counterlens.workflows.train import recipes
from counterlens.workflows.train.datasets import Batches, Sets, hold_out
from counterlens.workflows.train.plan import UpdateCost, attack, attacks
from counterlens.workflows.train.run import main, train

TINY = """
about: a test
loss: ratio
architecture: {kind: resnet18, widths: [4, 4, 4, 4]}
near: {norm: l2, radius: 0.25, steps: 1, step_size: 0.1}
far: {norm: l2, radius: 1.0, steps: [1, 2], step_size: 0.2}
size: 8
batch: 10
epochs: 2
held_out: 6
lr: 0.1
schedule: linear
average: 0.9
augment: crop-flip
judge: {every: 1, steps: 1, probe_every: 2}
"""


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bright and dark pictures as two classes, noise as the outside."""
    folder = tmp_path_factory.mktemp("packs")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 46)
    pictures = [rng.integers(0, 120, (8, 8, 3)).astype(np.uint8) + 120 * int(k) for k in labels]
    write_pack(folder / "in.npz", pictures, labels.tolist(), ["dark", "bright"])
    noise = [rng.integers(0, 256, (8, 8, 3), dtype=np.uint8) for _ in range(30)]
    write_pack(folder / "out.npz", noise, [-1] * 30, [])
    (folder / "tiny.yaml").write_text(TINY, encoding="utf-8")
    return folder


def run(packs: Path, out: Path, **extra):
    settings = {"out_data": f"pack:{packs / 'out.npz'}", "device": "cpu", "quiet": True, **extra}
    return train(
        str(packs / "tiny.yaml"), f"pack:{packs / 'in.npz'}", out=out, cache=out.parent, **settings
    )


@pytest.fixture(scope="module")
def whole(packs: Path, tmp_path_factory: pytest.TempPathFactory):
    return run(packs, tmp_path_factory.mktemp("runs") / "whole")


def test_a_run_holds_a_loadable_model_history_numbers_and_a_report(whole):
    assert whole.done
    classifier = load(str(whole.folder / "model"), device="cpu")
    assert classifier.classes == ("dark", "bright") and classifier.preprocess.size == (8, 8)
    assert classifier.card["recipe"]["near"]["radius"] == 0.25
    assert classifier.card["data"]["held_out"] == {"n": 6, "rule": "hash"}
    rows = whole.table("epochs")
    assert [row["epoch"] for row in rows] == [1, 2]
    assert {"loss.in", "loss.out", "held_out.near", "held_out.far_confidence"} <= rows[0].keys()
    assert "probe.near" in rows[1] and "probe.near" not in rows[0]
    number = whole.numbers["held_out.clean"]
    assert number.value == rows[-1]["held_out.clean"] and number.n == 6
    assert (whole.folder / "report.html").exists()


def test_a_run_in_pieces_gives_the_same_bytes(packs, whole, tmp_path):
    for _ in range(20):
        made = run(packs, tmp_path / "pieces", max_minutes=0.0, resume=True)
        if made.done:
            break
        assert (made.folder / "model" / "card.json").exists()  # usable so far
    name = "model/model.safetensors"
    assert made.done
    assert (made.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def test_a_finished_run_is_not_overwritten(packs, whole):
    with pytest.raises(RunExists, match="holds a finished run"):
        run(packs, whole.folder, resume=True)


def test_other_settings_do_not_continue_a_run(packs, tmp_path):
    run(packs, tmp_path / "r", max_minutes=0.0)
    with pytest.raises(RunExists, match="other settings"):
        run(packs, tmp_path / "r", resume=True, changes=["lr=0.3"])


def test_streamed_pictures_are_the_decoded_ones(packs, tmp_path):
    settings = recipes.load(str(packs / "tiny.yaml"))
    specs = (f"pack:{packs / 'in.npz'}", f"pack:{packs / 'out.npz'}", tmp_path)
    held = Sets.open(settings, *specs)
    streamed = Sets.open(replace(settings, stream=True), *specs)
    assert isinstance(held.x, torch.Tensor) and not isinstance(streamed.x, torch.Tensor)
    settings = replace(settings, augment="none")
    made = [
        Batches(sets, replace(settings, stream=stream), seed=3, generator=torch.Generator())
        for sets, stream in ((held, False), (streamed, True))
    ]
    for step in (0, 1, 5, 6):  # 5 is asked out of turn
        first, second = (batches(step) for batches in made)
        assert first.keys() == second.keys() == {"x", "y", "out"}
        assert all(torch.equal(first[key], second[key]) for key in first)


def test_batches_are_shuffled_passes_over_the_set_and_split_between_processes(packs, tmp_path):
    settings = recipes.load(str(packs / "tiny.yaml"))
    sets = Sets.open(settings, f"pack:{packs / 'in.npz'}", None, tmp_path)
    alone = Batches(sets, settings, seed=0, generator=torch.Generator())
    halves = [
        Batches(sets, settings, seed=0, generator=torch.Generator(), share=(i, 2)) for i in (0, 1)
    ]
    passed = []
    for step in range(8):
        rows = alone.rows("in", step)
        assert torch.equal(rows, torch.cat([half.rows("in", step) for half in halves]))
        passed.append(rows)
    first, second = torch.cat(passed[:4]), torch.cat(passed[4:])
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(40))
    assert not torch.equal(first, second)


def test_held_out_pictures_depend_on_their_ids_alone(packs):
    from counterlens.data import open_set, subset

    images = open_set(f"pack:{packs / 'in.npz'}")
    _, held = hold_out(images, 6)
    order = torch.randperm(46, generator=torch.Generator().manual_seed(1)).numpy()
    shuffled = subset(images, order)
    _, other = hold_out(shuffled, 6)
    assert {images.ids[i] for i in held} == {shuffled.ids[i] for i in other}
    kept, last = hold_out(images, 6, "last")
    assert last.tolist() == list(range(40, 46)) and len(kept) == 40


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"out_data": None}, r"ratio loss needs out-distribution images.*out_data=SPEC"),
        ({"changes": ["loss=mixup"]}, r"loss is 'mixup', expected one of plain"),
        ({"changes": ["learning_rate=1"]}, r"sets 'learning_rate', which no training has"),
        ({"changes": ["near.radus=1"]}, r"sets 'radus'.*Did you mean radius"),
        ({"changes": ["lr"]}, r"changes has 'lr', expected KEY=VALUE"),
        ({"changes": ["near=3"]}, r"sets near to 3, expected near.KEY=VALUE"),
        ({"changes": ["augment=blur"]}, r"augment is 'blur'"),
        ({"changes": ["batch=41"]}, r"batch is 41, more than the 40 images"),
        ({"changes": ["out_batch=28"]}, r"out_batch is 28, more than the 27 images"),
        ({"changes": ["held_out=46"]}, r"held_out is 46, expected 2 … 45"),
        ({"changes": ["held_out=40"]}, r"has 30 images, expected 40 or more"),
        ({"changes": ["near.radius=-1"]}, r"radius is -1.0, expected a finite number"),
        ({"changes": ["schedule=sine"]}, r"schedule is 'sine'"),
        ({"changes": ["epochs=0"]}, r"epochs is 0, expected more than 0"),
    ],
    ids=lambda v: str(v)[:50],
)
def test_settings_that_do_not_fit_are_refused(packs, tmp_path, extra, words):
    with pytest.raises(InputError, match=words):
        run(packs, tmp_path / "r", **extra)


def test_pictures_without_classes_are_refused_as_training_data(packs, tmp_path):
    with pytest.raises(InputError, match="0 classes, expected 2 or more"):
        train(
            str(packs / "tiny.yaml"),
            f"pack:{packs / 'out.npz'}",
            out_data=f"pack:{packs / 'out.npz'}",
            out=tmp_path / "r",
            device="cpu",
            quiet=True,
        )


def test_a_learning_rate_without_measure_fails_by_name(packs, tmp_path):
    with pytest.raises(TrainingFailed, match=r"loss term '(in|out)' is (nan|inf) at update \d+"):
        run(packs, tmp_path / "r", changes=["lr=1e30", "warmup=0"])


def test_an_unknown_recipe_names_its_neighbours(packs, capsys):
    with pytest.raises(InputError, match=r"no recipe 'cifar10-ratio-0.35'.*cifar10-ratio-0"):
        recipes.load("cifar10-ratio-0.35")
    assert main(["cifar10-ratio-0.25"]) == 2
    assert "error: train needs a recipe and --data" in capsys.readouterr().err


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_can_be_built(name):
    settings = recipes.load(name)
    assert settings.about and settings.name == name
    with torch.device("meta"):
        nets.build(settings.architecture, 10)
    steps = 1000
    assert UpdateCost(1, settings, attacks(settings, steps))(steps - 1) > 0
    if name.startswith("cifar10-"):
        assert settings.held_out_rule == "last"  # the shipped calibration sample


def test_the_paper_setting_is_the_papers():
    ratio = recipes.load("cifar10-ratio-0.25-paper")
    assert (ratio.architecture["kind"], ratio.batch, ratio.epochs) == (
        "resnet50",
        128,
        220,
    )
    far = attack(ratio.far, 220, ratio.drops)
    assert [far.steps(e) for e in (0, 99, 100, 149, 150, 199, 200)] == [20, 20, 25, 25, 30, 30, 35]
    assert far.ball.radius == 1.0 and far.step_size == 0.1
    assert recipes.load("rimagenet-ratio-3.5-paper").far.radius == 7.0
    assert recipes.load("imagenet200-pgd-paper").near.radius == pytest.approx(8 / 255)


def test_work_is_counted_as_on_paper():
    settings = recipes.load("cifar10-ratio-0.25", ["near.steps=7", "far.steps=10"])
    both = attacks(settings, 10)
    assert UpdateCost(1, settings, both)(0) == 512 * (2 * 7 + 1) + 512 * (2 * 10 + 1) + 3 * 1024
    plain = recipes.load("cifar10-plain")
    assert UpdateCost(1, plain, both)(0) == 3 * 512


def command(packs: Path, out: Path, *extra: str) -> list[str]:
    return [
        "-m", "counterlens.workflows.train.run", str(packs / "tiny.yaml"),
        "--data", f"pack:{packs / 'in.npz'}", "--out-data", f"pack:{packs / 'out.npz'}",
        "--device", "cpu", "--out", str(out), "--cache", str(out.parent), *extra,
    ]  # fmt: skip


@pytest.mark.slow
def test_a_process_killed_in_the_middle_of_an_epoch_continues_to_the_same_bytes(packs, tmp_path):
    settings = ["--set", "epochs=40", "--set", "judge.every=40", "--set", "checkpoint_minutes=0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(
        [sys.executable, *command(packs, tmp_path / "cut", *settings)], env=environment
    )
    state = tmp_path / "cut" / "state" / "checkpoint.pt"
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and child.poll() is None and not state.exists():
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    reached = torch.load(state, weights_only=True)["progress"]["step"]
    assert 0 < reached < 160
    subprocess.run(
        [sys.executable, *command(packs, tmp_path / "cut", *settings, "--resume")],
        env=environment, check=True,
    )  # fmt: skip
    subprocess.run(
        [sys.executable, *command(packs, tmp_path / "whole", *settings)],
        env=environment, check=True,
    )  # fmt: skip
    a, b = (tmp_path / n / "model" / "model.safetensors" for n in ("cut", "whole"))
    assert a.read_bytes() == b.read_bytes()


@pytest.mark.slow
def test_two_processes_follow_the_loss_curve_of_one(packs, tmp_path):
    """Statistics of the whole batch need both halves, so the network here has no batch norm."""
    settings = ["--set", "architecture.kind=timm:test_vit", "--set", "architecture.img_size=16"]
    settings += ["--set", "size=16", "--set", "augment=none"]
    curves = []
    for count, name in ((1, "one"), (2, "two")):
        launcher = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", str(count)]
        launcher += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
        start = launcher if count > 1 else []
        rest = command(packs, tmp_path / name, *settings)
        subprocess.run(
            [sys.executable, *start, *rest], check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
        lines = (tmp_path / name / "tables" / "epochs.jsonl").read_text().splitlines()
        curves.append([json.loads(line) for line in lines])
    for one, two in zip(*curves, strict=True):
        for key in ("loss.in", "loss.out"):
            assert two[key] == pytest.approx(one[key], abs=1e-5)


def test_a_training_may_start_from_trained_weights(packs, whole, tmp_path):
    start = str(whole.folder / "model")
    still = run(packs, tmp_path / "on", changes=[f"start={start}", "lr=0", "epochs=1"])
    before, after = (load(str(f), device="cpu") for f in (start, still.folder / "model"))
    for name, value in before.net.named_parameters():
        assert torch.equal(value, after.net.get_parameter(name)), name
    assert after.card["start"]["name"] == after.card["recipe"]["start"] == before.card["name"]
    assert after.card["start"]["training"] == before.card["training"]
    with pytest.raises(InputError, match="whose layers are not those"):
        run(
            packs,
            tmp_path / "other",
            changes=[f"start={start}", "architecture.widths=[8, 4, 4, 4]"],
        )
