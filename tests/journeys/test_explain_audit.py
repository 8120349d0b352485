"""From an audit to its explanation: a chapter in the same report, the audit's results untouched.

Oracles: hashes of every file of the audit before and after; mistakes and nearest images found
again by plain loops over the data.
"""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from counterlens.data import open_set
from counterlens.errors import InputError
from counterlens.images import prepare
from counterlens.models import load
from counterlens.models.parts import features
from counterlens.runs import Run
from counterlens.workflows.audit.run import audit
from counterlens.workflows.explain.run import explain

pytestmark = pytest.mark.usefixtures("one_thread")
MODEL = """
import torch
from torch import nn
from counterlens.classifier import Classifier
from counterlens.types import Preprocess

def build():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(128, 10),
    )
    names = "airplane automobile bird cat deer dog frog horse ship truck".split()
    return Classifier(net, names, preprocess=Preprocess((32, 32)), name="small")
"""
QUICK = {"trust_remote_code": True, "radius": [0.5], "steps": 2, "device": "cpu", "quiet": True}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An audit of a small random model on a few real images."""
    folder = tmp_path_factory.mktemp("audited")
    (folder / "small.py").write_text(MODEL)
    model = f"{folder}/small.py:build"
    run = audit(
        [model], "sample:cifar10", limit=60, anyway=True, out=folder / "audit", device="cpu",
        quiet=True,
    ).run  # fmt: skip
    return run, model


def hashes(folder: Path) -> dict[str, str]:
    files = [p for p in folder.rglob("*") if p.is_file()]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_the_chapter_joins_the_audits_report_and_nothing_is_lost(made):
    run, model = made
    before = hashes(run.folder)
    done = explain(str(run.folder), [], worst=3, **QUICK)
    assert done.run.folder == run.folder / "explained"
    after = hashes(run.folder)
    changed = {name for name in before if after.get(name) != before[name]}
    assert changed == {"report.html"}
    assert all(name.startswith("explained/") for name in after.keys() - before.keys())
    page = (run.folder / "report.html").read_text()
    assert "The worst mistakes, explained" in page and "Class by class" in page
    rows = done.run.table("neighbours")
    assert [row["id"] for row in rows] == list(
        dict.fromkeys(row["id"] for row in done.run.table("counterfactuals"))
    )
    for row in rows:
        assert f"{row['label']} taken for {row['predicted']}" in page
        ways = {
            (one["target"], one["predicted"])
            for one in done.run.table("counterfactuals")
            if one["id"] == row["id"]
        }
        assert ways == {(row["label"], row["predicted"]), (row["predicted"], row["predicted"])}
        mapped = {one["target"] for one in done.run.table("maps") if one["id"] == row["id"]}
        assert mapped == {row["label"], row["predicted"]}
    assert "themselves" in done.run.manifest["neighbours"]  # no other set was known

    again = explain(str(run.folder), [], worst=1, train="sample:cifar10-calibration", **QUICK)
    assert again.run.folder == run.folder / "explained-2"
    assert (run.folder / "explained" / "DONE").is_file()
    assert "training images cifar10-calibration" in (run.folder / "report.html").read_text()
    nearest_are_those_of_a_plain_loop(again.run, model)


def nearest_are_those_of_a_plain_loop(run: Run, model: str) -> None:
    net, pool = load(model, device="cpu"), open_set("sample:cifar10-calibration")
    row = run.table("neighbours")[0]
    data = open_set("sample:cifar10")

    def seen(pixels: list[np.ndarray]) -> np.ndarray:
        x = np.stack([prepare(one, net.preprocess) for one in pixels]).astype(np.float32) / 255
        found = features(net, torch.from_numpy(x)).numpy().astype(np.float64)
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    mine = seen([data.read(list(data.ids).index(row["id"]))])[0]
    cosines = seen([pool.read(i) for i in range(len(pool))]) @ mine
    best = sorted(range(len(pool)), key=lambda i: -cosines[i])[: len(row["nearest"])]
    assert [near["id"] for near in row["nearest"]] == [pool.ids[i] for i in best]
    for near, i in zip(row["nearest"], best, strict=True):
        assert near["cosine"] == pytest.approx(cosines[i], abs=1e-3)
        assert near["label"] == pool.classes[pool.labels[i]]


def test_with_out_the_audit_is_left_alone(made, tmp_path):
    run, _ = made
    before = hashes(run.folder)
    done = explain(str(run.folder), [], worst=1, out=tmp_path / "apart", **QUICK)
    assert hashes(run.folder) == before
    assert "The worst mistakes, explained" in (done.run.folder / "report.html").read_text()


def test_what_is_no_audit_or_has_no_mistakes_is_refused(made, tmp_path):
    run, model = made
    with pytest.raises(InputError, match="worst is 0"):
        explain(str(run.folder), [], worst=0, **QUICK)
    with pytest.raises(InputError, match="folder of an audit"):
        explain(model, ["sample:cifar10#0"], train="sample:cifar10", **QUICK)
    other = Run.create(tmp_path / "other", "train", {})
    with pytest.raises(InputError, match="is no audit"):
        explain(str(other.folder), [], worst=2, **QUICK)
    bare = Run.create(tmp_path / "bare", "audit", {"model": model, "data": "sample:cifar10"})
    with pytest.raises(InputError, match="has no logits"):
        explain(str(bare.folder), [], worst=2, **QUICK)
