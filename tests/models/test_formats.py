"""Format × what works: files made by the real libraries, small untrained networks in them.

Oracle: the network in Python before it was stored. The same table stands in
docs/how-to/bring-your-model.md and is compared with the one here.
"""

import json
import re
import threading
import urllib.request
import warnings
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import counterlens as cl
from counterlens.ball import Ball
from counterlens.classifier import Classifier
from counterlens.diagnosis.gradients import gradients
from counterlens.diagnosis.uses import uses
from counterlens.errors import InputError
from counterlens.models import load
from counterlens.models.parts import cam_layer, features
from counterlens.objectives import margin
from counterlens.search.pgd import pgd

SIDE, NAMES = 16, ("a", "b", "c")
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "bring-your-model.md"
pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    """Convolutions and a linear head, as users write them."""

    def __init__(self, *, last: bool = False, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(8, 3)
        self.last, self.scale = last, scale

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 3, 1, 2) if self.last else x
        x = x.to(self.head.weight.dtype) * self.scale
        return self.head(self.body(x).mean((2, 3)))


def to_onnx(net: nn.Module, path: Path, x: Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net.eval(), (x,), str(path), dynamo=False, input_names=["x"],
            dynamic_axes={"x": {0: "n"}},
        )  # fmt: skip
    facts = {"classes": list(NAMES), "size": SIDE, "channels": 3}
    path.with_name(path.name + ".json").write_text(json.dumps(facts))


def batch(n: int = 2) -> Tensor:
    return torch.rand(n, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def onnx_float32(at: Path) -> tuple[Classifier, nn.Module]:
    to_onnx(Net(), at / "n.onnx", batch())
    return load(f"onnx:{at / 'n.onnx'}", device="cpu"), Net()


def onnx_nhwc(at: Path) -> tuple[Classifier, nn.Module]:
    to_onnx(Net(last=True), at / "n.onnx", batch().permute(0, 2, 3, 1))
    return load(f"onnx:{at / 'n.onnx'}", device="cpu"), Net()


def onnx_float16(at: Path) -> tuple[Classifier, nn.Module]:
    to_onnx(Net().half(), at / "n.onnx", batch().half())
    return load(f"onnx:{at / 'n.onnx'}", device="cpu"), Net()


def onnx_uint8(at: Path) -> tuple[Classifier, nn.Module]:
    to_onnx(Net(scale=1 / 255), at / "n.onnx", (batch() * 255).to(torch.uint8))
    return load(f"onnx:{at / 'n.onnx'}", device="cpu"), Net()


def onnx_int8(at: Path) -> tuple[Classifier, nn.Module]:
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Images(CalibrationDataReader):  # type: ignore[misc]
        rows = iter([{"x": batch(8).numpy()}])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rows, None)

    to_onnx(Net(), at / "n.onnx", batch())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize_static(at / "n.onnx", at / "int8.onnx", Images())
    (at / "n.onnx.json").rename(at / "int8.onnx.json")
    return load(f"onnx:{at / 'int8.onnx'}", device="cpu"), Net()


