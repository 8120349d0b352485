"""OOD scores of an audit, on the shipped models, against its parts called by hand."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from counterlens import metrics
from counterlens.classifier import Classifier
from counterlens.data import open_set
from counterlens.errors import InputError
from counterlens.metrics.intervals.closed_form import delong
from counterlens.metrics.ood_scores import LinearHead, fit
from counterlens.models import load
from counterlens.models.parts import features, head
from counterlens.report.pages.audit import ood_scores as page
from counterlens.workflows.audit.ood.score_attack import ScoreModel
from counterlens.workflows.audit.ood.tables import _mean_number
from counterlens.workflows.audit.run import audit

MODEL, DATA = "zoo:cifar10-plain-small", "sample:cifar10"
GIVEN = {"limit": 60, "quiet": True, "workers": 0}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return audit(
        MODEL,
        DATA,
        calibrate="sample:cifar10-calibration",
        ood=["sample:textures", "noise:uniform"],
        ood_near="textures",
        ood_score="energy,knn,vim",
        out=tmp_path_factory.mktemp("scores") / "run",
        **GIVEN,
    )


@cache
def pooled(spec: str) -> torch.Tensor:
    """Features of a set, from the hook of `features`."""
    model = load(MODEL)
    images = open_set(spec, limit=60, seed=0)
    x = torch.stack([torch.from_numpy(images.read(i)) for i in range(len(images))])
    with torch.no_grad():
        return features(model, x.permute(0, 3, 1, 2).float() / 255)


@cache
def by_hand(name: str, spec: str) -> torch.Tensor:
    """The features of one forward pass of all images, and the score fitted on the others'."""
    model = load(MODEL)
    layer = head(model)
    labels = open_set("sample:cifar10-calibration", limit=60, seed=0).labels
    bank, fresh = pooled("sample:cifar10-calibration"), pooled(spec)
    fitted = fit(
        name,
        bank,
        torch.from_numpy(labels),
        LinearHead(layer.weight.detach().double(), layer.bias.detach().double()),
    )
    return fitted.score(fresh)


@pytest.mark.parametrize("name", ["energy", "knn", "vim"])
def test_each_score_is_the_one_of_its_parts(result, name):
    inside, outside = by_hand(name, DATA), by_hand(name, "sample:textures")
    number = result.numbers[f"ood_score.textures.{name}_auroc"]
    assert number.value == pytest.approx(metrics.auroc(inside, outside), abs=2e-3)
    assert number.low < number.value < number.high
    known = result.numbers[f"ood_score.textures.{name}_aupr_in"].value
    assert known == pytest.approx(metrics.aupr(-outside, -inside), abs=2e-3)


def test_groups_have_the_mean_and_the_best_is_compared_with_all_others(result):
    numbers = result.numbers
    for name in ("energy", "knn", "vim"):
        near, far = (numbers[f"ood_score.{group}.{name}_auroc"].value for group in ("near", "far"))
        assert near == pytest.approx(numbers[f"ood_score.textures.{name}_auroc"].value)
        assert far == pytest.approx(numbers[f"ood_score.uniform.{name}_auroc"].value)
        assert numbers[f"ood_score.all.{name}_auroc"].value == pytest.approx((near + far) / 2)
    rows = [row for row in result.table("ood_score_pairs") if row["set"] == "all"]
    assert len(rows) == 2
    means = {n: numbers[f"ood_score.all.{n}_auroc"].value for n in ("energy", "knn", "vim")}
    for row in rows:
        assert row["best"] == max(means, key=lambda n: means[n])
        assert row["difference"] == pytest.approx(means[row["best"]] - means[row["other"]])
        assert row["low"] <= row["difference"] <= row["high"]


def test_a_mean_over_perfect_sets_is_not_certain():
    known, unknown = np.arange(60.0) + 100, np.arange(60.0)
    number = _mean_number((known, unknown, unknown), ["a", "b"], 0)
    assert number.value == number.high == 1.0
    assert number.low == pytest.approx(delong(known, unknown)[0]) and number.low < 0.95


def test_the_report_names_the_winner_and_the_convention(result):
    text = result.report.read_text(encoding="utf-8")
    assert "is highest" in text and "OpenOOD 1.5 has the unknown positive" in text
    assert page.blocks(result.run)[0].caption == "OOD scores: AUROC"


@pytest.mark.slow
def test_a_score_under_attack_is_an_upper_bound_with_a_verdict(tmp_path):
    found = audit(
        MODEL,
        DATA,
        calibrate="sample:cifar10-calibration",
        ood=["sample:textures"],
        ood_score="energy",
        ood_attack="l2:0.5",
        attack_points=4,
        budget="1s",
        out=tmp_path / "run",
        **GIVEN,
    )
    worst = found.numbers["ood_score.textures.energy_worst_auroc"]
    assert worst.trust is not None and worst.bound == "upper" and worst.n == 4


def test_the_attacked_model_has_the_gradient_of_its_score():
    model = load(MODEL)
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    layer = head(model)
    bank = torch.rand(40, layer.in_features, generator=torch.Generator().manual_seed(1))
    numbers = LinearHead(layer.weight.detach().double(), layer.bias.detach().double())
    fitted = fit("knn", bank, torch.zeros(40, dtype=torch.int64), numbers)
    wrapped = ScoreModel(model, fitted, None, 0.5, 2.0)
    ours = torch.autograd.grad(wrapped(x)[:, 0].sum(), x)[0]
    theirs = torch.autograd.grad(((fitted.score(features(model, x)) - 0.5) / 2).sum(), x)[0]
    torch.testing.assert_close(ours, theirs.to(ours))


class NoHead(nn.Module):
    """Ends in a sum over positions: no linear layer gives its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 10, 3)

    def forward(self, x):
        return self.conv(x).mean((2, 3))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"ood_score": "enrgy"}, "did you mean energy"),
        ({"ood_score": "knn", "ood_near": "texture"}, "'texture' is none of the OOD sets"),
        ({"ood_near": "textures"}, "without OOD scores"),
        ({"ood_score": "knn", "ood": []}, "without unknown images"),
        ({"ood_score": "knn"}, "expected 20 or more. Give others: ood_fit=SPEC"),
        ({"ood_score": "knn", "ood_fit": DATA}, "is the set that is reported on"),
    ],
)
def test_what_cannot_work_is_one_line(tmp_path, more, says):
    given = {"ood": ["sample:textures"], "out": tmp_path / "run", **GIVEN, **more}
    with pytest.raises(InputError) as error:
        audit(MODEL, DATA, **given)
    assert says in str(error.value) and "--" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_model_without_a_linear_head_is_refused_in_one_line(tmp_path):
    net = Classifier(NoHead(), load(MODEL).classes, size=32, name="no head")
    with pytest.raises(InputError, match="knn cannot be computed: ask for"):
        audit(net, DATA, ood=["sample:textures"], ood_score="knn", out=tmp_path / "run", **GIVEN)


def test_unknown_sets_with_known_classes_are_refused(tmp_path):
    known = replace(open_set(DATA, limit=30, seed=0), name="mixed")
    labels = np.where(known.labels == 3, 0, 1)
    mixed = replace(known, classes=("cats", "quartz"), labels=labels)
    with pytest.raises(InputError, match=r"images of classes that the model knows \('cats'\)"):
        audit(MODEL, DATA, ood={"mixed": mixed}, out=tmp_path / "run", **GIVEN)
