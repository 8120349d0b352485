"""Fine-tuning on a handful of images.

Oracles: the network given (not one bit of it may change), the split's laws, the same training
without an interruption, logits of the result in memory against those of its folder. The networks
are tiny and random, the images are made: dark, medium and bright squares of noise.
"""

import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn

import counterlens
from counterlens import Classifier, InputError, finetune, load
from counterlens.models.weights import weights_hash
from counterlens.workflows.train import finetune as module
from counterlens.workflows.train.finetune_data import split

CLASSES = ("dark", "grey", "bright")


def network(classes: int = 3, *, normed: bool = True) -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8) if normed else nn.Identity()
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, classes),
    )  # fmt: skip


def classifier(classes: tuple[str, ...] = CLASSES) -> Classifier:
    return Classifier(network(len(classes)), classes=classes, mean=0.5, std=0.25, size=16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """80 images in three class folders."""
    root = tmp_path_factory.mktemp("photos") / "photos"
    rng = np.random.default_rng(0)
    for i in range(80):
        name = CLASSES[i % 3]
        pixels = rng.integers(0, 80, (20, 24, 3)) + 80 * (i % 3)
        (root / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{i}.png")
    return root


def tuned(folder: Path, start: object, out: Path, **keywords: object) -> module.Finetuned:
    keywords = {"epochs": 4, "device": "cpu", "quiet": True, **keywords}
    return finetune(folder, start, out=out, **keywords)


@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=60).filter(
        lambda labels: all(labels.count(k) > 1 for k in labels)
    ),
    st.floats(0.05, 0.9),
)
def test_a_split_covers_all_images_once_and_leaves_each_class_on_both_sides(labels, share):
    kept, held = split(np.array(labels), [f"{i}.png" for i in range(len(labels))], share)
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(len(labels)))
    assert {labels[i] for i in kept} == {labels[i] for i in held} == set(labels)


def test_own_network_keeps_its_classes_and_is_not_changed(folder, tmp_path):
    own = classifier()
    before = weights_hash(own)
    result = tuned(folder, own, tmp_path / "run", epochs=20)
    assert weights_hash(own) == before
    assert result.classifier is not None and result.classifier.classes == CLASSES
    assert result.numbers["held_out.clean"].value > result.numbers["held_out.before"].value + 0.2
    assert result.numbers["held_out.clean"].n == 15
    assert [part.manifest["command"] for part in result.parts] == ["audit", "audit"]
    chosen = {row["setting"]: row["value"] for row in result.table("derived")}
    assert chosen["batch"] == "16" and chosen["images to train on"] == "65"
    assert "Held-out accuracy" in result.report.read_text(encoding="utf-8")


def factory(tmp_path: Path, classes: tuple[str, ...]) -> str:
    """FILE.py:FACTORY of a linear network."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\nfrom torch import nn\n"
        "def make():\n"
        "    torch.manual_seed(0)\n"
        f"    linear = nn.Linear(48, {len(classes)})\n"
        "    net = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), linear)\n"
        f"    net.classes, net.input_size = {list(classes)!r}, 16\n"
        "    return net\n",
        encoding="utf-8",
    )
    return f"{file}:make"


def test_other_classes_get_a_new_last_layer_and_the_folder_loads_again(folder, tmp_path):
    start = factory(tmp_path, ("cat", "dog", "bird", "frog"))
    result = tuned(folder, start, tmp_path / "run", epochs=1, lr=1e-3)
    assert result.classifier is not None and result.classifier.classes == ("bright", "dark", "grey")
    with pytest.raises(InputError, match=r"names the model .*mine.py:make"):
        load(str(tmp_path / "run" / "model"))
    again = load(str(tmp_path / "run" / "model"), device="cpu", trust_remote_code=True)
    x = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(again(x), result.classifier(x), rtol=0, atol=0)
    assert again.classes == result.classifier.classes


def test_an_object_has_no_spec_so_its_folder_says_how_to_load_it(folder, tmp_path):
    tuned(folder, classifier(), tmp_path / "run", epochs=1, lr=1e-3)
    with pytest.raises(InputError, match=r"object in Python.*load_file"):
        load(str(tmp_path / "run" / "model"))


@pytest.mark.parametrize("frozen", [True, False])
def test_batch_norm_keeps_its_statistics_where_images_are_few(folder, tmp_path, frozen):
    own = classifier()
    keywords = {} if frozen else {"freeze_norms": False}
    result = tuned(folder, own, tmp_path / "run", epochs=1, lr=1e-3, **keywords)
    assert result.classifier is not None
    same = torch.equal(result.classifier.net[1].running_mean, own.net[1].running_mean)
    assert same == frozen
    assert not torch.equal(result.classifier.net[0].weight, own.net[0].weight)


def test_an_interrupted_training_goes_on_to_the_same_weights(folder, tmp_path, monkeypatch):
    whole = tuned(folder, classifier(), tmp_path / "whole", lr=1e-3)

    def interrupting(options):
        return lambda line: signal.raise_signal(signal.SIGINT) if "epoch 2/" in line else None

    monkeypatch.setattr(module, "logger", interrupting)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            tuned(folder, classifier(), tmp_path / "cut", lr=1e-3)
    finally:
        signal.signal(signal.SIGINT, before)
    monkeypatch.undo()
    resumed = tuned(folder, classifier(), tmp_path / "cut", lr=1e-3, resume=True)
    assert len(resumed.table("epochs")) == 4
    assert weights_hash(resumed.classifier) == weights_hash(whole.classifier)


@pytest.mark.parametrize(
    ("start", "keywords", "words"),
    [
        (lambda: classifier(("dark", "bright", "cat")), {}, "knows 2 of the 3 classes"),
        (lambda: Classifier(lambda x: x.flatten(1)[:, :3], CLASSES, size=16), {}, "no weights"),
        (classifier, {"epochs": 0}, "epochs is 0"),
        (classifier, {"held_out": 20}, "held_out is 20"),
        (classifier, {"batch": 100}, "at most the 65 training images"),
        (classifier, {"epoch": 3}, "Did you mean epochs"),
    ],
)
def test_what_cannot_work_is_refused_in_a_line(folder, tmp_path, start, keywords, words):
    with pytest.raises(InputError, match=words) as caught:
        tuned(folder, start(), tmp_path / "run", **keywords)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_the_command_takes_settings_and_a_start(folder, tmp_path, capsys):
    from counterlens.cli import app

    line = [
        "train",
        "finetune",
        "--data",
        str(folder),
        "--set",
        f"start={factory(tmp_path, CLASSES)}",
    ]
    line += ["--set", "epochs=2", "--set", "lr=1e-2", "--out", str(tmp_path / "run"), "-q"]
    app([*line, "--device", "cpu"], standalone_mode=False)
    assert capsys.readouterr().out.strip() == str(tmp_path / "run")
    assert load(str(tmp_path / "run" / "model"), trust_remote_code=True).classes == CLASSES
    assert "finetune" in dir(counterlens)
