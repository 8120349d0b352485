"""The study and the repair desk through the app.

Oracles: the table that the evaluation drew; logits sorted with NumPy; the CSV that the data module
opens. Runs are made up; raters are simulated.
"""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.made_runs import quality_run, repair_run
from counterlens.app.study import by_logit, control_audit, pairs_of
from counterlens.data import open_set
from counterlens.review import Store, Verdict, store_path
from counterlens.review.pairs import SAME_CLASS
from counterlens.review.study import CONTROL, QUESTIONS, StudyAnswers, answers_path, arm_of, trials
from counterlens.runs import Run
from report_runs import audit_run, explain_run, simulate


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return quality_run(tmp_path / "runs")


@pytest.fixture
def here(app, run: Run) -> Any:
    return app(run.folder.parent)


def rate(here: Any, who: str, better: str = "A", **more: Any) -> Any:
    page = here.get("/study", run="quality", rater=who).text
    pair = re.search(r'data-pair="([^"]+)"', page)
    assert pair, page[-600:]
    asked = [name for name in QUESTIONS if f'name="{name}-A"' in page]
    body = {
        "rater": who, "pair": pair[1], "better": better,
        "mark": f"{who} {pair[1]}".ljust(20, "x"),
        "questions": {name: {"A": True, "B": False} for name in asked}, **more,
    }  # fmt: skip
    return here.post("/study/answer.json", params={"run": "quality"}, json=body)


def name_in(arm: str) -> str:
    return next(f"rater{k}" for k in range(50) if arm_of(f"rater{k}", control=True) == arm)


def test_a_rater_goes_through_all_pairs_and_never_sees_which_method_it_is(here, run):
    page = here.get("/study", run="quality", rater="ann").text
    for words in QUESTIONS.values():
        assert words in page
    assert "dvce" not in page and "diffusion" not in page
    sides = re.findall(r'src="(/study/picture[^"]+)"', page)
    first = trials(pairs_of(run), "ann")[0]
    shown = [here.client.get(src.replace("&amp;", "&")).content for src in sides]
    wanted = [(run.folder / first.pair.images[m]).read_bytes() for m in (first.a, first.b)]
    assert shown == wanted
    for _ in range(6):
        assert rate(here, "ann").status_code == 200
    assert "All 6 pairs are rated" in here.get("/study", run="quality", rater="Ann ").text
    said = StudyAnswers(answers_path(run.folder)).latest()
    assert len(said) == 6 and {one.better for one in said} == {"A"}
    order = {t.pair.name: (t.a, t.b) for t in trials(pairs_of(run), "ann")}
    assert {one.pair: (one.a, one.b) for one in said} == order
    results = here.get("/study", run="quality").text
    assert "6 answers of 1 raters: ann" in results and "dvce" in results
    assert not list(run.folder.glob("*.sqlite"))


@pytest.mark.parametrize(
    "wrong",
    [{"pair": "none"}, {"better": "C"}, {"questions": {}}, {"mark": "x"}, {"rater": ""}],
)
def test_answers_that_make_no_sense_are_refused(here, run, wrong):
    assert rate(here, "ann", **wrong).status_code in (400, 404)
    assert StudyAnswers(answers_path(run.folder)).latest() == []
    for body in (b"", b"[]", b"{}", b"\xff"):
        answer = here.post("/study/answer.json", params={"run": "quality"}, content=body)
        assert answer.status_code == 400


def test_the_control_arm_compares_with_real_images_sorted_by_logit(app, run):
    root = run.folder.parent
    audit = audit_run(root / "audit")
    manifest = audit.manifest
    manifest["settings"]["data"] = "elsewhere"
    (audit.folder / "run.json").write_text(json.dumps(manifest), encoding="utf-8")
    shown = audit.table("gallery")[0]["image"]
    audit.write_table("gallery", [])
    here = app(root)
    assert control_audit(here.client.app.app.state.site, run) is None  # its pictures are elsewhere
    rows = [
        {"group": "mistakes", "image": shown,
         "id": f"cifar10/{i:05d}", "label": "x", "predicted": "y", "confidence": 0.5}
        for i in range(600)
    ]  # fmt: skip
    audit.write_table("gallery", rows)
    assert control_audit(here.client.app.app.state.site, run) is not None
    logits, labels = simulate(0)["cifar10"]
    wanted = [
        i for i in np.argsort(-logits[:, 3].astype(np.float32), kind="stable") if labels[i] == 3
    ]
    names = [f"cifar10/{i:05d}" for i in range(600) if labels[i] == 3]
    assert by_logit(audit, "cat", set(names)) == [f"cifar10/{i:05d}" for i in wanted]
    rater = name_in("control")
    page = here.get("/study", run="quality", rater=rater).text
    assert "at showing what the model takes for" in page and "is realistic" not in page
    sides = re.findall(r'src="(/study/picture[^"]+)"', page)
    assert len(sides) == 6  # one counterfactual, five real images
    assert all(here.client.get(src.replace("&amp;", "&")).status_code == 200 for src in sides)
    assert rate(here, rater).status_code == 200
    said = StudyAnswers(answers_path(run.folder)).latest()
    assert said[0].arm == "control" and CONTROL in (said[0].a, said[0].b)
    other = name_in("methods")
    assert "is realistic" in here.get("/study", run="quality", rater=other).text


