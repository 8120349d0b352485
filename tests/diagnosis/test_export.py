"""Exports and their faults: a trained network, ONNX written by torch, one seeded fault at a time.

The whole table of faults is benchmarks/export_faults.py; here one of each kind.
"""

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import counterlens as cl
from counterlens.classifier import Classifier
from counterlens.data import open_set
from counterlens.diagnosis.export import export
from counterlens.images import resize
from counterlens.models import load

MODEL = "zoo:cifar10-plain-small"


@pytest.fixture(scope="module")
def reference() -> Classifier:
    return load(MODEL, device="cpu")


@pytest.fixture(scope="module")
def pictures() -> list[np.ndarray]:
    images = open_set("sample:cifar10", limit=24, seed=1)
    return [resize(images.read(i), (80, 80), "bicubic") for i in range(len(images))]


class Baked(nn.Module):
    """The network with its normalisation inside, and a change of it."""

    def __init__(self, classifier: Classifier, change) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.net, self.change = classifier.net, change
        self.mean, self.std = classifier.mean, classifier.std

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(self.change(x, self.mean, self.std))


def stored(reference: Classifier, change, path: Path, **facts: object) -> Classifier:  # type: ignore[no-untyped-def]
    pytest.importorskip("onnxruntime", reason="needs counterlens[onnx]")
    pytest.importorskip("onnx", reason="needs counterlens[onnx]")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Baked(reference, change).eval(), (torch.rand(2, 3, 32, 32),), str(path), dynamo=False,
            input_names=["x"], dynamic_axes={"x": {0: "n"}},
        )  # fmt: skip
    own = reference.preprocess
    known = {"mean": [0] * 3, "std": [1] * 3, "size": 32, "crop": own.crop,
             "interpolation": own.interpolation, "classes": list(reference.classes)}  # fmt: skip
    path.with_name(path.name + ".json").write_text(json.dumps({**known, **facts}))
    return load(f"onnx:{path}", device="cpu")


def right(x, m, s):  # type: ignore[no-untyped-def]
    return (x - m) / s


@pytest.mark.parametrize(
    ("change", "facts", "status", "words"),
    [
        (right, {}, "ok", "0 of 24 answers differ"),
        (lambda x, m, s: (x.flip(1) - m) / s, {}, "fail", "it has channels in BGR order"),
        (lambda x, m, s: (x - 0.5) / 0.5, {}, "fail", "it has mean and std of 0.5"),
        (lambda x, m, s: ((x - m) / s).clamp(0, 1), {}, "fail", r"clipped to \[0, 1\]"),
        (right, {"interpolation": "nearest"}, "fail", "pictures prepared by nearest"),
    ],
    ids=["none", "BGR", "mean", "clipped", "resize"],
)
def test_the_fault_of_an_export_is_named(
    change, facts, status, words, reference, pictures, tmp_path
):  # type: ignore[no-untyped-def]
    exported = stored(reference, change, tmp_path / "n.onnx", **facts)
    finding = export(exported, reference, pictures)
    assert finding.status == status, finding
    assert re.search(words, finding.found + finding.fix)
    if status == "ok":
        largest = float(re.search(r"average, (\S+) at most", finding.found)[1])
        assert largest < 1e-4


def test_other_weights_are_not_taken_for_a_fault_of_the_export(reference, pictures) -> None:
    other = load(MODEL, device="cpu")
    torch.manual_seed(0)
    for weight in other.parameters():
        weight.data = torch.randn_like(weight) * weight.std()
    finding = export(other, reference, pictures)
    assert finding.status == "fail"
    assert "other weights, or another network" in finding.found


def test_another_trained_network_is_not_taken_for_a_quantisation(reference, pictures) -> None:
    finding = export(load("zoo:cifar10-ratio-small", device="cpu"), reference, pictures)
    assert finding.status == "warn"
    assert "other weights" in finding.found
    assert "quantisation" not in finding.found + finding.fix


def test_the_doctor_and_compare_are_asked_by_their_users(tmp_path: Path, reference) -> None:
    swapped = Classifier(
        Baked(reference, lambda x, m, s: (x.flip(1) - m) / s), reference.classes,
        preprocess=reference.preprocess, name="swapped",
    )  # fmt: skip
    result = cl.doctor(
        swapped, "sample:cifar10", exported_from=MODEL, out=tmp_path / "d", quiet=True,
        device="cpu",
    )  # fmt: skip
    (row,) = [row for row in result.table("doctor") if row["check"] == "export"]
    assert "channels in BGR order" in row["found"]

    runs = [
        cl.audit(one, "sample:cifar10", limit=60, quiet=True, device="cpu", out=tmp_path / name)
        for one, name in ((MODEL, "a"), (swapped, "b"), (reference, "c"))
    ]
    both = cl.compare(runs[0], runs[1], out=tmp_path / "both", quiet=True)
    kept = [np.load(run.folder / "logits" / "cifar10.npy").astype(np.float64) for run in runs]
    same = (kept[0].argmax(1) == kept[1].argmax(1)).mean()
    gap = np.abs(kept[0] - kept[1]) / kept[0].std()
    assert both.numbers["parity.same_answer"].value == pytest.approx(same)
    assert both.numbers["parity.logit_gap"].value == pytest.approx(gap.mean())
    assert both.numbers["parity.logit_gap_max"].value == pytest.approx(gap.max())
    worst = both.table("parity")[0]
    place = json.loads((runs[0].folder / "logits/cifar10.json").read_text())["ids"]
    assert place[int(gap.max(1).argmax())] == worst["image"]
    assert "Parity of logits" in both.report.read_text()
    equal = cl.compare(runs[0], runs[2], out=tmp_path / "equal", quiet=True)
    assert equal.numbers["parity.logit_gap_max"].value == 0
    assert equal.table("parity") == []
