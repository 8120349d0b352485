"""The ratchet: states by hand over three releases, what must fail, what a file must not be."""

import json
from pathlib import Path

import numpy as np
import pytest

from counterlens.errors import InputError
from counterlens.runs import Number, Run, store_logits
from counterlens.workflows.compare.ratchet import check, ratchet
from counterlens.workflows.compare.run import compare


def audited(
    folder: Path, right: dict[str, bool], groups: dict[str, str] | None = None, data: str = "shots"
) -> Path:
    """A finished audit of two classes: class 0 is always true, and answered where right."""
    run = Run.create(folder, "audit", {"model": folder.name, "data": data})
    logits = np.array([[1.0, 0.0] if hit else [0.0, 1.0] for hit in right.values()])
    store_logits(run, data, logits, labels=[0] * len(right), ids=list(right))
    run.add_numbers({"accuracy.top1": Number(0.5, len(right), 0, 1, "test")})
    if groups:
        run.write_table("group_values", [{"image": i, "site": s} for i, s in groups.items()])
    run.note(model=folder.name, data=data)
    run.finish()
    return folder


def test_a_suite_only_tightens(tmp_path: Path) -> None:
    suite = tmp_path / "failures.json"
    first = audited(tmp_path / "first", {"a": False, "b": False, "c": True})
    second = audited(tmp_path / "second", {"a": True, "b": False, "c": True})
    third = audited(tmp_path / "third", {"a": False, "b": True, "c": False})
    ratchet(suite, first, add="wrong", out=tmp_path / "1")
    assert json.loads(suite.read_text())["images"] == {"a": "open", "b": "open"}
    run = ratchet(suite, second, out=tmp_path / "2")
    assert json.loads(suite.read_text())["images"] == {"a": "mended", "b": "open"}
    assert run.numbers["ratchet.mended"].value == 1 and run.table("gates")[0]["passed"]
    before = suite.read_text()
    run = ratchet(suite, third, add="wrong", out=tmp_path / "3")
    assert not run.table("gates")[0]["passed"]
    assert run.table("ratchet")[0] == {"image": "a", "state": "wrong again"}
    assert suite.read_text() == before  # a release that fails changes nothing
    assert "wrong again" in (tmp_path / "3" / "report.html").read_text()


def test_an_image_that_was_not_seen_fails(tmp_path: Path) -> None:
    suite = tmp_path / "failures.json"
    ratchet(suite, audited(tmp_path / "first", {"a": False, "b": True}), add="wrong",
            out=tmp_path / "1")  # fmt: skip
    run = ratchet(suite, audited(tmp_path / "second", {"b": True}), out=tmp_path / "2")
    assert not run.table("gates")[0]["passed"] and run.numbers["ratchet.missing"].value == 1


def test_every_image_of_the_suite_is_in_one_state() -> None:
    known = {"a": "mended", "b": "mended", "c": "open", "d": "open", "e": "open"}
    found = check(known, {"a": True, "b": False, "c": True, "d": False})
    parts = (found.held, found.broken, found.newly, found.open, found.missing)
    assert parts == (("a",), ("b",), ("c",), ("d",), ("e",))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ids.txt", "a\nc\n"),
        ("ids.csv", "image,verdict\na,wrong\nc,wrong\n"),
        ("ids.jsonl", '{"id": "a"}\n{"id": "c"}\n'),
    ],
)
def test_reviewed_ids_are_collected(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    run = audited(tmp_path / "first", {"a": False, "b": False, "c": True})
    ratchet(tmp_path / "s.json", run, add=str(tmp_path / name), out=tmp_path / "1")
    assert set(json.loads((tmp_path / "s.json").read_text())["images"]) == {"a", "c"}


def test_bad_suites_and_ids_are_one_line(tmp_path: Path) -> None:
    run, suite = audited(tmp_path / "first", {"a": False}), tmp_path / "s.json"
    with pytest.raises(InputError, match="does not exist"):
        ratchet(suite, run)
    with pytest.raises(InputError, match="expected wrong, or"):
        ratchet(suite, run, add="nowhere.csv")
    (tmp_path / "ids.txt").write_text("z\n")
    with pytest.raises(InputError, match="1 of its 1 ids are not among"):
        ratchet(suite, run, add=str(tmp_path / "ids.txt"))
    (tmp_path / "ids.csv").write_text("name\nz\n")
    with pytest.raises(InputError, match="has no column"):
        ratchet(suite, run, add=str(tmp_path / "ids.csv"))
    suite.write_text('{"images": {"a": "perhaps"}}')
    with pytest.raises(InputError, match="no suite of a ratchet"):
        ratchet(suite, run)
    other = audited(tmp_path / "other", {"a": False}, data="others")
    suite.unlink()
    ratchet(suite, run, add="wrong", out=tmp_path / "1")
    with pytest.raises(InputError, match="collects images of shots"):
        ratchet(suite, other)


def test_flips_by_group_are_counted_and_the_worst_is_gated(tmp_path: Path) -> None:
    ids = [str(i) for i in range(120)]
    site = {i: ("A" if int(i) < 60 else "B") for i in ids} | {"0": "C"}
    old = audited(tmp_path / "old", dict.fromkeys(ids, True), site)
    new = audited(tmp_path / "new", {i: int(i) % 10 != 7 or int(i) < 60 for i in ids})
    run = compare(old, new, require="flips.groups.worst.negative<=0.05", out=tmp_path / "both")
    assert run.numbers["flips.groups.site.B.negative"].value == pytest.approx(0.1)
    assert run.numbers["flips.groups.site.A.negative"].value == 0
    assert run.numbers["flips.groups.site.A.negative"].n == 59
    assert "flips.groups.site.C.negative" not in run.numbers
    worst = run.numbers["flips.groups.worst.negative"]
    assert worst.high == run.numbers["flips.groups.site.B.negative"].high
    assert not run.table("gates")[0]["passed"]
    assert "B" in [row["value"] for row in run.table("group_flips")]