def onnx_int8_dynamic(at: Path) -> tuple[Classifier, nn.Module]:
    """Scales of the activations are found while the graph runs (ConvInteger, MatMulInteger)."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    to_onnx(Net(), at / "n.onnx", batch())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize_dynamic(at / "n.onnx", at / "int8.onnx", weight_type=QuantType.QUInt8)
    (at / "n.onnx.json").rename(at / "int8.onnx.json")
    return load(f"onnx:{at / 'int8.onnx'}", device="cpu"), Net()


def torchscript(at: Path) -> tuple[Classifier, nn.Module]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(Net().eval(), batch()), str(at / "n.pt"))
    (at / "n.pt.json").write_text(json.dumps({"classes": list(NAMES), "size": SIDE}))
    return load(f"torchscript:{at / 'n.pt'}", device="cpu"), Net()


def torchscript_half(at: Path) -> tuple[Classifier, nn.Module]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(Net().eval().half(), batch().half()), str(at / "n.pt"))
    (at / "n.pt.json").write_text(json.dumps({"classes": list(NAMES), "size": SIDE}))
    return load(f"torchscript:{at / 'n.pt'}", device="cpu"), Net()


def export(at: Path) -> tuple[Classifier, nn.Module]:
    shapes = ({0: torch.export.Dim("n")},)
    program = torch.export.export(Net().eval(), (batch(),), dynamic_shapes=shapes)
    torch.export.save(program, str(at / "n.pt2"))
    (at / "n.pt2.json").write_text(json.dumps({"classes": list(NAMES)}))
    return load(f"export:{at / 'n.pt2'}", device="cpu"), Net()


def _timm() -> tuple[nn.Module, dict[str, Any]]:
    import timm

    torch.manual_seed(0)
    net = timm.create_model("resnet10t", num_classes=3).eval()
    return net, timm.data.resolve_model_data_config(net)


class Normalised(nn.Module):
    """A network behind its normalisation, written out."""

    def __init__(self, net: nn.Module, config: dict[str, Any]) -> None:
        super().__init__()
        self.net = net
        self.mean, self.std = (torch.tensor(config[k]).view(-1, 1, 1) for k in ("mean", "std"))

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x - self.mean) / self.std)


def timm_safetensors(at: Path) -> tuple[Classifier, nn.Module]:
    net, config = _timm()
    save_file(net.state_dict(), at / "n.safetensors")
    return load(f"timm:resnet10t@{at / 'n.safetensors'}", device="cpu"), Normalised(net, config)


def lightning(at: Path) -> tuple[Classifier, nn.Module]:
    """What Lightning writes, with an object among the hyper-parameters and a metric's state."""
    net, config = _timm()
    state = {f"model.{key}": value for key, value in net.state_dict().items()}
    stored = {
        "pytorch-lightning_version": "2.5.0",
        "state_dict": {**state, "metric.total": torch.zeros(1)},
        "hyper_parameters": {"folder": Path("photos"), "kind": Classifier},
    }
    torch.save(stored, at / "n.ckpt")
    return load(f"timm:resnet10t@{at / 'n.ckpt'}", device="cpu"), Normalised(net, config)


def factory(at: Path) -> tuple[Classifier, nn.Module]:
    (at / "mine.py").write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_formats import Net\n\ndef make():\n    net = Net()\n"
        f"    net.input_size, net.classes = {SIDE}, {NAMES!r}\n    return net\n"
    )
    return load(f"{at / 'mine.py'}:make", device="cpu"), Net()


def torch_function(at: Path) -> tuple[Classifier, nn.Module]:
    net = Net().eval()
    return cl.as_classifier(
        lambda x: net(x), classes=NAMES, size=SIDE, name="f", device="cpu"
    ), Net()


def maite(at: Path) -> tuple[Classifier, nn.Module]:
    """A literal object of the protocol: no class of ours or of MAITE's in it."""
    net = Net().eval()

    class Model:
        metadata: ClassVar = {"id": "their-model", "index2label": dict(enumerate(NAMES))}

        def __call__(self, images: Any) -> list[np.ndarray]:
            with torch.no_grad():
                return [net(torch.as_tensor(x)[None]).softmax(1)[0].numpy() for x in images]

    return cl.as_classifier(Model(), size=SIDE, device="cpu"), Net()


