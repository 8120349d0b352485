"""Model specs against the table of the contract, written out by hand; zoo access likewise."""

import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

from counterlens import zoo
from counterlens.errors import InputError
from counterlens.models import load
from counterlens.models.specs import ModelSpec, check_spec, parse


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


def said(spec: str) -> str:
    with pytest.raises(InputError) as refused:
        parse(spec)
    return str(refused.value)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("cifar10-plian-small", "cifar10-plain-small"),
        ("cifar10-plian", "cifar10-plain-small"),
        ("cifar10-plain-smal", "cifar10-plain-small"),
        ("cifar10-rato-small", "cifar10-ratio-small"),
        ("cifar-plain-small", "cifar10-plain-small"),
        ("cifar10-at", "cifar10-at-0.5"),
        ("cifar10-clp", "cifar10-clip"),
    ],
)
def test_a_mistyped_name_is_given_the_model_that_was_meant(typed: str, meant: str):
    with pytest.raises(InputError, match=rf"did you mean zoo:{meant}\?"):
        check_spec(f"zoo:{typed}")


def test_a_name_like_none_gets_no_suggestion_and_a_generator_is_called_one():
    with pytest.raises(InputError, match=r"zoo:resnet50 is not shipped\. Shipped"):
        check_spec("zoo:resnet50")
    with pytest.raises(InputError, match="is a generator, not a classifier"):
        check_spec(f"zoo:{zoo.generators()[0]}")


def test_specs_are_refused_without_torch():
    specs = ["zoo:cifar10-plian", "nowhere.py:make", "timm:resnet18@no.pth", "tim:resnet18", "w.pt"]
    code = (
        "import sys\nfrom counterlens.errors import InputError\n"
        "from counterlens.models.specs import check_spec\n"
        f"for spec in {specs!r}:\n"
        "    try:\n        check_spec(spec)\n    except InputError:\n        continue\n"
        "    raise SystemExit(spec)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_commands_refuse_a_mistyped_model_without_torch():
    bad = "zoo:cifar10-plian"
    commands = [
        *(["audit", bad, "sample:cifar10"], ["doctor", bad], ["explain", bad, "x.png"]),
        *(["disagree", bad, bad, "--class", "cat"], ["neurons", bad, "--unit", "0"]),
    ]
    code = (
        "import sys\nfrom counterlens.cli import app\nfrom counterlens.errors import InputError\n"
        f"for command in {commands!r}:\n"
        "    try:\n        app(command, standalone_mode=False)\n"
        "    except InputError as error:\n        assert 'cifar10-plain-small?' in str(error)\n"
        "    else:\n        raise SystemExit(command[0])\n"
        "    assert 'torch' not in sys.modules, command"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_own_files_of_weights_are_pointed_to_a_factory(tmp_path):
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3), torch.nn.BatchNorm2d(2))
    state, new, old = (tmp_path / name for name in ("state.pt", "whole.pth", "legacy.pth"))
    torch.save(net.state_dict(), state)
    torch.save(net, new)
    torch.save(net, old, _use_new_zipfile_serialization=False)
    legacy = tmp_path / "legacy-state.ckpt"
    plain = {"state_dict": net.state_dict(), "epoch": 3, "lr": np.float64(0.1)}
    torch.save(plain, legacy, _use_new_zipfile_serialization=False)
    for path in (state, legacy):
        text = said(str(path))
        assert "without an architecture" in text and "FILE.py:FACTORY" in text
    for path in (new, old):
        text = said(str(path))
        assert "a whole pickled module" in text and "FILE.py:FACTORY" in text
        assert "weights_only=False" in text and "without an architecture" not in text
    script = tmp_path / "script.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces its successors
        torch.jit.save(torch.jit.script(net), script)
    assert parse(str(script)) == ModelSpec("torchscript", str(script))
    onnx = tmp_path / "net.onnx"
    onnx.write_bytes(b"\x08\x07")
    assert parse(str(onnx)) == ModelSpec("onnx", str(onnx))
    assert "does not exist" in said(str(tmp_path / "none.pt"))
