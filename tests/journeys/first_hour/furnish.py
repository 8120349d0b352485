"""What a new user brings: pictures in folders and models of several kinds.

The pictures are shipped samples. Of the models, `own.py` and `binary.py` have the trained weights
of zoo:cifar10-plain-small, `grey.py` is a linear classifier trained here on 1,000 digits. The
ImageNet classifier and the one of the transformers library have random weights, since no real
ones can be had without a network: they show that the path works, and say nothing of accuracy.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from counterlens.data import open_set
from counterlens.models import load

EACH = 6
"""Pictures of a class."""
OWN = """
import counterlens as cl


def make():
    return cl.load("zoo:cifar10-plain-small")
"""
BINARY = '''
import torch
import counterlens as cl


class Dog(torch.nn.Module):
    """One logit: a dog against a cat, of a network of ten classes."""

    input_size = 32
    classes = ["cat", "dog"]

    def __init__(self):
        super().__init__()
        self.net = cl.load("zoo:cifar10-plain-small")

    def forward(self, x):
        logits = self.net(x)
        return logits[:, 5:6] - logits[:, 3:4]


def make():
    return Dog().eval()
'''
GREY = """
from pathlib import Path

import torch
from safetensors.torch import load_file


def make():
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(28 * 28, 10))
    net.load_state_dict(load_file(Path(__file__).with_name("grey.safetensors")))
    net.input_size = (1, 28, 28)
    return net.eval()
"""
IMAGENET = ("tench", "church", "parachute", "golf ball", "goldfish", "lion", "tiger", "zebra",
            "pizza", "castle")  # fmt: skip


def furnish(at: Path, *, all_models: bool = True) -> None:
    """Everything the hour needs, into one folder.

    Args:
        all_models: else pictures, tables and `own.py` alone.
    """
    cifar = open_set("sample:cifar10")
    _folders(at / "photos", cifar, cifar.classes)
    _folders(
        at / "pets", cifar, [n if n in ("cat", "dog") else "" for n in cifar.classes], 3 * EACH
    )
    _folders(at / "things", cifar, IMAGENET, 2)
    _table(at)
    if not all_models:
        (at / "own.py").write_text(OWN, encoding="utf-8")
        return
    for name, text in (("own", OWN), ("binary", BINARY), ("grey", GREY)):
        (at / f"{name}.py").write_text(text, encoding="utf-8")
    _digits(at)
    _exports(at)
    _random_models(at)


def _folders(root: Path, images: object, names: list[str] | tuple[str, ...], each: int = EACH):
    for k, name in enumerate(names):
        if not name:
            continue
        (root / name).mkdir(parents=True)
        rows = np.flatnonzero(images.labels == k)[:each]
        for place, row in enumerate(rows):
            Image.fromarray(images.read(int(row))).save(root / name / f"{place}.png")


def _table(at: Path) -> None:
    """photos.csv: the pictures with a place each, drawn at random."""
    rng = np.random.default_rng(0)
    rows = ["path,label,place"]
    for path in sorted((at / "photos").rglob("*.png")):
        place = rng.choice(["indoors", "outdoors"])
        rows.append(f"{path.relative_to(at)},{path.parent.name},{place}")
    (at / "photos.csv").write_text("\n".join(rows), encoding="utf-8")
    (at / "fix.csv").write_text("\n".join([rows[0], *rows[1::2]]), encoding="utf-8")
    (at / "check.csv").write_text("\n".join([rows[0], *rows[2::2]]), encoding="utf-8")


def _digits(at: Path) -> None:
    from safetensors.numpy import save_file
    from sklearn.linear_model import LogisticRegression

    train, test = open_set("sample:mnist-train", limit=1000), open_set("sample:mnist", limit=100)
    x = np.stack([train.read(i)[..., 0].ravel() for i in range(len(train))]) / 255
    fitted = LogisticRegression(max_iter=200).fit(x, train.labels)
    weights = {"1.weight": fitted.coef_, "1.bias": fitted.intercept_}
    save_file({k: v.astype(np.float32) for k, v in weights.items()}, at / "grey.safetensors")
    for i in range(len(test)):
        folder = at / "digits" / str(int(test.labels[i]))
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(test.read(i)[..., 0]).save(folder / f"{i}.png")


def _exports(at: Path) -> None:
    """The own network as TorchScript and, where onnx is installed, as ONNX."""
    whole = load("zoo:cifar10-plain-small").eval()
    facts = json.dumps({"classes": list(whole.classes), "size": 32})
    x = torch.rand(2, 3, 32, 32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(whole, x, check_trace=False).save(str(at / "own.ts"))
        (at / "own.ts.json").write_text(facts)
        try:
            torch.onnx.export(
                whole, (x,), str(at / "own.onnx"), dynamo=False,
                input_names=["x"], dynamic_axes={"x": {0: "n"}},
            )  # fmt: skip
            (at / "own.onnx.json").write_text(facts)
        except ImportError:
            (at / "own.onnx").unlink(missing_ok=True)


def _random_models(at: Path) -> None:
    import timm

    torch.manual_seed(0)
    net: nn.Module = timm.create_model("resnet18", pretrained=False)
    torch.save(net.state_dict(), at / "resnet18.pth")
    try:
        from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessor
    except ImportError:
        return
    names = dict(enumerate(load("zoo:cifar10-plain-small").classes))
    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic",
        id2label=names, label2id={v: k for k, v in names.items()},
    )  # fmt: skip
    ResNetForImageClassification(config).save_pretrained(at / "transformer")
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(at / "transformer")
