"""Models side by side on the same changed picture. The oracle is the bytes of the pictures."""

import shutil
from pathlib import Path

from counterlens.runs import Run
from counterlens.workflows.compare.run import compare
from report_runs import audit_run, explain_run


def audited(folder: Path, name: str, *, robust: float, explained: bool = True) -> Run:
    run = audit_run(folder, model=name, robust=robust, finish=False)
    run.finish()
    if explained:
        explain_run(folder / "explained")
    return run


def test_pictures_of_both_models_stand_beside_the_original(tmp_path: Path) -> None:
    runs = [audited(tmp_path / n, n, robust=r) for n, r in (("plain", 0.02), ("robust", 0.7))]
    result = compare(*(run.folder for run in runs), out=tmp_path / "both")
    rows = result.table("seen")
    # of two radii the larger one that both have; a row for each model
    assert [(row["model"], row["target"], row["radius"]) for row in rows] == [
        ("plain", "cat", 3.0),
        ("robust", "cat", 3.0),
    ]
    far = (tmp_path / "plain" / "explained" / "images" / "far.png").read_bytes()
    assert all((result.folder / row["image"]).read_bytes() == far for row in rows)
    shutil.rmtree(tmp_path / "plain")  # the page needs nothing outside its own run
    page = (result.folder / "report.html").read_text()
    assert "What each model sees" in page
    assert "dog → cat" in page


def test_the_first_sentence_names_who_fails_on_what(tmp_path: Path) -> None:
    runs = [
        audited(tmp_path / n, n, robust=r, explained=False)
        for n, r in (("plain", 0.02), ("robust", 0.7))
    ]
    result = compare(*(run.folder for run in runs), out=tmp_path / "both")
    assert result.table("seen") == []
    page = (result.folder / "report.html").read_text()
    assert "robust has no clear failure." in page
    assert "plain fails on Robust accuracy" in page
    assert "What each model sees" not in page
