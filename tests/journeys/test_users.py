"""Three users' models, each from the doctor to the report by commands alone.

The images are made by code and the networks are written by hand, so that the truth is known: grey
16-bit pictures with a bright spot or none, pictures that show any of three colours, and pictures of
one of three colours.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from journeys.command import Command

SIDE = 32
COLOURS = ("red", "green", "blue")
FACTORY = '''
import torch
from torch import nn


class Colours(nn.Module):
    """Logit k is the mean of channel k, scaled."""

    input_size = {side}
    classes = {classes!r}
    multilabel = {multilabel}

    def __init__(self):
        super().__init__()
        self.pool, self.flat = nn.AdaptiveAvgPool2d(1), nn.Flatten()
        self.head = nn.Linear(3, 3)
        self.head.weight.data = 12 * torch.eye(3)
        self.head.bias.data = torch.full((3,), -6.0)

    def forward(self, x):
        return self.head(self.flat(self.pool(x)))


def make():
    return Colours().eval()
'''


class Spot(nn.Module):
    """One logit: the brightest mean over 4 × 4 pixels, against a threshold."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 4, stride=2, bias=False)
        self.conv.weight.data.fill_(1 / 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 60 * (self.conv(x).amax((1, 2, 3))[:, None] - 0.02)


def chest_pictures(root: Path) -> None:
    """Grey of 16 bits whose whole range lies in the lowest 2,600 of 65,535 levels."""
    rng = np.random.default_rng(0)
    for i in range(60):
        pixels = rng.integers(0, 650, (SIDE, SIDE)).astype(np.float64)
        ill = i % 2 == 1
        if ill:
            top, left = rng.integers(4, SIDE - 10, 2)
            pixels[top : top + 6, left : left + 6] += 1950
        folder = root / ("ill" if ill else "healthy")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint16)).save(folder / f"{i}.png")


def colour_pictures(root: Path, shown: np.ndarray) -> list[str]:
    rng = np.random.default_rng(1)
    names = []
    for i, colours in enumerate(shown):
        pixels = np.where(colours, 215, 40) + rng.integers(-25, 25, (SIDE, SIDE, 3))
        names.append(f"{i}.png")
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / names[-1])
    return names


def findings(out: str) -> dict[str, str]:
    return {row["check"]: row["status"] for row in json.loads(out)}


def test_a_one_logit_export_on_grey_pictures_of_16_bits(counterlens: Command) -> None:
    at = counterlens.at
    pytest.importorskip("onnxruntime", reason="needs counterlens[onnx]")
    pytest.importorskip("onnx2torch", reason="needs counterlens[onnx]")
    chest_pictures(at / "chest")
    path = at / "spot.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Spot().eval(), (torch.rand(2, 1, SIDE, SIDE),), str(path), dynamo=False,
            input_names=["x"], dynamic_axes={"x": {0: "n"}},
        )  # fmt: skip
    facts = {"classes": ["healthy", "ill"], "size": SIDE, "channels": 1}
    (at / "spot.onnx.json").write_text(json.dumps(facts))
    data = str(at / "chest")
    examined = counterlens("doctor", f"onnx:{path}", data, "--json")
    assert examined.code == 0, examined.err
    assert "fail" not in findings(examined.out).values()
    done = counterlens(
        "audit", f"onnx:{path}", data, "--out", "run", "--attack", "linf:1/255",
        "--attack-version", "fast", "--attack-points", "6", "--require", "accuracy.top1>=0.9",
    )  # fmt: skip
    assert done.code == 0, done.err
    result = json.loads((at / "run" / "result.json").read_text())["numbers"]
    # 16 bits over 255: the spot is about 8 of 255 grey levels above, enough for the threshold
    assert result["accuracy.top1"]["value"] > 0.9
    assert result["robust.linf-1_255.accuracy"]["n"] == 6
    assert "healthy" in (at / "run" / "report.html").read_text()


def test_several_labels_per_picture(counterlens: Command) -> None:
    at = counterlens.at
    shown = np.random.default_rng(0).random((40, 3)) < 0.5
    names = colour_pictures(at, shown)
    rows = ["path,labels"]
    for name, colours in zip(names, shown, strict=True):
        rows.append(f"{name},{'|'.join(c for c, one in zip(COLOURS, colours, strict=True) if one)}")
    (at / "several.csv").write_text("\n".join(rows))
    text = FACTORY.format(side=SIDE, classes=COLOURS, multilabel=True)
    (at / "mine.py").write_text(text)
    examined = counterlens("doctor", "mine.py:make", "several.csv", "--json")
    assert examined.code == 0, examined.err
    assert "fail" not in findings(examined.out).values()
    done = counterlens(
        "audit", "mine.py:make", "several.csv", "--out", "run", "--junit", "gates.xml",
        "--require", "label.red.auroc.low>=0.8", "--require", "label.green.accuracy>=1.1",
    )  # fmt: skip
    assert done.code == 1, done.err
    numbers = json.loads((at / "run" / "result.json").read_text())["numbers"]
    assert numbers["multilabel.exact_match"]["value"] == 1
    assert (at / "gates.xml").read_text().count("<failure") == 1
    assert "Label by label" in (at / "run" / "report.html").read_text()
    refused = counterlens("explain", "mine.py:make", names[0], "--target", "red")
    assert refused.code == 2
    assert "one_label" in refused.err


def test_a_model_of_three_classes(counterlens: Command) -> None:
    at = counterlens.at
    for k, colour in enumerate(COLOURS):
        (at / "colours" / colour).mkdir(parents=True)
        colour_pictures(at / "colours" / colour, np.tile(np.eye(3, dtype=bool)[k], (12, 1)))
    text = FACTORY.format(side=SIDE, classes=COLOURS, multilabel=False)
    (at / "mine.py").write_text(text)
    examined = counterlens("doctor", "mine.py:make", "colours", "--json")
    assert examined.code == 0, examined.err
    done = counterlens("audit", "mine.py:make", "colours", "--out", "run", "--ood", "noise:uniform")
    assert done.code == 0, done.err
    numbers = json.loads((at / "run" / "result.json").read_text())["numbers"]
    assert numbers["accuracy.top1"]["value"] == 1
    written = counterlens("evidence", "run", "--purpose", "sorting")
    assert written.code == 0, written.err
    assert (at / "run" / "evidence.pdf").stat().st_size > 5_000
    assert "## 10. Versions and hashes" in Path(written.last).read_text()
