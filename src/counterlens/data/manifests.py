"""Manifests: a table with a picture per row.

Columns: `path` (relative to the manifest, or absolute), `label` (class name; empty or absent
where unknown), `id` (default: the path). All further columns become `extra`.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from counterlens.data.sets import Aside, file_set, unfit
from counterlens.errors import InputError
from counterlens.images import ImageSet

Row = dict[str, str]


def open_manifest(path: Path, *, name: str, aside: list[Aside] | None = None) -> ImageSet:
    """The pictures that a .csv, .tsv or .jsonl file lists.

    Args:
        aside: where to put files that cannot be read, in place of refusing the whole table.
    """
    try:
        rows = list(_lines(path) if path.suffix.lower() == ".jsonl" else _cells(path))
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text. Save it as UTF-8.") from None
    if not rows:
        raise InputError(f"{path} lists no pictures, expected rows with a path column.")
    for number, row in enumerate(rows, 1):
        if not row.get("path"):
            raise InputError(
                f"{path} has no path in row {number} (columns: {', '.join(row)}), expected the "
                "columns path and label."
            )
    if aside is not None:
        why = [unfit(path.parent / row["path"]) for row in rows]
        aside += [(r.get("id") or r["path"], w) for r, w in zip(rows, why, strict=True) if w]
        rows = [row for row, reason in zip(rows, why, strict=True) if not reason]
    classes = _classes({row.get("label", "") for row in rows} - {""})
    number_of = {label: k for k, label in enumerate(classes)}
    opened = file_set(
        name,
        path.parent,
        [row["path"] for row in rows],
        [number_of.get(row.get("label", ""), -1) for row in rows],
        classes,
        ids=[row.get("id") or row["path"] for row in rows],
    )
    further = dict.fromkeys(
        key for row in rows for key in row if key not in ("path", "label", "id")
    )
    return replace(opened, extra={key: _column(rows, key) for key in further})


def _cells(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            table = csv.DictReader(file, dialect="excel-tab" if path.suffix == ".tsv" else "excel")
            for row in table:
                if None in row or None in row.values():
                    raise InputError(
                        f"{path}, line {table.line_num}: expected {len(table.fieldnames or ())} "
                        "cells, as in the header."
                    )
                yield {key.strip(): value.strip() for key, value in row.items()}
        except csv.Error as error:
            raise InputError(f"{path} is not a table of comma-separated values: {error}.") from None


def _lines(path: Path) -> Iterator[Row]:
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {number}: not JSON ({error.msg}).") from None
        if not isinstance(row, dict):
            raise InputError(f'{path}, line {number}: expected {{"path": …, "label": …}}.')
        yield {str(key): "" if value is None else str(value) for key, value in row.items()}


def _classes(labels: set[str]) -> list[str]:
    if all(label.isascii() and label.isdigit() for label in labels):
        return sorted(labels, key=int)  # 2 before 10
    return sorted(labels)


def _column(rows: list[Row], key: str) -> np.ndarray:
    texts = [row.get(key, "") for row in rows]
    for kind in (np.int64, np.float64):
        try:
            return np.array([kind(text) for text in texts])
        except ValueError:
            continue
    return np.array(texts)
