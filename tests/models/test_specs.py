"""Model specs against the table of the contract, written out by hand; zoo access likewise."""

import json
import subprocess
import sys

import pytest

from counterlens import zoo
from counterlens.errors import InputError
from counterlens.models import load
from counterlens.models.specs import ModelSpec, parse


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("zoo:cifar10-plain-small", ModelSpec("zoo", "cifar10-plain-small")),
        ("timm:resnet50.a1_in1k", ModelSpec("timm", "resnet50.a1_in1k")),
        ("timm:resnet18@/a b/w.pth", ModelSpec("timm", "resnet18", "/a b/w.pth")),
        ("torchvision:vgg11@IMAGENET1K_V1", ModelSpec("torchvision", "vgg11", "IMAGENET1K_V1")),
        ("hf:org/name@v2", ModelSpec("hf", "org/name", "v2")),
        ("robustbench:wrn-28-10@w.pt", ModelSpec("robustbench", "wrn-28-10", "w.pt")),
        ("nets/my.py:build", ModelSpec("file", "nets/my.py", "build")),
        (r"C:\nets\my.py:build", ModelSpec("file", r"C:\nets\my.py", "build")),
        (".", ModelSpec("folder", ".")),
    ],
)
def test_a_spec_is_taken_apart_and_written_back(text, spec):
    assert parse(text) == spec
    assert str(spec) == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("tim:resnet18", "did you mean timm?"),
        ("glide:ViT-B-32", "unknown scheme 'glide'"),
        ("timm:", "not whole, expected timm:NAME"),
        ("timm:resnet18@", "not whole"),
        ("nets/my.py", "lacks a factory. Add the function"),
        ("nets/my.py:", "names no factory"),
        ("nets/my.py:2x", "names no factory"),
        ("weights.pth", "timm:NAME@weights.pth"),
        ("no/such/folder", "no such folder"),
        ("resnet18", "type timm:resnet18"),
    ],
)
def test_a_spec_that_means_nothing_is_refused_in_one_line_with_what_to_type(text, says):
    with pytest.raises(InputError) as refused:
        load(text)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_weights_count_as_a_file_by_their_looks_or_by_being_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plainname").write_bytes(b"")
    assert parse("timm:a@w.pth").weights_file is not None
    assert parse("timm:a@dir/w").weights_file is not None
    assert parse("timm:a@plainname").weights_file is not None
    assert parse("torchvision:a@IMAGENET1K_V1").weights_file is None


def test_an_unknown_device_is_refused_by_name():
    with pytest.raises(InputError, match="no device 'gpu'"):
        load("zoo:any", device="gpu")


def test_a_model_that_is_not_shipped_is_refused_with_those_that_are(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "_WEIGHTS", tmp_path)
    (tmp_path / "cifar10-plain").mkdir()
    (tmp_path / "cifar10-plain" / "card.json").write_text(json.dumps({"name": "cifar10-plain"}))
    assert zoo.names() == ["cifar10-plain"]
    assert zoo.card("cifar10-plain") == {"name": "cifar10-plain"}
    with pytest.raises(InputError, match=r"did you mean zoo:cifar10-plain\?"):
        load("zoo:cifar10-plian")


def test_a_sample_that_is_not_shipped_is_refused_with_those_that_are(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "_SAMPLES", tmp_path)
    (tmp_path / "cifar10.npz").write_bytes(b"")
    (tmp_path / "cifar10.json").write_text('{"n": 1}')
    assert zoo.samples() == ["cifar10"]
    assert zoo.sample("cifar10") == tmp_path / "cifar10.npz"
    assert zoo.sample_card("cifar10") == {"n": 1}
    with pytest.raises(InputError, match="sample:cifar10"):
        zoo.sample("cifar")


def test_the_zoo_is_read_without_torch():
    code = "import counterlens.zoo as z, sys; z.names(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
