"""Verdicts: kappas against scikit-learn and a worked table of Fleiss 1971; the store against real
processes that write at once and are killed."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from counterlens.errors import InputError
from counterlens.review import Store, Verdict, agreement, cohen, decisions, fleiss, store_path

WORDS = ("accept", "reject", "unsure")


@pytest.fixture
def store(tmp_path) -> Store:
    return Store.create(tmp_path / "v.sqlite", [f"img {i}" for i in range(50)], about="run")


@pytest.mark.parametrize("seed", range(5))
def test_cohen_is_scikit_learns(seed) -> None:
    rng = np.random.default_rng(seed)
    a = rng.choice(WORDS, 60, p=[0.6, 0.3, 0.1]).tolist()
    b = [w if rng.random() < 0.7 else str(rng.choice(WORDS)) for w in a]
    assert cohen(a, b) == pytest.approx(cohen_kappa_score(a, b), abs=1e-12)


def test_fleiss_of_a_worked_table() -> None:
    """Ten subjects, fourteen raters, five categories: the textbook example gives 0.210."""
    table = [
        [0, 0, 0, 0, 14], [0, 2, 6, 4, 2], [0, 0, 3, 5, 6], [0, 3, 9, 2, 0], [2, 2, 8, 1, 1],
        [7, 7, 0, 0, 0], [3, 2, 6, 3, 0], [2, 5, 3, 2, 2], [6, 5, 2, 1, 0], [0, 2, 2, 3, 7],
    ]  # fmt: skip
    assert fleiss(np.array(table, float)) == pytest.approx(0.20993, abs=1e-5)


def literal_fleiss(ratings: list[list[str]]) -> float:
    agree, pairs_total = 0.0, 0
    for words in ratings:
        pairs = [(a, b) for i, a in enumerate(words) for j, b in enumerate(words) if i != j]
        agree += sum(a == b for a, b in pairs) / len(pairs)
        pairs_total += 1
    observed = agree / pairs_total
    every = [w for words in ratings for w in words]
    chance = sum((n / len(every)) ** 2 for n in Counter(every).values())
    return (observed - chance) / (1 - chance)


def test_fleiss_with_unequal_numbers_is_a_literal_count_of_pairs() -> None:
    rng = np.random.default_rng(1)
    ratings = [rng.choice(WORDS, rng.integers(2, 6)).tolist() for _ in range(40)]
    counts = np.array([[r.count(w) for w in WORDS] for r in ratings], float)
    assert fleiss(counts) == pytest.approx(literal_fleiss(ratings), abs=1e-12)
    alone = np.vstack([counts, [[1, 0, 0]]])  # one verdict says nothing about agreement
    assert fleiss(alone) == pytest.approx(fleiss(counts), abs=1e-12)


def test_agreement_that_cannot_be_measured_says_why() -> None:
    numbers = agreement(["a"], [Verdict("a", "ann", "accept")])
    assert numbers["review.fleiss"].reason == "no image has two verdicts"
    same = [Verdict(i, who, "accept") for i in "ab" for who in ("ann", "bob")]
    numbers = agreement(["a", "b"], same)
    assert numbers["review.ann-bob.cohen"].reason == "all verdicts are the same"


def test_intervals_hold_the_kappa_and_narrow_with_more_images() -> None:
    rng = np.random.default_rng(2)
    widths = []
    for n in (30, 300):
        items = [str(i) for i in range(n)]
        said = []
        for i in items:
            word = str(rng.choice(WORDS))
            other = word if rng.random() < 0.8 else str(rng.choice(WORDS))
            said += [Verdict(i, "ann", word), Verdict(i, "bob", other)]
        number = agreement(items, said)["review.fleiss"]
        assert number.low <= number.value <= number.high and number.n == n
        widths.append(number.high - number.low)
    assert widths[1] < widths[0] / 2


def test_the_last_word_counts_and_everything_said_is_kept(store) -> None:
    store.add(Verdict("img 0", "ann", "accept", "sharp"))
    store.add(Verdict("img 0", "ann", "reject", "on second thought", tags=("texture",)))
    assert [v.verdict for v in store.history()] == ["accept", "reject"]
    (last,) = store.latest()
    assert (last.verdict, last.reason, last.tags) == ("reject", "on second thought", ("texture",))
    assert "img 0" not in store.pending("ann") and "img 0" in store.pending("bob")


def test_decisions_follow_all_reviewers_or_the_adjudicator() -> None:
    said = [
        *(Verdict("a", who, "accept", tags=("texture",)) for who in ("ann", "bob")),
        Verdict("b", "ann", "accept"),
        Verdict("b", "bob", "reject"),
        Verdict("c", "ann", "unsure"),
        Verdict("d", "ann", "accept"),
        Verdict("d", "bob", "reject"),
        Verdict("d", "eve", "accept", role="adjudicator"),
        Verdict("f", "ann", "reject"),
    ]
    found = {k: d.outcome for k, d in decisions("abcdef", said).items()}
    assert found == {
        "a": "accept", "b": "contested", "c": "contested", "d": "accept", "e": "pending",
        "f": "reject",
    }  # fmt: skip
    assert decisions("af", said, least=2)["f"].outcome == "pending"
    assert decisions("a", said)["a"].tags == ("texture",)


def test_verdicts_go_out_as_lines_and_come_back_once(store, tmp_path) -> None:
    store.add(
        [
            Verdict("img 1", "ann", "accept", 'says "so"\u2028really'),
            Verdict("img 2", "Ñ", "unsure"),
        ]
    )
    assert store.export(tmp_path / "v.jsonl") == 2
    other = Store.create(tmp_path / "w.sqlite", store.items(), about="run")
    assert other.take(tmp_path / "v.jsonl") == 2
    assert other.take(tmp_path / "v.jsonl") == 0
    assert other.history() == store.history()


def test_bad_verdicts_are_refused_and_none_of_their_file_is_kept(store, tmp_path) -> None:
    lines = [
        {"item": "img 3", "reviewer": "ann", "verdict": "accept"},
        {"item": "nowhere", "reviewer": "ann", "verdict": "accept"},
    ]
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    with pytest.raises(InputError, match="not in the shortlist"):
        store.take(path)
    assert store.history() == []
    path.write_text('{"item": "img 3"}', encoding="utf-8")
    with pytest.raises(InputError, match="line 1"):
        store.take(path)
    with pytest.raises(InputError, match="expected accept"):
        Verdict("img 3", "ann", "yes")
    with pytest.raises(InputError, match="reviewer"):
        Verdict("img 3", " ", "accept")


def test_a_store_of_other_images_or_no_store_is_refused(store, tmp_path) -> None:
    with pytest.raises(InputError, match="other images"):
        Store.create(store.path, ["x"], about="another run")
    (tmp_path / "text").write_text("no database at all, but long enough to be looked at" * 9)
    with pytest.raises(InputError, match="cannot be used"):
        Store.create(tmp_path / "text", ["x"], about="run")
    with pytest.raises(InputError, match="no verdicts"):
        Store.open(tmp_path / "absent")
    assert store_path(Path("runs/a")).name == "a.review.sqlite"


WRITER = """
import sys
from counterlens.review import Store, Verdict
store = Store.open(sys.argv[1])
for k in range(int(sys.argv[3])):
    mark = f"{sys.argv[2]}-{k}"
    store.add(Verdict(f"img {k % 50}", sys.argv[2], "accept", mark=mark))
    print(mark, flush=True)
