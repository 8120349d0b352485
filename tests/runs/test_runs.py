"""Runs against plain facts: what is written comes back whole or not at all, never overwritten."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterlens.errors import InputError, RunExists
from counterlens.runs import (
    Number,
    Run,
    append_line,
    atomic,
    discard_unstarted,
    key_part,
    new_folder,
    read_json,
    store_logits,
    stored_logits,
    write_json,
)
from counterlens.runs.keys import meaning, show, show_interval

finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
plain = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | finite | st.text()


def test_a_new_run_has_a_manifest_and_is_not_done(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "r", "audit", {"model": "m", "radii": [0.5, 1]})
    assert run.manifest["command"] == "audit"
    assert run.manifest["settings"] == {"model": "m", "radii": [0.5, 1]}
    assert {"python", "torch", "counterlens"} <= run.manifest["versions"].keys()
    assert not run.done
    run.finish()
    assert run.done
    assert not (run.folder / "state").exists()


def test_a_finished_run_is_never_overwritten(tmp_path: Path) -> None:
    Run.create(tmp_path / "r", "audit", {}).finish()
    with pytest.raises(RunExists, match="finished"):
        Run.create(tmp_path / "r", "audit", {}, resume=True)


def test_an_unfinished_run_is_continued_only_with_resume_and_the_same_settings(
    tmp_path: Path,
) -> None:
    Run.create(tmp_path / "r", "audit", {"seed": 0}).add_numbers({"a.b": Number(1, 1, 1, 1, "p")})
    with pytest.raises(RunExists, match="resume=True"):
        Run.create(tmp_path / "r", "audit", {"seed": 0})
    with pytest.raises(RunExists, match="seed"):
        Run.create(tmp_path / "r", "audit", {"seed": 1}, resume=True)
    with pytest.raises(RunExists, match="command"):
        Run.create(tmp_path / "r", "train", {"seed": 0}, resume=True)
    again = Run.create(tmp_path / "r", "audit", {"seed": 0}, resume=True)
    assert again.numbers["a.b"].value == 1


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunExists, match="not empty"):
        Run.create(tmp_path, "audit", {})
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_folder_without_manifest_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no run\.json"):
        Run.open(tmp_path)


@given(st.lists(st.dictionaries(st.text(min_size=1), plain, max_size=4), max_size=5))
def test_tables_come_back_as_written(tmp_path_factory: pytest.TempPathFactory, rows: list) -> None:
    run = Run.create(tmp_path_factory.mktemp("r") / "run", "audit", {})
    run.write_table("t", rows)
    assert run.table("t") == rows
    assert run.tables() == ["t"]


def test_line_separators_inside_a_name_do_not_cut_a_table(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "r", "audit", {})
    rows = [{"class": "a\u2028b\x85c\x0bd"}]
    run.write_table("t", rows)
    assert run.table("t") == rows


def test_numpy_scalars_are_written_as_numbers(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "r", "audit", {})
    run.write_table("t", [{"n": np.int64(3), "x": np.float32(0.5)}])
    assert run.table("t") == [{"n": 3, "x": 0.5}]


def test_an_absent_table_is_empty(tmp_path: Path) -> None:
    assert Run.create(tmp_path / "r", "audit", {}).table("nothing") == []


def test_nan_is_never_written(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "r", "audit", {})
    with pytest.raises(ValueError, match="JSON"):
        run.write_table("t", [{"x": math.nan}])
    with pytest.raises(ValueError, match="finite"):
        Number(math.nan, 1, None, None, "p")
    with pytest.raises(ValueError, match="reason"):
        Number(None, 0, None, None, "p")
    with pytest.raises(ValueError, match="outside"):
        Number(0.5, 1, 0.6, 0.7, "p")
    assert run.tables() == []


@given(finite, st.floats(0, 10), st.floats(0, 10), st.integers(0, 10**9), st.text())
def test_a_number_survives_its_json(value: float, a: float, b: float, n: int, told: str) -> None:
    number = Number(value, n, value - a, value + b, told, trust={"verdict": "weak"})
    assert Number.from_json(json.loads(json.dumps(number.to_json()))) == number


def test_the_later_of_two_numbers_with_one_key_is_kept(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "r", "audit", {})
    run.add_numbers({"a.b": Number(1, 1, 1, 1, "p"), "c.d": Number(3, 1, 3, 3, "p")})
    run.add_numbers({"a.b": Number(2, 1, 2, 2, "p")})
    assert {k: n.value for k, n in run.numbers.items()} == {"a.b": 2, "c.d": 3}
    assert read_json(run.folder / "result.json")["schema"] == 1


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"old": True})
    with pytest.raises(RuntimeError), atomic(path) as part:
        part.write_text('{"new": tr')
        raise RuntimeError
    assert read_json(path) == {"old": True}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_killed_writer_leaves_the_old_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"old": True})
    code = (
        "import os, signal, sys; from pathlib import Path; from counterlens.runs import atomic\n"
        f"with atomic(Path({str(path)!r})) as part:\n"
        "    part.write_text('{\"half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    died = subprocess.run([sys.executable, "-c", code], check=False, env={**os.environ})
    assert died.returncode == -signal.SIGKILL
    assert read_json(path) == {"old": True}


def test_lines_are_appended(tmp_path: Path) -> None:
    for i in range(3):
        append_line(tmp_path / "deep" / "log.jsonl", {"i": i})
    lines = (tmp_path / "deep" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["i"] for line in lines] == [0, 1, 2]


def test_kept_logits_come_back_with_their_facts(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "r", "audit", {})
    logits = np.arange(6, dtype=np.float32).reshape(2, 3)
    store_logits(run, "svhn", logits, labels=[-1, -1], ids=["a", "b"], role="ood", temperature=1.5)
    kept = stored_logits(run)["svhn"]
    np.testing.assert_array_equal(kept.logits, logits)
    assert (kept.role, kept.ids, kept.temperature) == ("ood", ("a", "b"), 1.5)
    assert kept.labels.tolist() == [-1, -1]


def test_kept_logits_refuse_rows_that_do_not_fit(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "r", "audit", {})
    with pytest.raises(InputError, match="one row, one label and one id"):
        store_logits(run, "x", np.zeros((2, 3)), labels=[0], ids=["a", "b"])
    assert stored_logits(run) == {}


def test_new_folders_do_not_collide(tmp_path: Path) -> None:
    first = new_folder("audit", "timm:resnet/18 @ x", root=tmp_path)
    first.mkdir()
    second = new_folder("audit", "timm:resnet/18 @ x", root=tmp_path)
    assert first != second
    assert first.parent == tmp_path
    assert not set(first.name) & set(":/@ ")


@given(st.text())
def test_key_parts_hold_no_sign_that_a_gate_could_not_name(text: str) -> None:
    part = key_part(text)
    assert all(c.isalnum() or c in "-_." for c in part)
    assert key_part(part) == part


def test_keys_are_read_as_documented() -> None:
    assert meaning("accuracy.top1").label == "Accuracy"
    found = meaning("ood.street.view.worst_auroc")
    assert (found.area, found.subject, found.metric) == ("ood", "street.view", "worst_auroc")
    assert found.label == "Worst-case AUROC, street.view"
    assert meaning("calibration.ece_scaled").better == "down"
    unknown = meaning("my.own.thing")
    assert (unknown.label, unknown.unit, unknown.limit) == ("my.own.thing", "plain", None)


def test_values_are_shown_in_their_unit() -> None:
    assert show(0.5, "share") == "50.0\u202f%"
    assert show(-0.012, "share") == "−1.2\u202f%"
    assert show_interval(Number(0.5, 3, None, None, "p"), "share") == ""


def test_a_run_that_found_nothing_is_discarded_but_no_other(tmp_path: Path) -> None:
    kept = Run.create(tmp_path / "runs" / "kept", "audit", {})
    kept.path("state", "outputs.npy").touch()
    discard_unstarted()
    assert kept.folder.exists()
    Run.create(kept.folder, "audit", {}, resume=True)
    discard_unstarted()
    assert kept.folder.exists()
    empty = Run.create(tmp_path / "runs" / "empty", "audit", {})
    empty.write_table("matching", [])
    discard_unstarted()
    assert not empty.folder.exists()
