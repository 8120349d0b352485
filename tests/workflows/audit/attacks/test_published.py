"""Published values beside ours, against the leaderboard's README and the cards of the zoo."""

import pytest
from torch import nn

from counterlens.classifier import Classifier
from counterlens.label_spaces import CIFAR10
from counterlens.report.pages.audit import attacks as page
from counterlens.runs import Number, Run
from counterlens.workflows.audit.attacks.published import L2, LINF, write_published

OURS = Number(0.6, 100, 0.5, 0.69, "ours")


def entry(name: str, classes=CIFAR10, card=None) -> Classifier:
    card = {"source": "robustbench"} if card is None else card
    half = (0.5, 0.5, 0.5)
    return Classifier(nn.Flatten(), classes, half, half, size=32, name=name, card=card)


@pytest.fixture
def run(tmp_path) -> Run:
    return Run.create(tmp_path / "run", "audit", {"model": "m"})


def test_an_entry_of_the_leaderboard_has_its_value_beside_ours(run):
    write_published(run, entry("Carmon2019Unlabeled"), "linf:8/255", OURS)
    (row,) = run.table("published")
    assert (row["robust"], row["clean"], row["n"]) == (0.5953, 0.8969, 10_000)
    assert row["low"] < 0.5953 < row["high"] < row["low"] + 0.02
    assert (row["ours"], row["ours_n"]) == (0.6, 100)
    titles = [getattr(block, "caption", "") for block in page.section(run).blocks]
    assert "Published for this checkpoint" in titles


def test_the_same_entry_has_one_value_per_norm(run):
    write_published(run, entry("Rice2020Overfitting"), "l2:0.5", OURS)
    assert run.table("published")[0]["robust"] == pytest.approx(0.6768)


@pytest.mark.parametrize(
    ("model", "attack"),
    [
        (entry("Carmon2019Unlabeled"), "linf:4/255"),
        (entry("Carmon2019Unlabeled"), "l2:0.5"),
        (entry("somebody"), "linf:8/255"),
        (entry("Carmon2019Unlabeled", classes=tuple("abcdefghij")), "linf:8/255"),
        (entry("Carmon2019Unlabeled", card={"source": "file"}), "linf:8/255"),
    ],
)
def test_other_balls_classes_and_models_have_none(run, model, attack):
    write_published(run, model, attack, OURS)
    assert run.table("published") == []


def test_the_card_of_shipped_weights_is_quoted_and_written_once(run):
    number = {"value": 0.683, "n": 1000, "low": 0.654, "high": 0.711}
    card = {"numbers": {"robust.l2-0.5.accuracy": number, "accuracy.top1": {"value": 0.912}}}
    for _ in range(2):
        write_published(run, entry("ours", card=card), "l2:0.5", OURS)
    (row,) = run.table("published")
    assert (row["robust"], row["clean"], row["n"], row["source"]) == (
        *(0.683, 0.912, 1000),
        "card of ours",
    )


def test_robust_values_lie_below_clean_ones():
    for clean, robust in (*LINF.values(), *L2.values()):
        assert 0 <= robust < clean < 100
