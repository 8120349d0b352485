"""Reviews through the app: blind, split, kept whatever happens, the same as on the command line.

Oracles: the command `curate review`; SQLite read directly; set arithmetic on the plan; a kill.
Reviewers are simulated.
"""

import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from app.made_runs import COUNT, shortlist
from counterlens.errors import InputError
from counterlens.review import (
    Store,
    Verdict,
    gold_numbers,
    places,
    set_gold,
    share_out,
    spelled,
    store_path,
    tasks,
)
from counterlens.runs import Number, Run
from counterlens.workflows.curate.review import review
from report_runs import explain_run, picture


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return shortlist(tmp_path / "runs")


@pytest.fixture
def here(app, run: Run) -> Any:
    return app(run.folder.parent)


def verdict(item: str, who: str, word: str = "accept", **more: Any) -> dict[str, Any]:
    mark = more.pop("mark", f"{who}-{item}-{word}".ljust(20, "x")[-60:])
    return {
        "item": item, "reviewer": who, "role": "reviewer", "verdict": word, "tags": [],
        "reason": "", "mark": mark, **more,
    }  # fmt: skip


def give(here: Any, *rows: dict[str, Any]) -> Any:
    return here.post("/review/verdicts.json", params={"run": "mined"}, json=list(rows))


def listed(here: Any, who: str, **more: Any) -> list[dict[str, Any]]:
    found = here.get("/review/items.json", run="mined", reviewer=who, **more)
    assert found.status_code == 200, found.text
    return found.json()


def test_what_the_filter_says_is_hidden_until_the_verdict_is_kept(here, run):
    pages = [
        here.get("/review", run="mined", reviewer="ann").text,
        here.get("/review", run="mined", reviewer="ann", view="grid").text,
        here.get("/review", run="mined").text,
        json.dumps(listed(here, "ann")),
    ]
    assert not any("secret" in text or '"texture"]' in text for text in pages)
    answer = give(here, verdict("cat/00003.png", "ann"))
    facts = answer.json()
    assert facts["reveal"] == {
        "cat/00003.png": {"answer": "secret-3", "confidence": 0.9, "suggested": ["texture"]}
    }
    assert (facts["done"], facts["total"], len(facts["kept"])) == (1, COUNT, 1)
    assert "secret-3" in json.dumps(listed(here, "ann", judged=True))
    assert "secret" not in json.dumps(listed(here, "bob", judged=True))  # another is still blind


def test_the_app_and_the_command_line_share_one_store(here, run):
    give(here, verdict("cat/00000.png", "Ann", "reject", tags=["texture"], reason="dark"))
    found = review(run.folder, status=True, quiet=True)
    assert found["outcomes"] == {"reject": 1, "pending": COUNT - 1}
    Store.open(store_path(run.folder)).add(Verdict("cat/00001.png", "bob", "accept"))
    page = here.get("/review", run="mined").text
    assert "Ann" in page and "bob" in page
    rows = [json.loads(line) for line in here.get("/review/export", run="mined").text.splitlines()]
    assert [(r["item"], r["reviewer"], r["verdict"]) for r in rows] == [
        ("cat/00000.png", "Ann", "reject"), ("cat/00001.png", "bob", "accept"),
    ]  # fmt: skip
    assert rows[0]["tags"] == ["texture"] and rows[0]["reason"] == "dark"


def test_a_verdict_sent_twice_is_kept_once(here, run):
    row = verdict("cat/00001.png", "ann")
    assert give(here, row).json() == give(here, row).json()
    assert give(here, row, row).json()["done"] == 1
    assert len(Store.open(store_path(run.folder)).history()) == 1


