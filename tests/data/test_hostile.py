"""Folders and tables that would hang or crash a reader: each is refused or set aside by name."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from counterlens.data import open_set
from counterlens.data.sets import Excluded
from counterlens.data.sources.frozen import SCHEMA
from counterlens.data.sources.pools import open_part
from counterlens.errors import InputError
from counterlens.images import read

posix = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="FIFOs are of POSIX systems")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes with a picture each."""
    for name in ("cat", "dog"):
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8), "red").save(tmp_path / "data" / name / "1.png")
    return tmp_path / "data"


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


ODD = [
    pytest.param(lambda path: os.mkfifo(path), "FIFO|no plain file", id="FIFO", marks=posix),
    pytest.param(lambda path: path.symlink_to("/dev/zero"), "device|no plain file", id="device"),
    pytest.param(link_to_itself, "symbolic links", id="link to itself"),
    pytest.param(lambda path: path.symlink_to("gone"), "No such file", id="dead link"),
]


@pytest.mark.parametrize(("make", "why"), ODD)
def test_what_is_no_plain_file_is_refused_by_audit_and_set_aside_by_curate(
    folder: Path, make: object, why: str
) -> None:
    """Opening must come back: a FIFO without a writer and /dev/zero never end."""
    assert callable(make)
    make(folder / "cat" / "odd.png")
    with pytest.raises(InputError, match=rf"odd\.png.*({why})"):
        open_set(str(folder))
    with pytest.raises(InputError, match=rf"odd\.png.*({why})"):
        read(folder / "cat" / "odd.png")
    excluded: list[Excluded] = []
    assert list(open_part(str(folder), excluded).ids) == ["cat/1.png", "dog/1.png"]
    assert [name for name, _ in excluded] == ["cat/odd.png"]


def test_a_link_to_itself_in_place_of_a_class_folder(folder: Path) -> None:
    link_to_itself(folder / "bird")
    assert open_set(str(folder)).classes == ("cat", "dog")


@pytest.mark.parametrize("path", ["/dev/zero", "a\0b.png", "x" * 300 + ".png", "."])
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_table_that_names_what_cannot_be_read(tmp_path: Path, path: str, form: str) -> None:
    table = tmp_path / f"t.{form}"
    line = json.dumps({"path": path, "label": "cat"})
    table.write_text(f"path,label\n{path},cat\n" if form == "csv" else line + "\n")
    with pytest.raises(InputError) as caught:
        open_set(str(table))
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="1 were set aside"):
        open_part(str(table), [])


def test_whole_numbers_beyond_64_bits_stay_what_they_are(folder: Path) -> None:
    big = 10**30
    text = f"path,label,serial\ncat/1.png,1,{big}\ndog/1.png,{big},2\n"
    (folder / "t.csv").write_text(text)
    opened = open_set(str(folder / "t.csv"))
    assert opened.classes == ("1", str(big))
    assert [float(cell) for cell in opened.extra["serial"]] == [1e30, 2.0]


def test_one_long_cell_does_not_widen_a_whole_column(folder: Path) -> None:
    """A fixed-width array would take 4 bytes × rows × the longest cell."""
    rows = ["cat/1.png,cat,x"] * 2000 + [f"cat/1.png,cat,{'y' * 100_000}"]
    (folder / "t.csv").write_text("path,label,note\n" + "\n".join(rows) + "\n")
    opened = open_set(str(folder / "t.csv"))
    assert opened.extra["note"].nbytes < 100_000
    assert len(opened.extra["note"][-1]) == 100_000


def test_a_line_separator_inside_a_json_string(folder: Path) -> None:
    row = {"path": "cat/1.png", "label": "a\u2028b\u0085c"}
    (folder / "t.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    assert open_set(str(folder / "t.jsonl")).classes == ("a\u2028b\u0085c",)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"path": "a.png"', "3", '{"path": 1e999}'])
def test_lines_that_are_no_rows(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.jsonl").write_text(text + "\n")
    with pytest.raises(InputError) as caught:
        open_set(str(tmp_path / "t.jsonl"))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def frozen(at: Path, **change: object) -> Path:
    """A frozen set of one picture, as `curate freeze` writes it but for what is changed."""
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(at / "1.png")
    row = {"id": "1", "file": "1.png", "label": "cat", "sha256": "0" * 64}
    card = {"schema": SCHEMA, "kind": "adversarial", "format": "folder", "images": 1}
    card |= {"classes": ["cat", "dog"], "filters": []}
    facts = {**card, **{k: v for k, v in change.items() if k in card}}
    line = {**row, **{k: v for k, v in change.items() if k in row}}
    (at / "card.json").write_text(json.dumps(facts))
    (at / "images.jsonl").write_text(json.dumps(line) + "\n")
    return at


def test_a_whole_frozen_set_opens(tmp_path: Path) -> None:
    assert list(open_set(str(frozen(tmp_path))).ids) == ["1"]


@pytest.mark.parametrize(
    "change",
    [
        {"file": "../../etc/passwd"},
        {"file": "/etc/passwd"},
        {"file": 3},
        {"label": "bird"},
        {"classes": 3},
        {"kind": "strange"},
        {"images": 2},
        {"format": "webdataset", "file": "1.png#x"},
    ],
    ids=str,
)
def test_a_tampered_frozen_set_is_one_line(tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(InputError) as caught:
        open_set(str(frozen(tmp_path, **change)))
    assert "\n" not in str(caught.value)
