"""The comparison of golden runs: what must be caught and what must be let through."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden", ROOT / "tools" / "golden.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["golden"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


golden = tool()
NUMBER = {"value": 0.1234567890123, "n": 40, "protocol": "mean over 40 images"}
NUMBERS = {"accuracy.top1": NUMBER, "ood.found.mmc": NUMBER}
RESULT = {"schema": 1, "run": "a", "numbers": {**NUMBERS, "quality.pixel.seconds": {"value": 1.5}}}


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    """The same run twice, at other times."""
    before, after = tmp_path / "before", tmp_path / "after"
    run = before / "audit" / "run"
    write(run / "result.json", RESULT)
    write(run / "run.json", {"settings": {"old": 1}, "started": "2020-01-01"})
    row = {"id": "x", "told": 3, "seconds": 1.5, "images_per_second": 7.5}
    write(
        run / "tables" / "rows.jsonl", {**row, "at": "2026-01-02T03:04:05+00:00", "when": "before"}
    )
    (run / "logits").mkdir()
    np.save(run / "logits" / "x.npy", np.arange(6.0))
    np.savez(run / "shard.npz", x=np.arange(3))
    (run / "report.html").write_text("one", encoding="utf-8")
    (before / "audit" / "stdout.txt").write_text(f"{before.resolve()}/audit/run\n")
    (before / "audit" / "exit.txt").write_text("0\n")
    shutil.copytree(before, after)
    run = after / "audit" / "run"
    numbers = {**NUMBERS, "quality.pixel.seconds": {"value": 2.5}}
    write(run / "result.json", {**RESULT, "run": "b", "numbers": numbers})
    row = {"seconds": 2.5, "when": "before", "id": "x", "told": 3, "images_per_second": 8.5}
    write(run / "tables" / "rows.jsonl", {**row, "at": "2026-02-03T04:05:06.789+00:00"})
    np.savez_compressed(run / "shard.npz", x=np.arange(3))
    (run / "report.html").write_text("two", encoding="utf-8")
    (after / "audit" / "stdout.txt").write_text(f"{after.resolve()}/audit/run\n")
    return before, after


def lines(sets: tuple[Path, Path], renames: str = "", **more: bool) -> list[str]:
    listed = sets[0].parent / "renames.txt"
    listed.write_text(renames, encoding="utf-8")
    return list(golden.compare(*sets, golden.Renames.read(listed), **more))


def edit(sets: tuple[Path, Path], name: str, old: str, new: str) -> None:
    path = sets[1] / "audit" / "run" / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_times_paths_and_the_order_of_keys_do_not_matter(sets: tuple[Path, Path]) -> None:
    assert lines(sets) == []
    assert golden.main(["compare", *map(str, sets)]) == 0


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        ("result.json", "0.1234567890123", "0.1234567890124", "/numbers/accuracy.top1/value"),
        ("result.json", '"n": 40', '"n": 40.0', "40 before, 40.0 after"),
        ("result.json", '"n": 40', '"n": "40"', '40 before, "40" after'),
        ("result.json", '"n": 40, ', "", "/numbers/accuracy.top1/n: missing after"),
        ("result.json", '"schema": 1', '"schema": 1, "more": 2', "/more: not there before"),
        ("result.json", "mean over", "sum over", "sum over 40 images"),
        ("tables/rows.jsonl", '"before"', '"after"', "line 1/when"),
        ("tables/rows.jsonl", '"told": 3', '"told": 4', "line 1/told: 3 before, 4 after"),
    ],
)  # fmt: skip
def test_a_change_of_one_value_is_caught(
    sets: tuple[Path, Path], name: str, old: str, new: str, told: str
) -> None:
    edit(sets, name, old, new)
    found = lines(sets)
    assert any(told in line for line in found), found
    assert all(line.startswith(f"audit: run/{name}: ") for line in found)
    assert golden.main(["compare", *map(str, sets)]) == 1


def test_a_renamed_key_is_a_difference_unless_it_is_listed(sets: tuple[Path, Path]) -> None:
    edit(sets, "result.json", "ood.found.mmc", "ood.result.mmc")
    edit(sets, "tables/rows.jsonl", '"told"', '"num_evaluations"')
    assert len(lines(sets)) == 8  # three values of the number and one of the row, on both sides
    listed = "# intended\nfound -> result\ntold -> num_evaluations\n"
    assert lines(sets, listed) == []
    edit(sets, "tables/rows.jsonl", ": 3", ": 4")
    assert lines(sets, listed) == [
        "audit: run/tables/rows.jsonl: line 1/num_evaluations: 3 before, 4 after"
    ]


def test_texts_files_and_dropped_keys_may_be_listed(sets: tuple[Path, Path]) -> None:
    edit(sets, "result.json", "mean over", "average of")
    edit(sets, "result.json", '"schema": 1, ', "")
    run = sets[1] / "audit" / "run"
    (run / "tables" / "rows.jsonl").rename(run / "tables" / "results.jsonl")
    assert len(lines(sets)) == 5
    listed = "text: mean over -> average of\nfile: rows.jsonl -> results.jsonl\ndrop: schema\n"
    assert lines(sets, listed) == []


def test_a_missing_or_new_file_is_caught(sets: tuple[Path, Path]) -> None:
    run = sets[1] / "audit" / "run"
    (run / "tables" / "rows.jsonl").unlink()
    (run / "tables" / "new.jsonl").write_text("{}\n", encoding="utf-8")
    assert lines(sets) == [
        "audit: run/tables/rows.jsonl: missing after",
        "audit: run/tables/new.jsonl: not there before",
    ]


def test_changed_arrays_and_exit_codes_are_caught(sets: tuple[Path, Path]) -> None:
    run = sets[1] / "audit" / "run"
    np.save(run / "logits" / "x.npy", np.arange(6.0) + 1e-12)
    np.savez(run / "shard.npz", x=np.arange(4))
    (sets[1] / "audit" / "exit.txt").write_text("1\n")
    assert [line.split(": ")[1] for line in lines(sets)] == [
        "exit.txt",
        "run/logits/x.npy",
        "run/shard.npz",
    ]


def test_a_command_that_was_not_run_is_caught(sets: tuple[Path, Path]) -> None:
    shutil.copytree(sets[0] / "audit", sets[0] / "doctor")
    assert lines(sets) == [f"doctor: only in {sets[0]}"]


def test_manifests_are_compared_when_asked_for(sets: tuple[Path, Path]) -> None:
    edit(sets, "run.json", '"old": 1', '"new": 1')
    assert lines(sets) == []
    assert len(lines(sets, manifests=True)) == 2
    assert lines(sets, "old -> new", manifests=True) == []


def test_a_line_that_is_no_rename_is_refused(sets: tuple[Path, Path]) -> None:
    with pytest.raises(SystemExit, match=r"renames.txt:1: 'found result', expected old -> new"):
        lines(sets, "found result")


def test_every_row_can_be_cut_into_words_and_comes_after_what_it_needs() -> None:
    order = golden.ordered(golden.COMMANDS)
    assert set(order) == set(golden.COMMANDS)
    for name in golden.COMMANDS:
        assert "{" not in " ".join(golden.words_of(name))
        assert all(order.index(other) < order.index(name) for other in golden.needs(name))
    assert golden.needs("compare") == ["audit-fast", "audit-standard"]
    assert {*golden.TYPED, *golden.AFTER, *golden.EXITS} <= set(golden.COMMANDS)


def test_every_command_of_the_command_line_has_a_row() -> None:
    from typer.main import get_command

    from counterlens.cli import app

    def leaves(command, words: tuple[str, ...]) -> set[tuple[str, ...]]:
        inner = getattr(command, "commands", None)
        if inner is None:
            return {words}
        return {leaf for name, one in inner.items() for leaf in leaves(one, (*words, name))}

    rows = [golden.words_of(name) for name in golden.COMMANDS]
    missing = [
        leaf
        for leaf in leaves(get_command(app), ())
        if not any(tuple(row[1 : 1 + len(leaf)]) == leaf for row in rows)
    ]
    assert missing == []
