"""The report of a training against a history whose curves and troubles are known."""

import pytest

from counterlens.ball import Ball
from counterlens.losses import Attack
from counterlens.report import render
from counterlens.report.pages.train import _best, _read
from counterlens.runs import Number, Run
from counterlens.workflows.train.health import Health

ROWS = [
    {"epoch": 1, "step": 10, "loss.in": 2.0, "lr": 0.1},
    {"epoch": 2, "step": 20, "loss.in": 1.5, "lr": 0.2, "held_out.clean": 0.5,
     "held_out.robust": 0.45, "held_out.near": 0.48, "held_out.confidence": 0.6, "probe.near": 0.3},
    {"epoch": 3, "step": 30, "loss.in": 1.0, "lr": 0.1, "held_out.clean": 0.7,
     "held_out.robust": 0.25, "held_out.near": 0.5, "held_out.confidence": 0.7},
]  # fmt: skip


@pytest.fixture
def run(tmp_path):
    settings = {"recipe": {"name": "my-recipe"}, "data": "pictures", "seed": 0}
    made = Run.create(tmp_path / "run", "train", settings)
    made.write_table("epochs", ROWS)
    made.add_numbers({"held_out.clean": Number(0.7, 50, 0.56, 0.81, "50 held-out images")})
    return made


def page(run, warnings):
    run.write_table("warnings", [{"warning": line} for line in warnings])
    return render(run).read_text()


def test_curves_probe_and_cure_are_on_the_page(run):
    text = page(run, ["epoch 2: the attack is too weak: 0.48, then 0.30. Use more steps: --set x"])
    assert "<h1>my-recipe" in text or ">my-recipe<" in text
    for words in ("under five times its steps", "under the training attack", "Loss: in"):
        assert words in text
    assert "Use more steps: --set x" in text and "the attack is too weak: 0.48, then 0.30." in text
    assert "highest at epoch 2 of 3: 45.0" in text  # the peak came before the end


def test_a_healthy_training_says_so(run):
    assert "No warning" in page(run, [])


def test_a_rise_to_the_end_is_told_from_an_early_peak():
    assert "at the end" in _best(
        [{"epoch": 1, "held_out.robust": 0.1}, {"epoch": 2, "held_out.robust": 0.2}]
    )
    assert _best([{"epoch": 1, "lr": 0.1}]) == ""


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("epoch 7: fell to 0.1. Do: --set a=1.", ("7", "fell to 0.1.", "Do: --set a=1.")),
        ("something else", ("", "something else", "")),
    ],
)  # fmt: skip
def test_warnings_are_cut_into_epoch_trouble_and_cure(line, read):
    assert _read(line) == read


def test_a_resumed_training_keeps_the_warnings_of_its_first_part():
    """Health that saw nothing itself finds all that the history holds, in order."""
    attack = Attack(Ball("l2", 0.5), ((0, 1),), 0.1)

    class Sets:
        classes = ("a", "b", "c", "d")

    judge = Health(Sets(), attack, None, (Ball("l2", 0.5), 1), 10, 1, 100, log=lambda line: None)
    told = judge.review(ROWS)
    assert [line.split(":")[0] for line in told] == ["epoch 2", "epoch 3"]
    assert "too weak" in told[0] and "overfits" in told[1]
    assert judge.warnings == [] and judge.best_robust == 0.0
