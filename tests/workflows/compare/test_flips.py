"""Flips between two releases: counts by hand, intervals against SciPy's, gates end to end."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from counterlens.errors import InputError
from counterlens.runs import Number, Run, store_logits
from counterlens.workflows.compare.flips import flip_rate, flips
from counterlens.workflows.compare.run import compare


def audited(folder: Path, name: str, right: list[bool], ids: list[str] | None = None) -> Path:
    """A finished audit of two classes: class 0 is always true, and answered where right."""
    run = Run.create(folder, "audit", {"model": name, "data": "shots"})
    logits = np.array([[1.0, 0.0] if hit else [0.0, 1.0] for hit in right])
    names = ids or [str(i) for i in range(len(right))]
    store_logits(run, "shots", logits, labels=[0] * len(right), ids=names)
    run.add_numbers({"accuracy.top1": Number(sum(right) / len(right), len(right), 0, 1, "test")})
    run.note(model=name, data="shots")
    run.finish()
    return folder


def test_flips_are_counted_by_hand() -> None:
    before = np.array([True, True, True, False, False])
    after = np.array([True, False, False, True, False])
    found = flips(before, after)
    assert found["negative"].tolist() == [False, True, True, False, False]
    assert found["positive"].tolist() == [False, False, False, True, False]


@pytest.mark.parametrize(("hits", "n"), [(0, 50), (1, 50), (20, 1000), (50, 50)])
def test_the_interval_is_that_of_scipy(hits: int, n: int) -> None:
    number = flip_rate(np.arange(n) < hits, "negative", "images")
    theirs = binomtest(hits, n).proportion_ci(method="wilson")
    assert number.value == hits / n
    assert (number.low, number.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


def test_images_are_matched_by_id_and_listed(tmp_path: Path) -> None:
    old = audited(tmp_path / "old", "old", [True, True, False, True], ["a", "b", "c", "d"])
    new = audited(tmp_path / "new", "new", [True, True, False, False], ["c", "b", "a", "e"])
    run = compare(old, new, out=tmp_path / "both")
    assert (run.numbers["flips.negative"].value, run.numbers["flips.negative"].n) == (1 / 3, 3)
    assert run.numbers["flips.positive"].value == 1 / 3
    listed = {(row["flip"], row["image"]) for row in run.table("flips")}
    assert listed == {("negative", "a"), ("positive", "c")}
    assert "Flip rates" in (run.folder / "report.html").read_text(encoding="utf-8")


def test_the_gate_looks_at_the_upper_bound(tmp_path: Path) -> None:
    old = audited(tmp_path / "old", "old", [True] * 300)
    same = audited(tmp_path / "same", "same", [True] * 300)
    worse = audited(tmp_path / "worse", "worse", [False] * 6 + [True] * 294)
    rule = "flips.negative.high<=0.02"
    good = compare(old, same, require=rule, out=tmp_path / "good")
    bad = compare(old, worse, require=[rule], out=tmp_path / "bad")
    assert [row["passed"] for row in good.table("gates")] == [True]
    assert [row["passed"] for row in bad.table("gates")] == [False]
    assert bad.numbers["flips.negative"].value == 0.02  # the value alone would have passed


def test_three_models_are_each_set_against_the_first(tmp_path: Path) -> None:
    right = {"one": [True, True], "two": [False, True], "three": [False, False]}
    runs = [audited(tmp_path / name, name, flags) for name, flags in right.items()]
    numbers = compare(runs, out=tmp_path / "all").numbers
    assert numbers["flips.two.negative"].value == 0.5
    assert numbers["flips.three.negative"].value == 1.0
    assert "flips.negative" not in numbers


def test_a_gate_that_cannot_be_read_is_refused_before_a_run_is_opened(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not of the form KEY>=NUMBER"):
        compare(tmp_path / "none", tmp_path / "nor", require="flips.negative")