@pytest.mark.parametrize(
    "rows",
    [
        [], {}, [1], [{}], "x", [verdict("nowhere.png", "ann")], [verdict("cat/00001.png", "")],
        [verdict("cat/00001.png", "ann", "maybe")], [verdict("cat/00001.png", "ann", mark="short")],
        [verdict("cat/00001.png", "a" * 100)], [verdict("cat/00001.png", "a\u0000b")],
        [verdict("cat/00001.png", "ann", role="boss")],
        [verdict("cat/00001.png", "ann"), verdict("nowhere.png", "ann")],
    ],
)  # fmt: skip
def test_verdicts_that_make_no_sense_are_refused_whole(here, run, rows):
    answer = here.post("/review/verdicts.json", params={"run": "mined"}, json=rows)
    assert answer.status_code == 400 and "Traceback" not in answer.text
    path = store_path(run.folder)
    assert not path.exists() or not Store.open(path).history()


def test_pages_of_images_are_behind_a_place(here):
    first, second = listed(here, "ann", most=7), listed(here, "ann", most=7, after=6)
    assert [row["place"] for row in first + second] == list(range(14))
    give(here, *(verdict(row["id"], "ann") for row in first))
    assert [row["place"] for row in listed(here, "ann", most=3)] == [7, 8, 9]
    assert [row["place"] for row in listed(here, "ann", most=3, judged=True)] == [0, 1, 2]
    assert len(here.get("/review/places.json", run="mined", reviewer="ann").json()) == COUNT


def test_work_is_split_and_overlaps_as_planned(here, run):
    answer = here.post(
        "/review/plan",
        params={"run": "mined"},
        data={"reviewers": "ann\nbob, eve", "overlap": "25"},
    )
    assert answer.status_code == 200, answer.text[-500:]
    store = Store.open(store_path(run.folder))
    mine = {name: set(places(store, name)) for name in ("ann", "bob", "eve")}
    everybody = mine["ann"] & mine["bob"] & mine["eve"]
    assert mine["ann"] | mine["bob"] | mine["eve"] == set(range(COUNT))
    assert mine["ann"] & mine["bob"] == everybody == mine["bob"] & mine["eve"]
    assert 5 <= len(everybody) <= 26 and min(map(len, mine.values())) > len(everybody)
    assert {row["place"] for row in listed(here, "bob", most=100)} == mine["bob"]
    assert len(listed(here, "guest", most=100)) == COUNT  # nobody planned for: everything
    again = share_out(store, ["ann", "bob", "eve"], overlap=0.25)
    assert again == {name: len(one) for name, one in mine.items()}


@pytest.mark.parametrize(
    ("names", "overlap"), [(["ann"], 0.2), (["ann", "Ann "], 0.2), (["a", "b"], 1.5), ([], 0.1)]
)
def test_a_plan_that_makes_no_sense_is_refused(here, run, names, overlap):
    given = {"reviewers": "\n".join(names), "overlap": str(100 * overlap)}
    answer = here.post("/review/plan", params={"run": "mined"}, data=given)
    assert answer.status_code == 400


def test_gold_items_are_not_shown_and_say_how_often_each_is_right(here, run):
    given = {"gold": "accept cat/00000.png\nreject cat/00001.png\n\nunsure cat/00002.png"}
    assert here.post("/review/gold", params={"run": "mined"}, data=given).status_code == 200
    assert "gold" not in json.dumps(listed(here, "ann"))
    give(here, *(verdict(f"cat/0000{i}.png", "ann") for i in range(5)))
    give(here, verdict("cat/00001.png", "bob", "accept"), verdict("cat/00001.png", "bob", "reject"))
    numbers = gold_numbers(Store.open(store_path(run.folder)))
    ann, bob = numbers["review.ann.gold"], numbers["review.bob.gold"]
    assert (ann.value, ann.n, bob.value, bob.n) == (1 / 3, 3, 1.0, 1)
    assert "2 gold items" not in here.get("/review", run="mined").text
    assert "3 gold items" in here.get("/review", run="mined").text
    for wrong in ("accept nowhere.png", "perhaps cat/00000.png", "accept"):
        answer = here.post("/review/gold", params={"run": "mined"}, data={"gold": wrong})
        assert answer.status_code == 400
    assert set_gold(Store.open(store_path(run.folder)), {}) == 0