def http(at: Path) -> tuple[Classifier, nn.Module]:
    """A server of this process; the client is the function that the docs show."""
    net = Net().eval()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            x = torch.tensor(json.loads(body)["images"])
            with torch.no_grad():
                answer = json.dumps({"logits": net(x).tolist()}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"

    def ask(x: Tensor) -> Tensor:
        body = json.dumps({"images": x.tolist()}).encode()
        with urllib.request.urlopen(urllib.request.Request(address, body)) as response:
            return torch.tensor(json.load(response)["logits"])

    return cl.as_classifier(ask, classes=NAMES, size=SIDE, name="http", device="cpu"), Net()


Make = Callable[[Path], tuple[Classifier, nn.Module]]
STORED = "layers of a stored program cannot be looked into"
CALLED = "a function shows no layers"
OBJECT = "an object of the MAITE protocol shows no layers"


def lacks(operator: str) -> str:
    return f"the graph has {operator}, which onnx2torch cannot convert to torch"


# format → how it is made, largest difference of the logits, the columns of the table, and why its
# layers cannot be looked into
FORMATS: dict[str, tuple[Make, float, str, str, str, str, str]] = {
    "ONNX, float32": (onnx_float32, 1e-4, "gradients", "yes", "yes", "yes", ""),
    "ONNX, channels last": (onnx_nhwc, 1e-4, "gradients", "yes", "yes", "yes", ""),
    "ONNX, float16": (onnx_float16, 5e-3, "gradients", "yes", "yes", "yes", ""),
    "ONNX, uint8 pixels": (onnx_uint8, 5e-3, "gradients", "yes", "yes", "yes", ""),
    "ONNX, int8 by calibration": (
        onnx_int8, 0.05, "black box", "no", "no", "no", lacks("DequantizeLinear")
    ),
    "ONNX, int8 while it runs": (
        onnx_int8_dynamic, 0.05, "black box", "no", "no", "no", lacks("DynamicQuantizeLinear")
    ),
    "TorchScript": (torchscript, 1e-5, "gradients", "yes", "no", "no", STORED),
    "TorchScript, half precision": (torchscript_half, 5e-3, "gradients", "yes", "no", "no", STORED),
    "torch.export": (export, 1e-5, "gradients", "yes", "no", "no", STORED),
    "safetensors + timm name": (timm_safetensors, 1e-5, "gradients", "yes", "yes", "yes", ""),
    "Lightning checkpoint + timm name": (lightning, 1e-5, "gradients", "yes", "yes", "yes", ""),
    "FILE.py:FACTORY": (factory, 1e-5, "gradients", "yes", "yes", "yes", ""),
    "torch function": (torch_function, 1e-5, "gradients", "yes", "no", "no", CALLED),
    "MAITE model": (maite, 1e-4, "black box", "no", "no", "no", OBJECT),
    "HTTP, as a function": (http, 1e-5, "black box", "no", "no", "no", CALLED),
}  # fmt: skip
COLUMNS = ("predict", "attack", "explain in pixels", "CAM", "features")
REFUSED = "why no CAM and no features"


@pytest.fixture(scope="module", params=list(FORMATS))
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    name = request.param
    if name.startswith("ONNX"):
        pytest.importorskip("onnx2torch", reason="needs counterlens[onnx]")
    folder = tmp_path_factory.mktemp("format")
    return name, *FORMATS[name][0](folder)


def pixels(classifier: Classifier, n: int = 4) -> Tensor:
    """Whole grey levels, so that a model of uint8 pixels sees the same images."""
    shape = (n, 3, *classifier.preprocess.size)
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, 256, shape, generator=generator) / 255


def test_logits_are_those_of_the_network(opened) -> None:
    name, classifier, net = opened
    x = pixels(classifier)
    with torch.no_grad():
        ours, theirs = classifier(x), net.eval()(x)
    if name == "MAITE model":  # log-probabilities: the same up to a number per image
        theirs = theirs.log_softmax(1)
    assert classifier.classes in (NAMES, ("0", "1", "2"))
    assert (ours - theirs).abs().max() <= FORMATS[name][1]


def test_attacks_have_gradients_or_say_that_they_have_none(opened) -> None:
    name, classifier, net = opened
    x = pixels(classifier)
    if FORMATS[name][2] == "black box":
        with pytest.raises(Exception, match=r"does not require grad|gradient"):
            torch.autograd.grad(classifier(x.requires_grad_()).sum(), x)
        return
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    (ours,) = torch.autograd.grad(classifier(a)[:, 1].sum(), a)
    (theirs,) = torch.autograd.grad(net(b)[:, 1].sum(), b)
    assert (ours - theirs).abs().max() <= 0.05 * theirs.abs().max()
    y = classifier(x).argmax(1)
    raised = pgd(lambda z: -margin(classifier, y)(z), x, Ball("l2", 1.0), steps=3)
    assert (raised.scores >= -margin(classifier, y)(x) - 1e-6).all()


