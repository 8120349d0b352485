"""The study: orders, sides, results, and their intervals.

Oracles: counting by hand; a literal double loop over drawn raters and pairs; simulated raters whose
answers agree within a rater.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from counterlens.errors import InputError
from counterlens.review.study import (
    CONTROL,
    QUESTIONS,
    Answer,
    Pair,
    StudyAnswers,
    arm_of,
    results,
    share,
    trials,
)

PAIRS = [Pair(f"{i} cat", "dog", "o.png", {"ours": "l.png", "theirs": "r.png"}) for i in range(30)]


def answer(rater: str, pair: str, better: str, yes: bool = True, **more: object) -> Answer:
    questions = {name: {"A": yes, "B": not yes} for name in QUESTIONS}
    given = {"a": "ours", "b": "theirs", "questions": questions, **more}
    return Answer(
        rater=rater, pair=pair, better=better, mark=f"{rater} {pair} {better}".ljust(20), **given
    )  # type: ignore[arg-type]


def test_each_rater_has_an_order_and_sides_of_their_own_and_always_the_same():
    ann, again, bob = (trials(PAIRS, name) for name in ("Ann", " ann ", "bob"))
    assert ann == again
    assert [t.pair.name for t in ann] != [t.pair.name for t in bob]
    assert {t.pair.name for t in ann} == {t.pair.name for t in bob} == {p.name for p in PAIRS}
    assert all({t.a, t.b} == {"ours", "theirs"} for t in ann)
    left = Counter(t.a for k in range(200) for t in trials(PAIRS, f"rater {k}"))
    assert abs(left["ours"] - 3000) < 5 * np.sqrt(6000 * 0.25)
    first = Counter(trials(PAIRS, f"rater {k}")[0].pair.name for k in range(600))
    assert len(first) == 30 and max(first.values()) < 45


def test_half_of_the_raters_are_the_control_where_there_is_one():
    arms = Counter(arm_of(f"rater {k}", control=True) for k in range(1000))
    assert abs(arms["control"] - 500) < 80
    assert {arm_of(f"rater {k}", control=False) for k in range(50)} == {"methods"}


def test_results_are_the_shares_counted_by_hand(tmp_path: Path):
    store = StudyAnswers(tmp_path / "s.sqlite")
    store.add(answer("ann", "1", "A"))
    store.add(answer("ann", "2", "B", yes=False))
    store.add(answer("bob", "1", "equal"))
    store.add(answer("bob", "2", "A"))
    store.add(answer("bob", "2", "B", yes=False))  # thinks again: the later one counts
    control = {"a": "ours", "b": CONTROL, "questions": {}, "arm": "control"}
    store.add(answer("eve", "1", "B", **control))
    store.add(answer("eve", "1", "B", **control))  # sent twice
    found = results(store.latest())
    assert len(store.latest()) == 5
    assert found["study.ours.realistic"].value == found["study.ours.object"].value == 0.5
    assert found["study.theirs.features"].value == 0.5
    assert found["study.ours.methods_better"].value == 0.25
    assert found["study.theirs.methods_better"].value == 0.5
    assert found["study.equal.methods_better"].value == 0.25
    assert found[f"study.{CONTROL}.control_better"].value == 1.0
    assert found["study.ours.control_better"].value == 0.0
    assert found["study.ours.realistic"].n == 4
    assert "2 raters on 2 pairs" in found["study.ours.realistic"].protocol


def test_the_interval_is_that_of_a_literal_loop():
    rng = np.random.default_rng(1)
    cells = [(f"r{i}", f"p{j}", bool(rng.random() < 0.6)) for i in range(5) for j in range(6)]
    number = share(cells, "x", seed=3)
    raters, pairs = [f"r{i}" for i in range(5)], [f"p{j}" for j in range(6)]
    told = {(r, p): y for r, p, y in cells}
    other = np.random.default_rng(3)
    values = []
    for _ in range(2000):
        drawn_raters = [raters[k] for k in other.integers(0, 5, 5)]
        drawn_pairs = [pairs[k] for k in other.integers(0, 6, 6)]
        values.append(np.mean([told[r, p] for r in drawn_raters for p in drawn_pairs]))
    low, high = np.quantile(values, [0.025, 0.975])
    assert number.value == pytest.approx(np.mean([y for *_, y in cells]))
    assert (number.low, number.high) == pytest.approx((low, high))


def test_answers_that_depend_on_the_rater_have_wider_intervals():
    rng = np.random.default_rng(0)
    alike = [(f"r{i}", f"p{j}", i % 2 == 0) for i in range(8) for j in range(20)]
    apart = [(r, p, bool(rng.random() < 0.5)) for r, p, _ in alike]
    wide, narrow = share(alike, "x"), share(apart, "x")
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)
    assert share([("a", "1", True)] * 3, "x").low < 0.5  # all yes: no interval of width zero


@pytest.mark.parametrize(
    "wrong",
    [
        {"better": "C"}, {"questions": {}}, {"arm": "other"}, {"a": "theirs"},
        {"questions": {name: {"A": True} for name in QUESTIONS}},
    ],
)  # fmt: skip
def test_an_answer_that_makes_no_sense_is_refused(wrong):
    given = {"better": "A", **wrong}
    with pytest.raises(InputError):
        answer("ann", "1", **given)
