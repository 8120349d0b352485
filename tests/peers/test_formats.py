"""Models as Lightning, MAITE and torch's newer ONNX exporter make them, with the real libraries.

Oracle: the network in Python before it was stored.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import counterlens as cl
from counterlens.models import load
from counterlens.models.parts import cam_layer, features

pytestmark = pytest.mark.filterwarnings("ignore")
NAMES = ("a", "b", "c")


def network() -> nn.Module:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(8, 3)).eval()


def test_a_checkpoint_that_lightning_wrote(tmp_path: Path) -> None:
    """A trainer's own file, with hyper-parameters and the state of a metric in it."""
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    import timm
    import torchmetrics

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, folder: Path) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.model = timm.create_model("resnet10t", num_classes=3)
            self.seen = torchmetrics.MeanMetric()
            self.seen.persistent(True)

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            loss = self.model(batch[0]).logsumexp(1).mean()
            self.seen.update(loss.detach())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

    module = Module(tmp_path / "photos")
    images = torch.utils.data.TensorDataset(torch.rand(4, 3, 64, 64))
    trainer = lightning.Trainer(
        max_epochs=1, logger=False, accelerator="cpu", enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(images, batch_size=4))
    trainer.save_checkpoint(tmp_path / "n.ckpt")
    stored = torch.load(tmp_path / "n.ckpt", weights_only=False)
    assert "seen.mean_value" in stored["state_dict"]
    assert stored["hyper_parameters"]
    classifier = load(f"timm:resnet10t@{tmp_path / 'n.ckpt'}", device="cpu")
    x = torch.rand(2, 3, *classifier.preprocess.size)
    expected = module.eval().model((x - classifier.mean) / classifier.std)
    assert torch.allclose(classifier(x), expected, atol=1e-5)


def test_objects_of_maite(tmp_path: Path) -> None:
    protocols = pytest.importorskip(
        "maite.protocols.image_classification", reason="maite is not installed"
    )
    net = network()
    pictures = np.random.default_rng(0).random((12, 3, 16, 16), np.float32)
    with torch.no_grad():
        answers = net(torch.from_numpy(pictures)).argmax(1).numpy()

    class Model:
        metadata = {"id": "theirs", "index2label": dict(enumerate(NAMES))}  # noqa: RUF012

        def __call__(self, batch):  # type: ignore[no-untyped-def]
            with torch.no_grad():
                return list(net(torch.stack([torch.as_tensor(x) for x in batch])).softmax(1))

    class Dataset:
        metadata = {"id": "set", "index2label": dict(enumerate(NAMES))}  # noqa: RUF012

        def __len__(self) -> int:
            return len(pictures)

        def __getitem__(self, i: int):  # type: ignore[no-untyped-def]
            return pictures[i], np.eye(3)[answers[i]], {"id": i}

    assert isinstance(Model(), protocols.Model)
    assert isinstance(Dataset(), protocols.Dataset)
    from maite.tasks import predict

    theirs, _ = predict(model=Model(), dataset=Dataset(), batch_size=4)
    classifier = cl.as_classifier(Model(), size=16, device="cpu")
    rows = torch.cat([torch.stack(list(map(torch.as_tensor, part))) for part in theirs])
    ours = classifier(torch.from_numpy(pictures)).softmax(1)
    assert torch.allclose(ours, rows.float(), atol=1e-5)
    result = cl.audit(classifier, Dataset(), out=tmp_path / "run", quiet=True, anyway=True)
    assert result.numbers["accuracy.top1"].n == 12
    assert result.numbers["accuracy.top1"].value > 0.9  # 8 bits may turn a near tie


def test_a_graph_of_the_newer_exporter(tmp_path: Path) -> None:
    """torch.onnx.export as it is without dynamo=False: opset 18 or newer, weights beside it."""
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    pytest.importorskip("onnx2torch", reason="needs counterlens[onnx]")
    net = network()
    shapes = ({0: torch.export.Dim("n")},)
    torch.onnx.export(
        net, (torch.rand(2, 3, 16, 16),), str(tmp_path / "n.onnx"), dynamo=True,
        dynamic_shapes=shapes, verbose=False,
    )  # fmt: skip
    facts = {"classes": list(NAMES), "size": 16}
    (tmp_path / "n.onnx.json").write_text(json.dumps(facts))
    classifier = load(f"onnx:{tmp_path / 'n.onnx'}", device="cpu")
    x = torch.rand(5, 3, 16, 16)
    assert (classifier(x) - net(x)).abs().max() <= 1e-4
    assert classifier.card["gradients"].startswith("by onnx2torch")
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    (ours,) = torch.autograd.grad(classifier(a)[:, 1].sum(), a)
    (theirs,) = torch.autograd.grad(net(b)[:, 1].sum(), b)
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert features(classifier, x).shape == (5, 8)
    assert cam_layer(classifier)


def test_a_float16_graph_of_the_converter(tmp_path: Path) -> None:
    float16 = pytest.importorskip("onnxconverter_common.float16", reason="not installed")
    import onnx

    net = network()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (torch.rand(2, 3, 16, 16),), str(tmp_path / "n.onnx"), dynamo=False,
            input_names=["x"], dynamic_axes={"x": {0: "n"}},
        )  # fmt: skip
    for keep in (False, True):  # whether the input stays float32
        small = float16.convert_float_to_float16(onnx.load(tmp_path / "n.onnx"), keep_io_types=keep)
        path = tmp_path / f"half-{keep}.onnx"
        onnx.save(small, path)
        path.with_name(path.name + ".json").write_text(json.dumps({"size": 16}))
        classifier = load(f"onnx:{path}", device="cpu")
        x = torch.rand(3, 3, 16, 16)
        assert (classifier(x) - net(x)).abs().max() <= 5e-3