@pytest.mark.parametrize(
    "make", [onnx_int8, onnx_int8_dynamic, maite], ids=lambda make: make.__name__
)
def test_a_black_box_is_attacked_by_square_alone(make: Make, tmp_path: Path) -> None:
    if make is not maite:
        pytest.importorskip("onnx2torch", reason="needs counterlens[onnx]")
    classifier, _ = make(tmp_path)
    x = pixels(classifier, 2)
    y = classifier(x).argmax(1)
    found = cl.robust(classifier, x, y, Ball("linf", 0.2), version="fast")
    assert found.trust.verdict == "do not quote"


def test_layers_can_be_looked_into_or_not_and_the_doctor_says_so(opened) -> None:
    name, classifier, net = opened
    *_, pixel, cam, inside, why = FORMATS[name]
    x = pixels(classifier, 2)
    can = {"CAM": cam, "features": inside}
    for what, work in (("CAM", lambda: cam_layer(classifier)),
                       ("features", lambda: features(classifier, x))):  # fmt: skip
        if can[what] == "yes":
            work()
        else:
            with pytest.raises(InputError, match=re.escape(f"{why}. Give the network itself")):
                work()
    if inside == "yes" and isinstance(net, Net):
        expected = net.body(x).mean((2, 3))
        assert (features(classifier, x) - expected).abs().max() < 5e-3
    with torch.no_grad():
        reach = gradients(classifier, x).status == "ok"
        told = uses(classifier, x, gradients=reach).found
    assert f"counterfactuals in pixels: {pixel}" in told
    assert f"last-layer repair: {inside}" in told
    assert f"CAM: {cam}" in told


def test_counterfactuals_in_pixels_are_made_or_refused_in_one_line(opened, tmp_path: Path) -> None:
    name, classifier, _ = opened
    picture = (pixels(classifier)[0].permute(1, 2, 0) * 255).round().byte().numpy()
    wanted = 1 - int(classifier(pixels(classifier)[:1]).argmax()) % 2
    keywords = {"steps": 1, "quiet": True, "out": tmp_path / "run"}
    if FORMATS[name][3] == "yes":
        made = cl.explain(classifier, picture, target=wanted, **keywords)
        assert made.images("counterfactuals") or made.images()
        return
    with pytest.raises(InputError, match="no gradient of the model reaches the pixels"):
        cl.explain(classifier, picture, target=wanted, **keywords)


def test_the_page_has_this_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    head = f"| format | {' | '.join((*COLUMNS, REFUSED))} |"
    assert head in text
    rows = re.findall(r"^\| ([^|]+) \| (.+) \|$", text.split(head)[1].split("\n\n")[0], re.M)
    shown = {
        name.strip("` "): tuple(cells.split(" | ")) for name, cells in rows if "---" not in name
    }
    assert shown == {name: ("yes", *row[2:6], row[6] or "–") for name, row in FORMATS.items()}


def test_nothing_of_a_checkpoint_of_lightning_is_run(tmp_path: Path) -> None:
    """A hyper-parameter whose reduction writes a file; torch's own reading would refuse it all."""

    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.write_text, (tmp_path / "harm", "x"))

    net, _ = _timm()
    stored = {
        "pytorch-lightning_version": "2.5.0",
        "state_dict": {f"model.{key}": value for key, value in net.state_dict().items()},
        "hyper_parameters": {"x": Harm()},
    }
    torch.save(stored, tmp_path / "n.ckpt")
    load(f"timm:resnet10t@{tmp_path / 'n.ckpt'}", device="cpu")
    assert not (tmp_path / "harm").exists()


def test_statistics_beside_a_file_of_uint8_pixels_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="needs counterlens[onnx]")
    to_onnx(Net(scale=1 / 255), tmp_path / "n.onnx", (batch() * 255).to(torch.uint8))
    (tmp_path / "n.onnx.json").write_text(json.dumps({"mean": [0.5] * 3, "size": SIDE}))
    with pytest.raises(InputError, match="takes uint8 pixels, so it normalises them itself"):
        load(f"onnx:{tmp_path / 'n.onnx'}", device="cpu")
