"""Audits of models without gradients, and of models that attack each other."""

from pathlib import Path

import numpy as np
import pytest
import torch

from counterlens.data import write_pack
from counterlens.errors import InputError
from counterlens.workflows._shared.result import Result
from counterlens.workflows.audit.run import audit

FACTORIES = """
import torch
from torch import nn
from counterlens import Classifier, Preprocess

NAMES = ("up", "down", "left")


class Net(nn.Module):
    def __init__(self, seed=0, classes=3):
        super().__init__()
        rng = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(192, classes, generator=rng) / 4)

    def forward(self, x):
        return (x - 0.5).flatten(1) @ self.weight


class Detached(Net):
    def forward(self, x):
        return super().forward(x).detach()


class Rounded(Net):
    def forward(self, x):
        return super().forward((x * 32).round() / 32)


def wrap(net, names=NAMES, side=8):
    return Classifier(net.eval(), names, preprocess=Preprocess((side, side)), name="net")


def honest(): return wrap(Net())
def detached(): return wrap(Detached())
def rounded(): return wrap(Rounded())
def turned(): return wrap(Turned(), ("left", "up", "down"))
def other(): return wrap(Net(classes=2), ("red", "blue"))


class Turned(Net):
    def forward(self, x):
        return super().forward(x)[:, [2, 0, 1]]
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Path:
    """A file of factories and pictures with the honest model's own answers, near its boundary."""
    monkeypatch.setattr("counterlens.search.ensemble.protocols.QUERIES", 60)
    monkeypatch.setattr("counterlens.search.ensemble.extremes.QUERIES", 60)
    (tmp_path / "nets.py").write_text(FACTORIES, encoding="utf-8")
    rng = np.random.default_rng(0)
    pictures = rng.integers(118, 138, (40, 8, 8, 3), dtype=np.uint8)
    weight = torch.randn(192, 3, generator=torch.Generator().manual_seed(0)) / 4
    x = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255
    labels = ((x - 0.5).flatten(1) @ weight).argmax(1).tolist()
    write_pack(tmp_path / "set.npz", list(pictures), labels, ("up", "down", "left"))
    return tmp_path


def audited(made: Path, *models: str, **options: object) -> Result:
    specs = [f"{made}/nets.py:{model}" for model in models]
    settings = {"attack_version": "fast", "device": "cpu", "quiet": True, "anyway": True}
    settings |= {"out": made / "run", "attack_points": 20, "limit": 40}
    return audit(specs, f"pack:{made}/set.npz", **(settings | options))  # type: ignore[arg-type]


def stages(run: object) -> list[str]:
    return [row["stage"] for row in run.table("attack_stages")]  # type: ignore[attr-defined]


def test_a_model_without_gradients_is_audited_and_its_robust_number_is_not_quoted(made: Path):
    run = audited(
        made, "detached", attack=["l2:0.1"], ood=["noise:uniform"], ood_attack="l2:0.1",
        anyway=False,
    )  # fmt: skip
    assert run.numbers["accuracy.top1"].value == 1.0
    assert {"calibration.ece", "ood.uniform.auroc"} <= set(run.numbers)
    robust = run.numbers["robust.l2-0.1.accuracy"]
    assert robust.trust["verdict"] == "do not quote" and stages(run) == ["square"]
    assert "Square alone" in robust.protocol
    (finding,) = (row for row in run.table("doctor") if row["check"] == "gradients")
    assert finding["status"] == "warn" and "need none" in finding["found"]


def test_audited_models_attack_each_other(made: Path):
    masked, honest = audited(made, "rounded", "honest", attack=["l2:0.1"]).parts
    key = "robust.l2-0.1.accuracy"
    assert stages(masked)[-1] == "transfer-honest" and stages(honest)[-1] == "transfer-rounded"
    alone = audited(made, "rounded", attack=["l2:0.1"], out=made / "alone")
    assert masked.numbers[key].value < alone.numbers[key].value - 0.2
    assert any("masked" in reason for reason in masked.numbers[key].trust["reasons"])


def test_a_surrogate_may_have_its_classes_in_another_order(made: Path):
    spec = f"{made}/nets.py:turned"
    run = audited(made, "rounded", attack=["l2:0.1"], surrogate=[spec])
    transfer = run.table("attack_stages")[-1]
    assert transfer["stage"] == "transfer-turned" and transfer["broken"] >= 5


def test_a_surrogate_of_other_classes_or_without_gradients_is_refused(made: Path):
    for name, why in (("other", "classes"), ("detached", "no gradients")):
        with pytest.raises(InputError, match=why):
            audited(
                made, "honest", attack=["l2:0.1"], surrogate=[f"{made}/nets.py:{name}"],
                out=made / name,
            )  # fmt: skip
    with pytest.raises(InputError, match="without an attack"):
        audited(made, "honest", surrogate=[f"{made}/nets.py:rounded"])
    first, second = audited(made, "honest", "detached", attack=["l2:0.1"], out=made / "two").parts
    (row,) = first.table("surrogates")
    assert row["used"] == "no" and "no gradients" in row["why"]
    assert stages(second) == ["square", "transfer-honest"]
