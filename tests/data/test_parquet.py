"""Parquet manifests, written by pyarrow itself; oracle: the same table as CSV."""

import sys

import numpy as np
import pytest

from counterlens.data import open_set
from counterlens.errors import InputError, MissingExtra
from counterlens.images import write_png

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def test_a_parquet_manifest_opens_as_the_same_csv(tmp_path):
    for i in range(3):
        write_png(tmp_path / f"{i}.png", np.full((4, 4, 3), 40 * i, np.uint8))
    cells = {"path": ["0.png", "1.png", "2.png"], "label": ["cat", None, "dog"], "age": [1, 2, 3]}
    parquet.write_table(pyarrow.table(cells), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("path,label,age\n0.png,cat,1\n1.png,,2\n2.png,dog,3\n")
    ours, other = open_set(str(tmp_path / "a.parquet")), open_set(str(tmp_path / "a.csv"))
    assert ours.labels.tolist() == [0, -1, 1]
    assert (ours.ids, ours.classes, ours.fingerprint) == (
        other.ids, other.classes, other.fingerprint,
    )  # fmt: skip
    assert ours.extra["age"].tolist() == [1, 2, 3]


def test_a_broken_file_and_a_missing_library_are_one_line(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 cut short")
    with pytest.raises(InputError, match="no whole Parquet file"):
        open_set(str(tmp_path / "a.parquet"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"counterlens\[formats\]"):
        open_set(str(tmp_path / "a.parquet"))
