"""Run folders, checkpoints and frozen sets written by an earlier version open today.

`earlier_runs.zip` holds rows of `tools/golden.py` as commit ac05a65 wrote them: an audit with a
release gate, a training with its checkpoint, the logits of an audit of that checkpoint, and a
frozen set; without reports. Oracle: what that version wrote.
"""

import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import counterlens as cl
from counterlens.predictions import predict
from counterlens.runs import stored_logits
from counterlens.workflows.report import report

STORED = Path(__file__).with_name("earlier_runs.zip")


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("earlier")
    with zipfile.ZipFile(STORED) as archive:
        archive.extractall(folder)
    return folder


def test_an_audit_opens_is_rendered_and_compared(earlier: Path, tmp_path: Path) -> None:
    folder = earlier / "audit-gate"
    result = cl.open_result(folder)
    stored = json.loads((folder / "result.json").read_text(encoding="utf-8"))["numbers"]
    assert set(result.numbers) == set(stored)
    assert result.numbers["accuracy.top1"].value == stored["accuracy.top1"]["value"]
    (logits,) = stored_logits(result.run).values()
    right = (np.asarray(logits.logits).argmax(1) == logits.labels).mean()
    assert right == pytest.approx(stored["accuracy.top1"]["value"])
    assert not result.report.exists()  # reports are not stored: `report` renders them
    report(folder)
    text = result.report.read_text(encoding="utf-8")
    assert "Accuracy" in text and "accuracy.top1&gt;=0.999" in text
    again = shutil.copytree(folder, tmp_path / "again")
    both = cl.compare(folder, again, out=tmp_path / "both", quiet=True)
    assert both.numbers["parity.same_answer"].value == 1
    assert both.numbers["flips.negative"].value == 0


def test_a_checkpoint_gives_the_logits_it_gave(earlier: Path) -> None:
    model = cl.load(str(earlier / "train-plain" / "model"))
    images = cl.open_set("sample:cifar10", limit=60)
    z = predict(model, images, workers=0, progress=False)
    facts = json.loads((earlier / "audit-trained/logits/cifar10.json").read_text(encoding="utf-8"))
    rows = [z.ids.index(i) for i in facts["ids"]]
    before = torch.from_numpy(np.load(earlier / "audit-trained/logits/cifar10.npy"))
    torch.testing.assert_close(z.logits[rows], before, rtol=1e-4, atol=1e-4)
    assert cl.open_result(earlier / "train-plain").numbers


def test_a_frozen_set_opens_with_its_labels(earlier: Path) -> None:
    folder = earlier / "curate-freeze"
    card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    lines = (folder / "images.jsonl").read_text(encoding="utf-8").splitlines()
    images = cl.open_set(str(folder))
    assert len(images) == len(lines) == 5
    names = [images.classes[int(k)] for k in images.labels]
    assert sorted(names) == sorted(json.loads(line)["label"] for line in lines)
    assert card["schema"] == "counterlens-set/1" and images[0][0].ndim == 3