"""


def writer(store: Store, name: str, count: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WRITER, str(store.path), name, str(count)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_writers_at_once_lose_and_double_nothing(store) -> None:
    people = [writer(store, f"p{i}", 40) for i in range(4)]
    for person in people:
        assert person.communicate(timeout=120)[0].count("\n") == 40
        assert person.returncode == 0
    marks = [v.mark for v in store.history()]
    assert sorted(marks) == sorted(f"p{i}-{k}" for i in range(4) for k in range(40))


def _said(store: Store, *who: str) -> int:
    return sum(verdict.mark.startswith(who) for verdict in store.history())


def test_what_was_said_before_a_kill_is_there_after_it(store) -> None:
    """Two writers are killed without warning while they write; a third goes on."""
    doomed = [writer(store, f"d{i}", 100_000) for i in range(2)]
    calm = writer(store, "calm", 60)
    deadline = time.monotonic() + 60
    while _said(store, "d0-", "d1-") < 20 and time.monotonic() < deadline:
        time.sleep(0.02)
    for process in doomed:
        os.kill(process.pid, signal.SIGKILL)
    acknowledged = [
        line for process in doomed for line in process.communicate()[0].split("\n") if line
    ]
    assert calm.communicate(timeout=120)[0].count("\n") == 60
    marks = [v.mark for v in store.history()]
    assert len(marks) == len(set(marks))
    assert set(acknowledged) <= set(marks) and len(acknowledged) > 0
    assert len(set(marks) - set(acknowledged)) <= 60 + len(doomed)  # at most one each in flight
    base = sqlite3.connect(store.path)
    assert base.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert base.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    base.close()