def test_a_third_person_settles_what_two_disagree_on(here, run):
    for i, words in enumerate((("accept", "accept"), ("accept", "reject"), ("unsure", "reject"))):
        give(
            here,
            *(
                verdict(f"cat/0000{i}.png", n, w)
                for n, w in zip(("ann", "bob"), words, strict=True)
            ),
        )
    contested = listed(here, "eve", role="adjudicator")
    assert [row["place"] for row in contested] == [1, 2]
    assert [said["verdict"] for said in contested[0]["others"]] == ["accept", "reject"]
    assert "ann" not in json.dumps(contested[0]["others"])
    assert listed(here, "ANN", role="adjudicator") == []  # nobody settles what they reviewed
    refused = give(here, verdict("cat/00001.png", "ann", role="adjudicator", mark="m" * 20))
    assert refused.status_code == 400 and "both reviewer and adjudicator" in refused.text
    assert give(here, verdict("cat/00001.png", "eve", role="adjudicator")).status_code == 200
    assert [row["place"] for row in listed(here, "eve", role="adjudicator")] == [2]
    page = here.get("/review", run="mined").text
    assert "Fleiss" in page and "Cohen" in page


def test_one_person_is_not_two_by_spelling(run):
    store = Store.create(store_path(run.folder), ["a", "b"], about="x")
    store.add(Verdict("a", "Ann Lee", "accept"))
    assert spelled(store, "  ann   lee ") == "Ann Lee" and spelled(store, "Bo  B") == "Bo B"
    assert [task.item for task in tasks(store, "Ann Lee")] == ["b"]


def test_writers_at_once_lose_double_and_swap_nothing(here, run):
    """Four simulated people, ten requests of five verdicts each, every second one sent twice."""

    def person(name: str) -> None:
        for start in range(0, 50, 5):
            words = [("accept", "reject", "unsure")[(k + len(name)) % 3] for k in range(5)]
            rows = [verdict(f"cat/{start + k:05d}.png", name, word) for k, word in enumerate(words)]
            for _ in range(1 + start % 2):
                assert give(here, *rows).status_code == 200

    names = ["a", "bb", "ccc", "dddd"]
    people = [threading.Thread(target=person, args=(name,)) for name in names]
    for one in people:
        one.start()
    for one in people:
        one.join()
    with sqlite3.connect(store_path(run.folder)) as base:
        rows = base.execute("SELECT reviewer, item, verdict FROM verdicts").fetchall()
    base.close()
    wanted = {
        (name, f"cat/{i:05d}.png", ("accept", "reject", "unsure")[(i % 5 + len(name)) % 3])
        for name in names
        for i in range(50)
    }
    assert len(rows) == 200 and set(rows) == wanted


def test_pairs_of_an_explanation_are_judged_side_by_side(app, tmp_path):
    run = explain_run(tmp_path / "runs" / "explained")
    here = app(tmp_path / "runs")
    page = here.get("/review", run="explained", reviewer="ann").text
    assert 'id="before"' in page
    rows = here.get("/review/items.json", run="explained", reviewer="ann").json()
    assert [row["id"] for row in rows] == ["images/near.png", "images/far.png"]
    assert rows[0]["label"] == "cat" and "path=images%2Foriginal.png" in rows[0]["before"]
    assert "class evidence" not in json.dumps(rows)
    assert sorted(p.name for p in run.folder.parent.glob("*.sqlite")) == ["explained.review.sqlite"]


