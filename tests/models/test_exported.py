"""Exported models: files made by torch and onnxruntime themselves, against the network they hold.

Oracle: the network in Python before it was exported.
"""

import copy
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.models import load, parse
from counterlens.models.parts import features

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx2torch")
MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.3, 0.25]


def network(outputs: int = 3, channels: int = 3) -> nn.Module:
    torch.manual_seed(0)
    body = [nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(8, outputs)).eval()


def store(kind: str, net: nn.Module, path: Path, x: Tensor, *, dynamic: bool = True) -> str:
    """The spec of a file that the real library wrote."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "onnx":
            axes = {"x": {0: "n"}} if dynamic else {}
            torch.onnx.export(
                net, (x,), str(path), dynamo=False, input_names=["x"], dynamic_axes=axes
            )
        elif kind == "torchscript":
            torch.jit.save(torch.jit.trace(net, x), str(path))
        else:
            shapes = ({0: torch.export.Dim("n")},) if dynamic else None
            torch.export.save(torch.export.export(net, (x,), dynamic_shapes=shapes), str(path))
    return f"{kind}:{path}"


def describe(path: Path, **facts: object) -> None:
    path.with_name(path.name + ".json").write_text(json.dumps(facts), encoding="utf-8")


def truth(net: nn.Module, x: Tensor) -> Tensor:
    shape = (1, -1, 1, 1)
    return net((x - torch.tensor(MEAN).view(shape)) / torch.tensor(STD).view(shape))


@pytest.fixture(params=[("onnx", "onnx"), ("torchscript", "pt"), ("export", "pt2")])
def exported(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Classifier, nn.Module, str]:
    kind, ending = request.param
    net, path = network(), tmp_path / f"net.{ending}"
    spec = store(kind, net, path, torch.rand(2, 3, 8, 8))
    describe(path, classes=["a", "b", "c"], mean=MEAN, std=STD, size=8)
    return load(spec, device="cpu"), net, spec


def test_logits_and_gradients_are_those_of_the_network(exported):
    classifier, net, spec = exported
    x = torch.rand(5, 3, 8, 8)
    assert classifier.classes == ("a", "b", "c")
    assert torch.allclose(classifier(x), truth(net, x), atol=1e-4)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    (ours,) = torch.autograd.grad(classifier(a)[:, 1].sum(), a)
    (theirs,) = torch.autograd.grad(truth(net, b)[:, 1].sum(), b)
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert parse(spec.partition(":")[2]) == parse(spec)  # the file alone is enough


def test_a_copy_gives_the_same_logits(exported):
    classifier, _, _ = exported
    x = torch.rand(3, 3, 8, 8)
    assert torch.equal(copy.deepcopy(classifier)(x), classifier(x))


@pytest.mark.parametrize(("kind", "ending"), [("onnx", "onnx"), ("export", "pt2")])
def test_a_file_for_one_image_at_a_time_takes_any_batch(tmp_path, kind, ending):
    net, x = network(), torch.rand(3, 3, 8, 8)
    spec = store(kind, net, tmp_path / f"n.{ending}", x[:1], dynamic=False)
    classifier = load(spec, device="cpu")
    assert classifier.preprocess.size == (8, 8)
    assert torch.allclose(classifier(x), net(x), atol=1e-4)
    assert "does not state mean and std" in classifier.card["notes"][0]


def test_features_of_an_onnx_file_are_those_of_the_network(tmp_path):
    net, x = network(), torch.rand(2, 3, 8, 8)
    classifier = load(store("onnx", net, tmp_path / "n.onnx", x), device="cpu")
    assert "onnx2torch" in classifier.card["gradients"]
    assert torch.allclose(features(classifier, x), net[:-1](x), atol=1e-5)


@pytest.mark.parametrize(("kind", "ending"), [("onnx", "onnx"), ("torchscript", "pt")])
def test_one_logit_and_one_channel_become_two_classes_of_grey_images(tmp_path, kind, ending):
    net, x = network(1, channels=1), torch.rand(4, 1, 8, 8)
    path = tmp_path / f"n.{ending}"
    spec = store(kind, net, path, x)
    describe(path, classes=["healthy", "ill"], size=8, channels=1)
    z, logits = net(x), load(spec, device="cpu")(x)
    assert torch.allclose(logits, torch.cat([-z / 2, z / 2], 1), atol=1e-5)


def test_an_int8_file_predicts_and_says_why_it_has_no_gradient(tmp_path):
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Images(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            rows = np.random.default_rng(0).random((4, 2, 3, 8, 8), dtype=np.float32)
            self.rows = iter([{"x": part} for part in rows])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rows, None)

    net, x = network(), torch.rand(8, 3, 8, 8)
    store("onnx", net, tmp_path / "n.onnx", x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize_static(tmp_path / "n.onnx", tmp_path / "int8.onnx", Images())
    classifier = load(f"onnx:{tmp_path / 'int8.onnx'}", device="cpu")
    gap = (classifier(x) - net(x)).abs().max()
    assert 0 < gap < 0.1 * net(x).std(dim=0).max() + 0.05
    assert classifier.card["gradients"].startswith("none: ")
    assert not classifier(x.clone().requires_grad_()).requires_grad


def test_half_precision_torchscript_gives_float32_logits(tmp_path):
    net, x = network(), torch.rand(2, 3, 8, 8)
    path = tmp_path / "n.pt"
    spec = store("torchscript", copy.deepcopy(net).half(), path, x.half())
    describe(path, size=8)
    logits = load(spec, device="cpu")(x)
    assert logits.dtype == torch.float32
    assert torch.allclose(logits, net(x), atol=5e-3)


@pytest.mark.parametrize(
    ("facts", "match"),
    [
        ({"size": 8, "classes": ["a", "b"]}, "3 logits, but 2 classes"),
        ({}, "does not say the size"),
        ({"size": 8, "means": [0]}, "has means, expected classes"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(tmp_path, facts, match):
    path = tmp_path / "n.pt"
    spec = store("torchscript", network(), path, torch.rand(2, 3, 8, 8))
    describe(path, **facts)
    with pytest.raises(InputError, match=match):
        load(spec, device="cpu")


def test_broken_and_absent_files_are_refused(tmp_path):
    (tmp_path / "n.onnx").write_bytes(b"\x08\x07")
    with pytest.raises(InputError, match="cannot be opened by onnxruntime"):
        load(f"onnx:{tmp_path / 'n.onnx'}", device="cpu")
    with pytest.raises(InputError, match="does not exist"):
        load(f"export:{tmp_path / 'none.pt2'}", device="cpu")
