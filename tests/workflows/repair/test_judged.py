"""Pairs from runs: what reviewers accepted, composed photographs, and pairs of a plan."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.workflows.repair.test_run import MODEL, pictures

from counterlens.app.reviewable import review_of
from counterlens.data.sets import array_set
from counterlens.errors import InputError
from counterlens.images import read, write_png
from counterlens.review import Decision, Store, Verdict, decisions, store_path
from counterlens.runs import Run
from counterlens.workflows.repair.edits import judged
from counterlens.workflows.repair.groups import Grouped
from counterlens.workflows.repair.run import repair

IMAGES = array_set("set", np.zeros((4, 8, 8, 3), np.uint8), np.array([0, 0, 1, 1]), ("cat", "dog"))
BY = Grouped(IMAGES.labels, np.array([0, 1, 0, 1]), ("cat", "dog"), ("no", "yes"))
ROWS = np.arange(4)


def run_of(folder: Path, rows: list[dict[str, object]]) -> Run:
    run = Run.create(folder, "explain", {})
    for number, row in enumerate(rows):
        row |= {"image": f"images/{number}.png", "original": "images/0.png"}
        write_png(run.path("images", f"{number}.png"), np.full((8, 8, 3), 20 * number, np.uint8))
    run.write_table("counterfactuals", rows)
    return run


def verdict(run: Run, item: str, word: str, *tags: str) -> None:
    path = store_path(run.folder)
    items = [str(row["image"]) for row in run.table("counterfactuals")]
    store = Store(path) if path.exists() else Store.create(path, items, about="pairs")
    store.add([Verdict(item, "ann", word, tags=tags)])


def test_the_label_of_a_counterfactual_is_the_reviewers(tmp_path: Path) -> None:
    """Accepted: the target. Rejected as still of its class: that one. Rejected: not used."""
    rows = [{"id": str(IMAGES.ids[i]), "label": "cat", "target": "dog"} for i in (0, 1, 1, 0)]
    run = run_of(tmp_path / "run", rows)
    with pytest.raises(InputError, match=r"none of the 4 pairs .* was accepted"):
        judged.run_edit(IMAGES, ROWS, BY, str(run.folder))
    verdict(run, "images/0.png", "accept")
    verdict(run, "images/1.png", "reject", "same class")
    verdict(run, "images/2.png", "reject")
    made = judged.run_edit(IMAGES, ROWS, BY, str(run.folder))
    assert made.rows.tolist() == [0, 1] and made.labels_in(BY).tolist() == [1, 0]
    assert made.values.tolist() == [0, 0]  # its own where the class changed, else the other one
    assert [int(made.read(j)[0, 0, 0]) for j in (0, 1)] == [0, 20]
    with pytest.raises(InputError, match="version of none of the fix images"):
        judged.run_edit(IMAGES, ROWS[2:], BY, str(run.folder))
    verdict(run, "images/3.png", "accept")
    odd = run.table("counterfactuals")
    run.write_table("counterfactuals", [*odd[:3], {**odd[3], "target": "cow"}])
    with pytest.raises(InputError, match="'cow', which is none of cat, dog"):
        judged.run_edit(IMAGES, ROWS, BY, str(run.folder))


def test_composed_photographs_are_versions_of_their_shapes(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "c", "cgn compose", {})
    (run.folder / "data").mkdir()
    write_png(run.folder / "data" / "0.png", np.full((8, 8, 3), 7, np.uint8))
    rows = [
        {"path": "data/0.png", "label": "dog", "shape_id": str(IMAGES.ids[2]), "flags": flags}
        for flags in ([], ["unsure mask"])
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (run.folder / "counterfactuals.jsonl").write_text(lines)
    made = judged.run_edit(IMAGES, ROWS, BY, str(run.folder))
    assert made.rows.tolist() == [2] and made.values.tolist() == [1]
    assert made.labels_in(BY).tolist() == [1] and int(made.read(0)[0, 0, 0]) == 7
    empty = Run.create(tmp_path / "e", "audit", {})
    with pytest.raises(InputError, match="has no pairs"):
        judged.versions(empty)


def test_pairs_of_a_plan_are_judged_then_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way: write pairs, judge them as the app does, repair with those accepted."""
    monkeypatch.setenv("COUNTERLENS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "nets.py").write_text(MODEL)
    model, fix, check = f"{tmp_path / 'nets.py'}:shortcut", pictures(300, 1), pictures(300, 2)
    given = {
        "fix": fix, "check": check, "groups_from": "column:place", "device": "cpu",
        "quiet": True, "remedies": "pairs",
    }  # fmt: skip
    with pytest.raises(InputError, match="plan=True"):
        repair(model, **given, pairs="box:0,0,0.6,0.6", write_pairs=5)
    plan = repair(
        model, **given, pairs="box:0,0,0.7,0.7", plan=True, write_pairs=120, out=tmp_path / "plan"
    )
    rows = plan.table("pairs")
    assert len(rows) == 120 and all(row["label"] == row["target"] for row in rows)
    first = read(plan.folder / str(rows[0]["original"]))
    at = list(fix.ids).index(rows[0]["id"])
    assert (first == fix.read(at)).all() and rows[0]["value"] != fix.extra["place"][at]
    page = (plan.folder / "report.html").read_text(encoding="utf-8")
    assert "Pairs to judge" in page
    queue = review_of(Run.open(plan.folder))
    assert queue.kind == "pairs" and "only the shortcut" in queue.items[0].question
    store = Store.create(store_path(plan.folder), [one.id for one in queue.items], about="plan")
    words = ["accept" if k % 3 else "reject" for k in range(len(queue.items))]
    both = zip(queue.items, words, strict=True)
    store.add([Verdict(one.id, "ann", word) for one, word in both])
    result = repair(model, **given, pairs=f"run:{plan.folder}", out=tmp_path / "run")
    tried = {row["name"]: row for row in result.table("tried")}
    assert {"pairs", "pairs, unrelated edits"} <= set(tried)
    assert sum(row["picked"] for row in tried.values()) == 1
    assert sum(one.outcome == "accept" for one in decided(plan.folder).values()) == 80
    assert len(judged.versions(Run.open(plan.folder))) == 80


def decided(folder: Path) -> Mapping[str, Decision]:
    store = Store(store_path(folder))
    return decisions([str(row["image"]) for row in Run.open(folder).table("pairs")], store.latest())