def test_counterfactuals_of_a_generator_are_judged_as_well(app, tmp_path):
    """`explain diffusion` writes the table uvce."""
    run = explain_run(tmp_path / "runs" / "explained")
    run.write_table("uvce", run.table("counterfactuals"))
    (run.folder / "tables" / "counterfactuals.jsonl").unlink()
    here = app(tmp_path / "runs")
    assert "explained" in here.get("/reviews").text and "explained" in here.get("/repairs").text
    page = here.get("/review", run="explained", reviewer="ann").text
    assert "same class" in page and "over-generalisation" not in page
    rows = here.get("/review/items.json", run="explained", reviewer="ann").json()
    assert (rows[0]["original"], rows[0]["label"]) == ("dog", "cat")


def test_reference_images_and_definitions_come_from_their_folder_alone(app, run, tmp_path):
    home = tmp_path / "references"
    (home / "cat").mkdir(parents=True)
    for i in range(10):
        (home / "cat" / f"{i}.png").write_bytes(picture(i))
    (home / "definitions.json").write_text('{"cat": "a <b>feline</b>"}')
    (home / "cat" / "link.png").symlink_to(tmp_path / "runs" / "mined" / "run.json")
    here = app(run.folder.parent, references=home)
    facts = here.get("/class.json", label="cat").json()
    assert facts["definition"] == "a <b>feline</b>" and len(facts["images"]) == 8
    assert here.client.get(facts["images"][0]["small"]).headers["content-type"] == "image/png"
    for label, file in (
        ("..", "x"),
        ("cat", "../definitions.json"),
        ("cat", "link.png"),
        ("", "a"),
    ):
        answer = here.get("/reference", label=label, file=file)
        assert answer.status_code == 404, (label, file)
    assert here.get("/class.json", label="../..").json()["images"] == []


def test_read_only_shows_a_review_and_takes_nothing(app, run):
    Store.create(store_path(run.folder), [f"cat/{i:05d}.png" for i in range(COUNT)], about="x").add(
        Verdict("cat/00000.png", "ann", "accept")
    )
    here = app(run.folder.parent, read_only=True)
    page = here.get("/review", run="mined", reviewer="ann").text
    assert "read-only" in page and 'method="post"' not in page and "ann" in page
    assert give(here, verdict("cat/00001.png", "bob")).status_code == 403
    store_path(run.folder).unlink()
    for path in ("/review", "/review/items.json", "/review/places.json", "/review/export"):
        here.get(path, run="mined", reviewer="bob")
    assert not store_path(run.folder).exists()


def test_runs_with_nothing_to_review_say_so(app, tmp_path):
    empty = Run.create(tmp_path / "runs" / "empty", "audit", {})
    empty.finish()
    here = app(tmp_path / "runs")
    assert here.get("/review", run="empty").status_code == 400
    assert "Nothing to review yet" in here.get("/reviews").text


def test_a_shortlist_with_a_damaged_row_is_one_line(app, run):
    path = run.file("tables/shortlist.jsonl")
    path.write_text('{"id": "x"}\n', encoding="utf-8")
    here = app(run.folder.parent)
    answer = here.get("/review", run="mined")
    assert answer.status_code == 400 and "Traceback" not in answer.text


def test_a_run_without_its_start_is_one_line(app, run):
    facts = json.loads((run.folder / "run.json").read_text())
    del facts["started"]
    (run.folder / "run.json").write_text(json.dumps(facts))
    answer = app(run.folder.parent).get("/review", run=run.folder.name, reviewer="ann")
    assert answer.status_code == 400 and "was damaged or changed" in answer.text


def test_a_share_has_wilsons_interval():
    """Oracle: the closed form of the metrics, which loads torch."""
    from counterlens.metrics.intervals.closed_form import wilson

    for hits, n in ((0, 1), (3, 7), (7, 7), (50, 100)):
        number = Number.share(hits, n, "x")
        assert (number.low, number.high) == pytest.approx(wilson(hits, n), abs=1e-12)
    assert Number.share(0, 0, "x").value is None
    with pytest.raises(InputError):
        share_out(Store(Path("none.sqlite")), ["one"])
