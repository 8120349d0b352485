"""The next command after each command; the oracle is the command line itself, which takes it."""

import shlex
from pathlib import Path

import pytest

from counterlens.cli import app
from counterlens.cli.show.next_step import next_step
from counterlens.runs import Number, Run
from report_runs import audit_run

PLAIN = "zoo:cifar10-plain-small"


def explainable(folder: Path, model: str = PLAIN, robust: float = 0.02, skill: float = 2.2) -> Run:
    run = audit_run(folder, model=model, robust=robust, skill=skill)
    row = {"check": "uses", "status": "ok", "fix": "", "sure": "high"}
    run.write_table("doctor", [{**row, "found": "counterfactuals in pixels: yes; CAM: yes."}])
    run.write_table("gallery", [{"group": "mistakes", "image": "images/x.png"}])
    return run


def done(folder: Path, command: str, **settings: object) -> Run:
    run = Run.create(folder, command, dict(settings))
    run.note(model=settings.get("model"))
    run.add_numbers({"accuracy.top1": Number(0.5, 10, 0.2, 0.8, "made up")})
    return run


def taken(command: str) -> bool:
    """Whether the command exists and knows every option of the line."""
    from typer.main import get_command

    program, *words = shlex.split(command)
    one = get_command(app)
    while words and words[0] in getattr(one, "commands", {}):
        one = one.commands[words.pop(0)]
    one = getattr(one, "commands", {}).get("pixel", one)  # what explain does unasked
    known = {flag for option in one.params for flag in option.opts}
    return program == "counterlens" and {w for w in words if w.startswith("--")} <= known


@pytest.mark.parametrize(
    ("method", "model", "expected"),
    [
        ("pixel", PLAIN, f"counterlens explain cam {PLAIN} a.png"),
        ("diffusion", PLAIN, f"counterlens explain cam {PLAIN} a.png"),
        ("cam", PLAIN, f"counterlens explain {PLAIN} a.png"),
        ("cam", "my.py:net", "counterlens explain my.py:net a.png --trust-remote-code"),
        ("pixel", "onnx:m.onnx", ""),
    ],
)
def test_a_picture_explained_one_way_is_explained_the_other_way_next(
    tmp_path: Path, method: str, model: str, expected: str
) -> None:
    run = done(tmp_path / "r", "explain", model=model, method=method, images=["a.png"])
    assert next_step(run) == expected
    assert not expected or taken(expected)


def test_pictures_given_as_objects_are_not_repeated(tmp_path: Path) -> None:
    run = done(tmp_path / "r", "explain", model=None, method="cam", images=[])
    assert next_step(run) == ""


def test_after_an_audits_mistakes_come_the_features_that_drive_them(tmp_path: Path) -> None:
    audit = explainable(tmp_path / "audit")
    run = done(tmp_path / "r", "explain", model=str(audit.folder), method="pixel", images=[])
    run.note(audit="audit")
    expected = f"counterlens neurons spurious {PLAIN} --data sample:cifar10 --mask cam"
    assert next_step(run) == expected
    assert taken(expected)


def test_after_a_comparison_come_the_mistakes_of_the_model_that_is_right_least_often(
    tmp_path: Path,
) -> None:
    good, bad = explainable(tmp_path / "a", skill=3.0), explainable(tmp_path / "b", skill=1.0)
    assert good.numbers["accuracy.top1"].value > bad.numbers["accuracy.top1"].value
    run = done(tmp_path / "r", "compare")
    assert next_step(run, [good, bad]) == f"counterlens explain {bad.folder}"


def test_what_was_trained_is_audited(tmp_path: Path) -> None:
    run = done(tmp_path / "r", "train")
    assert next_step(run) == ""
    (run.folder / "model").mkdir()
    assert next_step(run) == f"counterlens audit {run.folder / 'model'} DATA"
    fitted = explainable(tmp_path / "a")
    assert next_step(run, [fitted]) == f"counterlens explain {fitted.folder}"


def test_a_repaired_model_is_audited_and_without_one_labels_are_looked_at(tmp_path: Path) -> None:
    run = done(tmp_path / "r", "repair", model=PLAIN, check="check/")
    expected = f"counterlens curate labels check/ --model {PLAIN}"
    assert next_step(run) == expected
    assert taken(expected)
    (run.folder / "repaired.json").write_text("{}", encoding="utf-8")
    assert next_step(run) == f"counterlens audit repaired:{run.folder} DATA"
