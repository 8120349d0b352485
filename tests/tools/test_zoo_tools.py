"""The tools that make the zoo: the order of their work, what a stop or a failure leaves, and cards
filled from two audits. Processes are replaced by a record of what would have run."""

import importlib
import sys
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from types import SimpleNamespace

import pytest

from counterlens import zoo
from counterlens.data import name_of
from counterlens.runs import Number, Run
from counterlens.workflows._shared.settings import as_dict
from counterlens.workflows.audit.settings import Settings
from counterlens.workflows.reproduce.table1 import ROWS
from counterlens.workflows.train import recipes

sys.path.append(str(Path(__file__).parents[2] / "tools"))
zoo_tool = importlib.import_module("make_zoo")
cards = importlib.import_module("card_audits")
docs = importlib.import_module("table1_docs")


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Stages in the order they ran; those named in `ran.fail` end with an error."""
    record = SimpleNamespace(stages=[], commands=[], fail=set())
    lock = Lock()

    def run(command, **_):
        text = [str(part) for part in command]
        stage = text[text.index("--stage" if "--stage" in text else "--part") + 1]
        own = "--rows" in text
        model = Path(text[2])
        audited = model.parent.name if model.name == "model" else model.name
        row = text[text.index("--rows") + 1] if own else audited
        with lock:
            record.stages.append((row, stage))
            record.commands.append(text)
        if (row, stage) in record.fail:
            return SimpleNamespace(returncode=1)
        mark = zoo_tool.done(row, stage, tmp_path)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(zoo_tool.subprocess, "run", run)
    monkeypatch.setattr(zoo_tool.Sets, "open", lambda *_: None)
    return record


def make(monkeypatch, out, *more):
    asked = ["make_zoo.py", "--data", "d", "--out", str(out), *more]
    monkeypatch.setattr(sys, "argv", asked)
    return zoo_tool.main()


def test_every_row_of_the_table_that_is_not_shipped_can_be_made():
    ours = {recipe for _, recipe in ROWS.values() if recipe}
    shipped = {f"cifar10-{row}" for row in ("ratio-0.25", "at-0.5", "ratio-small", "plain-small")}
    assert set(zoo_tool.ROWS) == ours - shipped
    for row, changes in zoo_tool.ROWS.items():
        assert recipes.load(row, changes).name == row  # every change is of a known setting


@pytest.mark.parametrize("row", zoo_tool.ROWS)
def test_the_stored_audit_of_every_row_is_whole_and_of_the_recipe_that_makes_it(row):
    """What a card must have is written out here, not read from the tool."""
    card = zoo.any_card(row)
    made = as_dict(recipes.load(row, zoo_tool.ROWS[row]))
    named = {**made, "start": made["start"] and made["start"].removeprefix("zoo:")}
    again = as_dict(recipes.load(row, recipes.changes_of(card["recipe"])))
    assert card["recipe"] == named == again
    sets = ("caltech256", "flowers102", "intel_scenes", "streetview_chars", "tinyimagenet_val",
            "uniform")  # fmt: skip
    measured = {f"ood.{name}.{what}" for name in sets for what in
                ("auroc", "mmc", "worst_auroc", "worst_mmc")}  # fmt: skip
    attacked = {f"robust.{ball}.accuracy" for ball in ("l2-0.5", "l2-1.0", "linf-8_255")}
    numbers = {key: Number.from_json(found) for key, found in card["numbers"].items()}
    assert measured | attacked <= set(numbers)
    for key, number in numbers.items():
        assert number.low <= number.value <= number.high, key
        if key in attacked or "worst" in key:
            assert number.n == 1000 and number.trust["verdict"] in ("trusted", "weak"), key
    assert numbers["accuracy.top1"].n == numbers["calibration.ece_scaled"].n == 10_000
    assert card["audit"]["attack_version"] == "standard"


def test_stages_are_worked_off_in_the_order_of_need(ran, tmp_path, monkeypatch):
    rows = ["cifar10-plain", "cifar10-oe", "cifar10-at-0.5", "cifar10-plain-small"]
    assert make(monkeypatch, tmp_path, "--rows", *rows, "--slots", "1") == 0
    trained = rows[:2]
    assert ran.stages == [
        *((row, "train") for row in trained), *((row, "main") for row in trained),
        *((row, "apart") for row in rows), ("cifar10-at-0.5", "whole"),
        *((row, "fast-0.5") for row in trained), *((row, "fast-1.0") for row in trained),
    ]  # fmt: skip
    assert make(monkeypatch, tmp_path, "--rows", *rows) == 0
    assert len(ran.stages) == 13  # finished stages are not run again


def test_stages_that_are_named_run_in_the_order_they_are_named(ran, tmp_path, monkeypatch):
    rows = ["cifar10-oe", "cifar10-at-0.5"]
    asked = ["--only", "whole", "apart", "train", "--slots", "1"]
    assert make(monkeypatch, tmp_path, "--rows", *rows, *asked) == 0
    assert ran.stages == [
        ("cifar10-oe", "train"), ("cifar10-at-0.5", "whole"), ("cifar10-oe", "apart"),
        ("cifar10-at-0.5", "apart"),
    ]  # fmt: skip


@pytest.mark.parametrize("slots", ["1", "3"])
def test_a_failed_training_stops_its_own_row_alone(ran, tmp_path, monkeypatch, capsys, slots):
    ran.fail = {("cifar10-plain", "train"), ("cifar10-oe", "main")}
    rows = ["cifar10-plain", "cifar10-oe", "cifar10-acet"]
    assert make(monkeypatch, tmp_path, "--rows", *rows, "--slots", slots) == 1
    assert [stage for row, stage in ran.stages if row == "cifar10-plain"] == ["train"]
    assert {stage for row, stage in ran.stages if row == "cifar10-oe"} == {
        "train", "main", "apart", "fast-0.5", "fast-1.0",
    }  # fmt: skip
    assert "cifar10-plain train: failed, see" in capsys.readouterr().out
    ran.fail = set()
    ran.stages.clear()
    assert make(monkeypatch, tmp_path, "--rows", *rows) == 0  # what failed is tried again
    assert ("cifar10-plain", "train") in ran.stages and ("cifar10-oe", "main") in ran.stages
    assert not any(row == "cifar10-acet" for row, _ in ran.stages)


def test_no_stage_begins_after_the_time_is_over(ran, tmp_path, monkeypatch, capsys):
    rows = ["--rows", "cifar10-plain"]
    assert make(monkeypatch, tmp_path, *rows, "--minutes", "1e-9") == 1
    assert not ran.stages and "cifar10-plain train: no time left" in capsys.readouterr().out


def test_changes_and_counts_reach_the_processes(ran, tmp_path, monkeypatch):
    asked = ["--rows", "cifar10-plain", "--set", "epochs=1", "--set", "lr=0.1", "--points", "7"]
    assert (
        make(monkeypatch, tmp_path, *asked, "--most", "9", "--device", "cpu", "--slots", "1") == 0
    )
    train, *audits = ran.commands
    assert train[train.index("--set") :] == ["--set", "epochs=1", "--set", "lr=0.1"]
    for command in audits:
        assert command[command.index("--points") + 1] == "7"
        assert command[command.index("--most") + 1] == "9"
    assert all(command[command.index("--device") + 1] == "cpu" for command in ran.commands)


def test_only_the_stages_that_are_asked_for_run(ran, tmp_path, monkeypatch):
    rows = ["--rows", "cifar10-plain", "cifar10-oe", "--slots", "1"]
    assert make(monkeypatch, tmp_path, *rows, "--only", "train") == 0
    assert ran.stages == [("cifar10-plain", "train"), ("cifar10-oe", "train")]


def test_a_kept_training_is_audited_elsewhere_without_being_made_again(ran, tmp_path, monkeypatch):
    there, here, kept = tmp_path, tmp_path / "here", tmp_path / "kept"
    model = there / "train" / "cifar10-plain" / "model"
    model.mkdir(parents=True)
    (model / "card.json").write_text("a card")
    (model / "model.safetensors").write_bytes(b"weights")
    (model.parent / "state").mkdir()  # of the training alone: not kept
    row = ["--rows", "cifar10-plain", "--keep", str(kept)]
    assert make(monkeypatch, there, *row, "--only", "train") == 0
    ran.stages.clear()
    assert make(monkeypatch, here, *row, "--only", "train", "main") == 0
    assert ran.stages == [("cifar10-plain", "main")]
    found = here / "train" / "cifar10-plain"
    assert {p.name: p.read_bytes() for p in (found / "model").iterdir()} == {
        "card.json": b"a card", "model.safetensors": b"weights",
    }  # fmt: skip
    assert not (found / "state").exists()


def test_an_unknown_stage_is_one_clear_line(ran, tmp_path, monkeypatch, capsys):
    assert make(monkeypatch, tmp_path, "--only", "large") == 2
    assert "got --only large, expected some of train, main" in capsys.readouterr().err


def audited(folder, ood, numbers, n=10, weights="w"):
    settings = Settings(model="m", data="test", ood=ood, attack=(), ood_attack="l2:1.0")
    run = Run.create(folder, "audit", asdict(settings))
    names = [name_of(spec) for spec in ood]
    run.note(
        data="test", data_fingerprint={name: f"{name} 1" for name in ("test", *names)},
        weights_hash=weights,
    )  # fmt: skip
    run.add_numbers({key: Number(value, n, None, None, folder.name) for key, value in numbers})
    run.finish()
    return run


def test_a_card_has_the_numbers_of_both_audits_and_the_main_one_s_where_both_measured(tmp_path):
    main = audited(
        tmp_path / "main", ["flowers102=pack:f.npz"],
        [("accuracy.top1", 0.9), ("ood.flowers102.worst_auroc", 0.8)],
    )  # fmt: skip
    apart = audited(
        tmp_path / "apart", [f"{cards.SEEN}=pack:t.npz", "noise:uniform"],
        [("accuracy.top1", 0.8), ("ood.uniform.worst_auroc", 0.7)],
    )  # fmt: skip
    card = {"name": "x", "weights_sha256": "w", "numbers": {"accuracy.top1": {"value": 0.1}}}
    whole = cards.filled(card, {"main": main, "apart": apart})
    assert {key: number["value"] for key, number in whole["numbers"].items()} == {
        "accuracy.top1": 0.9, "ood.flowers102.worst_auroc": 0.8, "ood.uniform.worst_auroc": 0.7,
    }  # fmt: skip
    assert whole["audit"]["ood"] == {
        "flowers102": "unseen", cards.SEEN: "seen", "uniform": "noise",
    }  # fmt: skip
    assert set(whole["audit"]["data_fingerprint"]) == {
        "test", "flowers102", cards.SEEN, "uniform",
    }  # fmt: skip
    alone = cards.filled(card, {"main": main})
    assert "uniform" not in str(alone["numbers"]) and alone["audit"]["ood"] == {
        "flowers102": "unseen"
    }


def test_numbers_of_the_same_weights_stay_on_a_card_until_they_are_measured_anew(tmp_path):
    name = "robust.l2-0.5.accuracy"
    main = audited(tmp_path / "main", ["flowers102=pack:f.npz"], [(name, 0.7)])
    card = {"name": "x", "weights_sha256": "w"}
    stored = cards.filled(card, {"main": main})
    whole = audited(tmp_path / "whole", [], [(name, 0.6)], n=10_000)
    apart = audited(tmp_path / "apart", ["noise:uniform"], [("ood.uniform.auroc", 0.9)])
    found = cards.filled(stored, {"whole": whole, "apart": apart})
    assert found["numbers"][name]["n"] == 10_000 and found["numbers"][name]["value"] == 0.6
    assert found["audit"]["ood"] == {"flowers102": "unseen", "uniform": "noise"}
    assert found["numbers"]["ood.uniform.auroc"]["value"] == 0.9
    assert set(found["audit"]["dates"]) == {"apart", "whole"}
    other = audited(tmp_path / "other", [], [(name, 0.5)], weights="others")
    assert cards.filled(stored, {"whole": other}) is None  # of other weights, and no main part
    assert cards.filled(card, {"apart": apart}) is None


def test_the_tables_of_the_page_are_those_of_the_stored_cards_and_pairs():
    text = docs.PAGE.read_text()
    assert docs.page(text) == text
    assert "| RATIO 0.25 | 208, 31.7 |" in text  # unequal training is told at the number
    assert "| CIFAR-100 | paper | 91.6 / 0.0 |" in text
