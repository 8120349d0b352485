"""Bad input through the command line: one clear line, exit code 2, nothing half-written."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from journeys.command import Command

MODEL = "zoo:cifar10-plain-small"


def folder_of(at: Path, *classes: str) -> Path:
    """A folder with two noise pictures per class."""
    rng = np.random.default_rng(0)
    for name in classes:
        (at / name).mkdir(parents=True)
        for i in range(2):
            pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(at / name / f"{i}.png")
    return at


def refused(counterlens: Command, *arguments: str, saying: str) -> None:
    """One line that says this, exit code 2, and no file left by the command."""
    before = counterlens.left_behind()
    said = counterlens(*arguments)
    assert said.code == 2, said.err
    assert said.out == ""
    lines = [line for line in said.lines if line.startswith("error:")]
    assert len(lines) == 1 and saying in lines[0], said.err
    assert "Traceback" not in said.err
    assert counterlens.left_behind() == before


@pytest.mark.parametrize(
    ("model", "saying"),
    [
        ("zoo:cifar10-plain-smal", "cifar10-plain-small"),
        ("timm:resnet1", "resnet1"),
        ("nothing:at-all", "zoo:"),
        ("missing.py:make", "missing.py"),
        ("no/such/folder", "no/such/folder"),
    ],
)
def test_a_model_that_does_not_exist(counterlens: Command, model: str, saying: str) -> None:
    refused(counterlens, "audit", model, "sample:cifar10", saying=saying)


@pytest.mark.parametrize(
    ("data", "saying"),
    [
        ("sample:cifar11", "cifar10"),
        ("no/such/folder", "no/such/folder"),
        ("pack:missing.npz", "missing.npz"),
        ("known:cifar-1O@here", "cifar10"),
    ],
)
def test_data_that_does_not_exist(counterlens: Command, data: str, saying: str) -> None:
    refused(counterlens, "audit", MODEL, data, saying=saying)


def test_an_empty_folder(counterlens: Command) -> None:
    Path("empty").mkdir()
    refused(counterlens, "audit", MODEL, "empty", saying="empty")


def test_classes_the_model_does_not_know(counterlens: Command) -> None:
    folder_of(Path("data"), "teapot", "spanner")
    refused(counterlens, "audit", MODEL, "data", saying="teapot")


def test_a_corrupt_picture_is_named(counterlens: Command) -> None:
    folder_of(Path("data"), "cat", "dog")
    Path("data/cat/0.png").write_bytes(b"\x89PNG\r\n\x1a\nnot a picture")
    refused(counterlens, "audit", MODEL, "data", saying="cat/0.png")


def test_a_truncated_archive(counterlens: Command) -> None:
    np.savez("whole.npz", encoded=np.zeros(9, np.uint8), offsets=np.array([0, 9]))
    Path("torn.npz").write_bytes(Path("whole.npz").read_bytes()[:200])
    assert not zipfile.is_zipfile("torn.npz")
    refused(counterlens, "audit", MODEL, "pack:torn.npz", saying="torn.npz")


def test_a_model_of_one_logit_has_two_classes(counterlens: Command) -> None:
    Path("one.py").write_text(
        "import torch\n"
        "def make():\n"
        "    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 1))\n"
        "    net.input_size = (32, 32)\n"
        "    return net\n"
    )
    refused(counterlens, "audit", "one.py:make", "sample:cifar10", saying="names such as 0, 1;")


def test_arrays_with_a_wrong_number_of_channels(counterlens: Command) -> None:
    np.savez(
        "five.npz",
        images=np.zeros((4, 32, 32, 5), np.uint8),
        labels=np.arange(4),
        classes=np.array(["cat", "dog", "frog", "ship"]),
    )
    refused(counterlens, "audit", MODEL, "pack:five.npz", saying="five.npz")


@pytest.mark.parametrize(
    ("arguments", "saying"),
    [
        (("--attack", "l7:0.5"), "l7:0.5"),
        (("--attack", "l2:-1"), "l2:-1"),
        (("--attack", "l2:0"), "l2:0"),
        (("--require", "accuracy.top1=0.9"), "accuracy.top1=0.9"),
        (("--ood", "sample:cifar10"), "cifar10"),
        (("--budget", "soon"), "soon"),
        (("--limit", "0"), "error: --limit is 0"),
        (("--attack-version", "nope"), "error: --attack-version is 'nope'"),
    ],
)
def test_options_that_make_no_sense(
    counterlens: Command, arguments: tuple[str, ...], saying: str
) -> None:
    refused(counterlens, "audit", MODEL, "sample:cifar10", *arguments, saying=saying)


@pytest.mark.parametrize(
    ("key", "saying"),
    [
        ("accuracy.top2", "The nearest that it does: accuracy.top5, accuracy.top1"),
        ("robust.l2-1.accuracy", "without its --attack. The nearest that it does: robust.l2-0.5."),
        ("ood.svhn.auroc", "without its --ood set. The nearest that it does: ood.uniform.auroc"),
        ("ood.uniform.worst_auroc.low", "ood.uniform.worst_auroc without --ood-attack"),
        ("bias.frame_shift_flip", "bias.frame_shift_flip without --flips"),
    ],
)
def test_a_gate_on_a_number_this_audit_cannot_have_is_refused_before_anything_is_loaded(
    counterlens: Command, key: str, saying: str
) -> None:
    """Neither model nor images exist, so whatever loads them first would complain of them."""
    asked = ("--ood", "noise:uniform", "--attack", "l2:0.5", "--require", f"{key}>=0.5")
    refused(counterlens, "audit", "timm:none", "pack:none.npz", *asked, saying=saying)


@pytest.mark.parametrize(
    ("change", "saying"),
    [
        ("schedule=sine", "schedule is 'sine', expected one of linear, cosine"),
        ("near.radius=-1", "radius is -1.0"),
        ("start=no/such/model", "no/such/model"),
        ("start=zoo:cifar10-at-0.5", "whose layers are not those of the recipe's architecture"),
    ],
)
def test_a_training_is_refused_before_data_is_read_or_a_folder_made(
    counterlens: Command, change: str, saying: str
) -> None:
    """The data does not exist, so whatever reads it first would complain of it."""
    train = ("train", "cifar10-plain-small", "--data", "pack:none.npz", "--out", "run")
    refused(counterlens, *train, "--set", change, saying=saying)


def test_a_start_with_other_classes_leaves_no_folder(counterlens: Command, tmp_path: Path) -> None:
    folder_of(Path("data"), "cat", "dog")
    refused(
        counterlens,
        *("train", "cifar10-plain-small", "--data", "data", "--set", "held_out=2"),
        *("--set", "start=zoo:cifar10-plain-small", "--set", "batch=2", "--cache", str(tmp_path)),
        saying="of the same architecture and classes",
    )


@pytest.mark.parametrize("option", ["--sizes", "--ratios"])
def test_lists_of_an_ablation_are_written_alike(counterlens: Command, option: str) -> None:
    refused(
        counterlens,
        *("cgn", "evaluate", "coloured", "--cgn", "none", option, "10,many"),
        saying=f"{option} is '10,many', expected whole numbers such as",
    )
