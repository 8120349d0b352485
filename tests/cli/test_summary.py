"""What the terminal shows at the end; the oracle is the numbers of the runs, written by hand."""

from pathlib import Path

import pytest

from counterlens.cli.show.summary import show_run
from counterlens.runs import Run
from counterlens.workflows.compare.run import compare
from report_runs import audit_run, explain_run

PLAIN, RATIO = "zoo:cifar10-plain-small", "zoo:cifar10-ratio-small"


@pytest.fixture
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.mark.usefixtures("width")
def test_an_audit_ends_with_its_key_numbers_gates_and_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = audit_run(tmp_path / "run", robust=0.02)
    (run.folder / "report.html").touch()
    show_run(run)
    said = capsys.readouterr()
    lines = [line.split("  ")[0] for line in said.err.splitlines()]
    top = run.numbers["accuracy.top1"]
    assert said.out == ""
    assert f"{PLAIN} on cifar10" in lines
    assert lines.index("Accuracy") < lines.index("Robust accuracy, l₂ 0.5")
    assert f"{100 * top.value:.1f}\u202f%  [{100 * top.low:.1f}, {100 * top.high:.1f}]" in said.err
    assert "FAIL  robust.l2-0.5.accuracy>=0.4" in said.err
    assert said.err.splitlines()[-1] == f"Report: {run.folder / 'report.html'}"


@pytest.mark.usefixtures("width")
def test_an_audit_names_the_next_command_where_it_can_be_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = audit_run(tmp_path / "run")
    assert "Then:" not in _told(run, capsys)  # no mistakes, or no gradients: nothing to explain
    uses = {"check": "uses", "status": "ok", "fix": "", "sure": "high"}
    run.write_table("doctor", [{**uses, "found": "counterfactuals in pixels: yes; CAM: yes."}])
    run.write_table("gallery", [{"group": "mistakes", "image": "images/x.png"}])
    assert f"Then: counterlens explain {run.folder}" in _told(run, capsys)


def _told(run: Run, capsys: pytest.CaptureFixture[str]) -> str:
    show_run(run)
    return capsys.readouterr().err


@pytest.mark.usefixtures("width")
def test_a_comparison_has_one_column_per_model_and_cuts_no_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        audit_run(tmp_path / "a", model=PLAIN, robust=0.02),
        audit_run(tmp_path / "b", model=RATIO, seed=1, robust=0.6, worst=0.8, gates=False),
    ]
    show_run(compare([run.folder for run in runs], out=tmp_path / "c"), runs)
    text = capsys.readouterr().err
    head = next(line for line in text.splitlines() if line.strip())
    robust = next(line for line in text.splitlines() if line.startswith("Robust accuracy, l₂ 0.5"))
    assert head.split() == [PLAIN, RATIO, "n"]
    known = [100 * run.numbers["robust.l2-0.5.accuracy"].value for run in runs]
    assert robust.index(f"{known[0]:.1f}\u202f%") < robust.index(f"{known[1]:.1f}\u202f%")
    assert f"FAIL  {PLAIN}: robust.l2-0.5.accuracy>=0.4" in text
    assert "…" not in text


def test_a_narrow_terminal_numbers_the_models_instead_of_cutting_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    runs = [
        audit_run(tmp_path / str(i), model=m, seed=i, robust=0.3)
        for i, m in enumerate((PLAIN, RATIO))
    ]
    made = compare([run.folder for run in runs], out=tmp_path / "c")
    (made.folder / "report.html").unlink()
    show_run(made)
    lines = capsys.readouterr().err.splitlines()
    assert f"model 2: {RATIO}" in lines
    table = [line for line in lines if not line.startswith("On the same")]
    assert max(map(len, table)) <= 80
    assert "…" not in "".join(table)


@pytest.mark.usefixtures("width")
def test_an_explanation_of_one_picture_ends_with_a_sentence_not_with_numbers_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = explain_run(tmp_path / "e")
    run.write_table("notes", [{"note": "Quick search of 100 steps. To refine it: --steps 500."}])
    show_run(run)
    told = capsys.readouterr().err.replace("\u202f", " ")
    assert (
        "cifar10-test/12: seen as dog (90.0 %); as cat after a change of l₂ 3 (cat 97.0 %). "
        "cifar10-at-0.5 agrees (cat 80.0 %)." in told
    )
    assert "note: Quick search of 100 steps. To refine it: --steps 500." in told
    assert "95 % interval" not in told


@pytest.mark.usefixtures("width")
def test_an_explanation_of_two_pictures_shows_its_headline_numbers_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = explain_run(tmp_path / "e")
    rows = run.table("counterfactuals")
    lost = {"id": "13", "answer": "dog", "sure": 0.7, "after": 0.2, "opinions": []}
    run.write_table("counterfactuals", [*rows, {**rows[1], **lost}])
    show_run(run)
    told = capsys.readouterr().err.replace("\u202f", " ")
    assert "not as cat after a change of l₂ 3 (cat 20.0 %, answer dog 70.0 %)" in told
    assert "Other classifiers agree, l₂ 3  100.0 %" in told
