"""A run folder is data: someone else's, torn, tampered with or locked, it is one clear line."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from counterlens.errors import InputError, RunExists, StorageError
from counterlens.runs import Number, Run, atomic, inside, key_part, short_name
from counterlens.workflows.compare.run import compare
from counterlens.workflows.report import report
from report_runs import audit_run

DEEP = "[" * 200_000


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished audit with all tables, pictures and logits."""
    return audit_run(tmp_path_factory.mktemp("audited") / "run").folder


@pytest.fixture
def theirs(audited: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may spoil."""
    return Path(shutil.copytree(audited, tmp_path / "theirs"))


def spoil(path: Path, change: Callable[[str], str] | str) -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(change if isinstance(change, str) else change(text), encoding="utf-8")


def number(**change: object) -> str:
    row = {"value": 0.5, "n": 10, "low": 0.4, "high": 0.6, "protocol": "p", **change}
    return json.dumps({"schema": 1, "numbers": {"accuracy.top1": row}})


@pytest.mark.parametrize("command", [report, lambda run: compare([run, run])])
@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("run.json", ""),
        ("run.json", lambda text: text[: len(text) // 2]),
        ("run.json", "[]"),
        ("run.json", "null"),
        ("run.json", DEEP),
        ("run.json", '{"command": "audit"}'),
        ("run.json", '{"command": ["audit"], "settings": {}}'),
        ("result.json", lambda text: text[: len(text) // 2]),
        ("result.json", "[1, 2]"),
        ("result.json", '{"numbers": [1]}'),
        ("result.json", '{"numbers": {"accuracy.top1": 0.5}}'),
        ("result.json", '{"numbers": {"accuracy.top1": {}}}'),
        ("result.json", number(value="high")),
        ("result.json", number(value=10**400, high=10**400)),
        ("result.json", number(n="many")),
        ("result.json", number(trust="no")),
        ("result.json", number(value=0.9)),  # outside its interval
        ("result.json", number(value=float("nan"))),
        ("result.json", DEEP),
    ],
    ids=lambda value: None if callable(value) else str(value)[:40],
)
def test_a_torn_or_malformed_file_of_a_run_is_one_line(
    theirs: Path, command: Callable[[Path], object], file: str, change: Callable[[str], str] | str
) -> None:
    spoil(theirs / file, change)
    with pytest.raises(InputError) as caught:
        command(theirs)
    assert "\n" not in str(caught.value) and str(theirs) in str(caught.value)


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("gates", '{"gate": "x"'),
        ("gates", "[1]"),
        ("gates", '{"gate": "x"}'),
        ("per_class", '{"class": 3}'),
        ("reliability", '{"when": "before", "low": "x"}'),
        ("gallery", '{"group": "mistakes"}'),
        ("gallery", '{"group": "mistakes", "image": "a\\u0000b.png"}'),
        ("response_rate", '{"rate": null, "accuracy": []}'),
        ("doctor", DEEP),
    ],
)
def test_a_malformed_table_is_one_line(theirs: Path, table: str, row: str) -> None:
    (theirs / "tables" / f"{table}.jsonl").write_text(row + "\n")
    with pytest.raises(InputError) as caught:
        report(theirs)
    assert "\n" not in str(caught.value) and str(theirs) in str(caught.value)


def test_logits_that_do_not_fit_their_ids_are_refused(theirs: Path) -> None:
    facts = json.loads((theirs / "logits" / "cifar10.json").read_text())
    for change in ({"labels": [10**30]}, {"ids": []}, {"temperature": "hot"}, {"role": None}):
        (theirs / "logits" / "cifar10.json").write_text(json.dumps({**facts, **change}))
        if change != {"role": None}:
            with pytest.raises(InputError, match="changed or torn"):
                compare([theirs, theirs])
    (theirs / "logits" / "cifar10.json").write_text(json.dumps(facts))
    np.save(theirs / "logits" / "cifar10.npy", np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match="changed or torn"):
        compare([theirs, theirs])


def test_a_line_separator_inside_a_string_ends_no_line(tmp_path: Path) -> None:
    """U+2028, U+2029 and U+0085 end a line for str.splitlines, not for JSON lines."""
    run = Run.create(tmp_path / "r", "audit", {})
    rows = [{"id": f"a{mark}b"} for mark in ("\u2028", "\u2029", "\x85", "\x0b", "\x1c")]
    run.write_table("odd", rows)
    assert run.table("odd") == rows


@pytest.mark.parametrize("how", ["dots", "absolute", "link", "folder link"])
def test_a_report_shows_no_picture_from_outside_the_run(
    theirs: Path, tmp_path: Path, how: str
) -> None:
    secret = tmp_path / "private" / "secret.png"
    secret.parent.mkdir()
    shutil.copy(next((theirs / "images").glob("*.png")), secret)
    name = {"dots": "../private/secret.png", "absolute": str(secret)}.get(how, "images/x.png")
    if how == "link":
        (theirs / name).symlink_to(secret)
    if how == "folder link":
        shutil.rmtree(theirs / "images")
        (theirs / "images").symlink_to(secret.parent)
        name = "images/secret.png"
    row = {"group": "mistakes", "image": name, "label": "cat", "predicted": "dog"}
    (theirs / "tables" / "gallery.jsonl").write_text(json.dumps({**row, "confidence": 0.9}) + "\n")
    (theirs / "report.html").unlink(missing_ok=True)
    with pytest.raises(InputError, match="outside"):
        report(theirs)
    assert not (theirs / "report.html").exists()


@pytest.mark.parametrize("file", ["run.json", "result.json", "tables/gates.jsonl"])
def test_a_link_out_of_the_run_is_not_read(theirs: Path, tmp_path: Path, file: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.move(theirs / file, elsewhere)
    (theirs / file).symlink_to(elsewhere)
    with pytest.raises(InputError, match="outside"):
        report(theirs)


def test_a_folder_inside_may_be_reached_through_a_link_to_the_run(theirs: Path) -> None:
    link = theirs.with_name("link")
    link.symlink_to(theirs)
    assert report(link) == link
    assert inside(link, "images") == link / "images"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="FIFOs are of POSIX systems")
@pytest.mark.parametrize("file", ["result.json", "tables/gates.jsonl", "logits/cifar10.npy"])
def test_a_fifo_in_a_run_is_not_waited_for(theirs: Path, file: str) -> None:
    (theirs / file).unlink()
    os.mkfifo(theirs / file)
    with pytest.raises(InputError, match="FIFO"):
        compare([theirs, theirs]) if file.endswith(".npy") else report(theirs)


WRITER = """
import sys, time
from pathlib import Path
from counterlens.runs import Run, atomic
run = Run.create(Path(sys.argv[1]), "audit", {"seed": 0})
with atomic(run.path("tables", "half.jsonl")) as part:
    part.write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""


def test_one_process_writes_a_run_and_a_kill_gives_it_free(tmp_path: Path) -> None:
    """Two real processes: the second is refused while the first lives, and only then."""
    folder = tmp_path / "r"
    command = [sys.executable, "-c", WRITER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        try:
            assert first.stdout is not None and first.stdout.readline() == "writing\n"
            for resume in (False, True):
                with pytest.raises(RunExists, match=f"another process .process {first.pid} on"):
                    Run.create(folder, "audit", {"seed": 0}, resume=resume)
            assert list(folder.rglob("*.part"))
        finally:
            first.kill()
    run = Run.create(folder, "audit", {"seed": 0}, resume=True)
    assert not list(folder.rglob("*.part"))
    run.finish()
    assert sorted(p.name for p in folder.iterdir()) == ["DONE", "run.json", "tables"]


def test_a_refused_run_leaves_no_lock_and_stays_free(tmp_path: Path) -> None:
    Run.create(tmp_path / "r", "audit", {"seed": 0})
    child = "from counterlens.runs.lock import lock; from pathlib import Path; import sys\n"
    child += "try: lock(Path(sys.argv[1]))\nexcept Exception as e: print(type(e).__name__)\n"

    def locked() -> str:
        done = [sys.executable, "-c", child, str(tmp_path / "r")]
        return subprocess.run(done, capture_output=True, text=True, check=True).stdout.strip()

    assert locked() == "RunExists"  # held by this process
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(RunExists, match="holds no run"):
        Run.create(tmp_path / "mine", "audit", {})
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_a_run_folder_removed_while_it_is_written_is_not_made_again(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "r", "audit", {})
    shutil.rmtree(run.folder)
    one = Number(1, 1, 1, 1, "p")
    for write in (
        lambda: run.write_table("t", [{"a": 1}]),
        lambda: run.add_numbers({"a.b": one}),
        lambda: atomic(run.folder / "state" / "checkpoint.pt").__enter__(),
    ):
        with pytest.raises((StorageError, InputError), match=r"removed|run\.json"):
            write()
    assert not run.folder.exists()


def test_long_names_become_short_and_stay_apart(tmp_path: Path) -> None:
    """120 CJK characters are 360 bytes; a file name may have 255."""
    one, two = "猫" * 120, "猫" * 119 + "犬"
    parts = {key_part(one), key_part(two), key_part("cat")}
    assert len(parts) == 3 and "cat" in parts
    assert all(len(part.encode()) <= 120 for part in parts)
    assert short_name("x" * 120) == "x" * 120
    with atomic(tmp_path / ("y" * 250)) as part:
        part.write_text("whole")
    assert (tmp_path / ("y" * 250)).read_text() == "whole"
