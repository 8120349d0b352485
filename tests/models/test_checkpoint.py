"""Checkpoint folders: what was saved is what is loaded, bit by bit; what is torn is refused."""

import json
import os

import pytest
import torch
from torch import nn

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.models import load
from counterlens.models.nets import resnets as nets
from counterlens.models.sources import checkpoint
from counterlens.types import Preprocess

ARCHITECTURE = {"kind": "resnet18", "widths": [4, 4, 8, 8]}
CARD = {
    "name": "tiny",
    "architecture": ARCHITECTURE,
    "classes": ["cat", "dog", "frog"],
    "mean": [0.4, 0.5, 0.6],
    "std": [0.2, 0.3, 0.4],
    "preprocess": Preprocess((16, 16), 0.9, "bilinear"),
    "temperature": 1.7,
    "licence": "Apache-2.0",
}


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    made = nets.build(ARCHITECTURE, 3)
    made(torch.rand(4, 3, 16, 16))  # so that running statistics are not the initial ones
    return made.eval()


def test_what_was_saved_is_what_is_loaded(net, tmp_path):
    folder = checkpoint.save(tmp_path / "tiny", net, CARD)
    loaded = load(str(folder), device="cpu")
    x = torch.rand(2, 3, 16, 16)
    mean, std = torch.tensor(CARD["mean"]), torch.tensor(CARD["std"])
    expected = net((x - mean.view(1, 3, 1, 1)) / std.view(1, 3, 1, 1))
    assert torch.equal(loaded(x), expected)
    assert loaded.classes == ("cat", "dog", "frog")
    assert loaded.preprocess == CARD["preprocess"]
    assert loaded.card["temperature"] == 1.7  # on the card, not in forward
    assert not loaded.training
    assert not any(p.requires_grad for p in loaded.parameters())


def test_a_classifier_fills_in_its_own_facts_and_survives_two_round_trips(net, tmp_path):
    first = Classifier(
        net, ["a", "b", "c"], preprocess=Preprocess((8, 12), 0.8, squash=True), name="mine"
    )
    checkpoint.save(tmp_path / "one", first, {"architecture": ARCHITECTURE})
    second = load(str(tmp_path / "one"), device="cpu")
    checkpoint.save(tmp_path / "two", second, {})
    third = load(str(tmp_path / "two"), device="cpu")
    assert third.classes == first.classes
    assert third.preprocess == first.preprocess
    assert third.name == "mine"
    x = torch.rand(2, 3, 16, 16)
    assert torch.equal(third(x), first(x))


def test_half_precision_halves_the_file_and_comes_back_as_float32(net, tmp_path):
    checkpoint.save(tmp_path / "whole", net, CARD)
    checkpoint.save(tmp_path / "half", net, CARD, half=True)
    sizes = [(tmp_path / n / "model.safetensors").stat().st_size for n in ("whole", "half")]
    assert sizes[1] < 0.75 * sizes[0]  # names and counters do not shrink
    loaded = load(str(tmp_path / "half"), device="cpu")
    for name, value in net.state_dict().items():
        expected = value.half().float() if value.is_floating_point() else value
        assert torch.equal(loaded.net.state_dict()[name], expected)


def test_weights_that_half_precision_cannot_hold_are_refused(net, tmp_path):
    net.bn1.running_var.fill_(1e6)
    with pytest.raises(InputError, match=r"bn1.running_var is not finite in half precision"):
        checkpoint.save(tmp_path / "half", net, CARD, half=True)
    assert not (tmp_path / "half" / "card.json").exists()


def test_a_card_without_what_loading_needs_is_never_written(net, tmp_path):
    short = {k: v for k, v in CARD.items() if k != "mean"}
    with pytest.raises(InputError, match="lacks mean"):
        checkpoint.save(tmp_path / "x", net, short)
    assert not (tmp_path / "x").exists()


def test_a_crash_before_the_card_leaves_no_checkpoint(net, tmp_path, monkeypatch):
    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "write_json", crash)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(tmp_path / "x", net, CARD)
    with pytest.raises(InputError, match="no checkpoint: it has no card"):
        load(str(tmp_path / "x"))


def test_weights_replaced_without_their_card_are_refused(net, tmp_path, monkeypatch):
    checkpoint.save(tmp_path / "x", net, CARD)
    with torch.no_grad():
        net.linear.weight.mul_(2)
    monkeypatch.setattr(checkpoint, "write_json", lambda *_: None)
    checkpoint.save(tmp_path / "x", net, CARD)
    with pytest.raises(InputError, match="SHA-256 differs"):
        load(str(tmp_path / "x"))


def _change(folder, **facts):
    card = json.loads((folder / "card.json").read_text())
    card.update(facts)
    (folder / "card.json").write_text(json.dumps(card))


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"classes": ["a", "b"]}, r"linear.weight \(3, 8\) instead of \(2, 8\)"),
        ({"classes": ["a"]}, r"classes is \['a'\], expected two names or more"),
        ({"schema": 99}, "schema 99"),
        ({"architecture": {"kind": "resnet99"}}, "resnet99"),
        ({"preprocess": {"size": "big"}}, "preprocess.size is 'big'"),
        ({"preprocess": {"size": [8, 8], "crop": 0}}, "preprocess.crop is 0"),
        ({"preprocess": {"size": [8, 8], "interpolation": "magic"}}, "'magic', expected one of"),
        ({"mean": None}, "lacks mean"),
        ({"mean": [0, 0]}, "do not fit"),
    ],
)
def test_a_wrong_card_is_refused_by_what_is_wrong(net, tmp_path, facts, says):
    folder = checkpoint.save(tmp_path / "x", net, CARD)
    _change(folder, **facts)
    with pytest.raises(InputError, match=says):
        load(str(folder))


def test_a_truncated_file_and_a_missing_file_are_refused(net, tmp_path):
    folder = checkpoint.save(tmp_path / "x", net, CARD)
    file = folder / "model.safetensors"
    os.truncate(file, 1000)
    with pytest.raises(InputError, match="SHA-256 differs"):
        load(str(folder))
    _change(folder, weights_sha256=None)
    with pytest.raises(InputError, match="no whole safetensors file"):
        load(str(folder))
    file.unlink()
    with pytest.raises(InputError, match=r"lacks model.safetensors"):
        load(str(folder))


def test_a_card_that_is_no_json_is_refused(net, tmp_path):
    folder = checkpoint.save(tmp_path / "x", net, CARD)
    (folder / "card.json").write_text("{")
    with pytest.raises(InputError, match=r"card\.json: not JSON"):
        load(str(folder))