def test_runs_without_pairs_and_read_only(app, tmp_path, run):
    audit_run(tmp_path / "runs" / "audit")
    here = app(tmp_path / "runs", read_only=True)
    assert here.get("/study", run="audit").status_code == 400
    assert "6</td>" in here.get("/studies").text
    page = here.get("/study", run="quality", rater="ann").text
    assert "read-only" in page and "data-pair" not in page
    assert rate_refused(here) == 403


def rate_refused(here: Any) -> int:
    return int(here.post("/study/answer.json", params={"run": "quality"}, json={}).status_code)


def test_receipts_stand_side_by_side(app, tmp_path):
    root = tmp_path / "runs"
    for name, verdict in (("one", "better"), ("two", "worse"), ("three", "not shown")):
        repair_run(root / name, verdict)
    here = app(root)
    page = here.get("/repairs").text
    assert page.count('aria-label="Show ') == 3 and "Receipts</h2>" not in page
    both = here.get("/repairs", run=["one", "two"]).text
    assert "why better" in both and both.count("<article") == 2
    assert both.count("Before and after on the check images") >= 2
    assert here.get("/repairs", run="none").status_code == 404
    assert "No repairs yet" in app(tmp_path / "empty").get("/repairs").text


def test_accepted_pairs_become_a_manifest_that_opens(app, tmp_path):
    run = explain_run(tmp_path / "runs" / "explained")
    here = app(tmp_path / "runs")
    assert "explained" in here.get("/repairs").text
    ids = ["images/near.png", "images/far.png"]
    store = Store.create(store_path(run.folder), ids, about=_about(run))
    store.add([Verdict(ids[0], "ann", "reject"), Verdict(ids[1], "ann", "accept")])
    page = here.get("/repairs").text
    assert re.search(r'data-label="Accepted">1<.*data-label="Refused">1<', page)
    text = here.get("/repairs/pairs.csv", run="explained").text
    lines = text.split()
    assert len(lines) == 3 and "near.png" not in text
    manifest = tmp_path / "pairs.csv"
    manifest.write_text(text, encoding="utf-8")
    opened = open_set(str(manifest))
    assert len(opened) == 2 and sorted(opened.classes) == ["cat", "dog"]
    assert json.dumps(list(opened.ids)).count(".png") == 2


def test_a_change_that_only_the_model_saw_keeps_its_class(app, tmp_path):
    """Rejected with the tag: labelled as the original; rejected without: left out."""
    run = explain_run(tmp_path / "runs" / "explained")
    here = app(tmp_path / "runs")
    ids = ["images/near.png", "images/far.png"]
    store = Store.create(store_path(run.folder), ids, about=_about(run))
    store.add([Verdict(ids[0], "ann", "reject", "", (SAME_CLASS,))])
    store.add([Verdict(ids[1], "ann", "reject", "", ("not realistic",))])
    assert re.search(r'data-label="Of one class">1<', here.get("/repairs").text)
    rows = list(csv.DictReader(io.StringIO(here.get("/repairs/pairs.csv", run="explained").text)))
    assert [row["label"] for row in rows] == ["dog", "dog"]
    assert rows[0]["pair"] == rows[1]["pair"] != ""
    store.add([Verdict(ids[0], "bob", "reject", "", ("not realistic",))])  # they differ
    assert len(here.get("/repairs/pairs.csv", run="explained").text.split()) == 1


def _about(run: Run) -> str:
    from counterlens.review.shortlist import about

    return about(run)
