"""Manifests: a table with a picture per row.

Columns: `path` (relative to the manifest, or absolute), `label` (class name; empty or absent
where unknown), `id` (default: the path). All other columns become `extra`. In place of `label`,
`labels` has any number of names, joined by | or ; (in JSON and Parquet also a list).
"""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np

from counterlens.data.provenance import NAMES
from counterlens.data.sets import Excluded, file_set, fingerprint, unfit
from counterlens.data.targets import matrix_of, parse_names, with_targets
from counterlens.errors import InputError, MissingExtra, first_line
from counterlens.images import ImageSet
from counterlens.runs import plain_file, read_lines

_Columns = dict[str, list[str]]
"""The cells of a table by the name of their column; all columns are of one length."""


def open_manifest(path: Path, *, name: str, excluded: list[Excluded] | None = None) -> ImageSet:
    """The pictures that a .csv, .tsv, .jsonl or .parquet file lists.

    Args:
        excluded: where to put files that cannot be read, in place of refusing the whole table.
    """
    readers = {".jsonl": _from_lines, ".parquet": _from_parquet}
    table = readers.get(path.suffix.lower(), _from_cells)(path)
    if not any(table.values()):
        raise InputError(f"{path} lists no pictures, expected rows with a path column.")
    if "" in table.get("path", [""]):
        row = table.get("path", [""]).index("") + 1
        raise InputError(
            f"{path} has no path in row {row} (columns: {', '.join(table)}), expected the "
            "columns path and label."
        )
    files = table.pop("path")
    ids = [i or file for i, file in zip(table.pop("id", files), files, strict=True)]
    several = [parse_names(cell) for cell in table.pop("labels", [])] or None
    labels = table.pop("label", [""] * len(files))
    if several and any(labels):
        raise InputError(
            f"{path} has the columns label and labels, expected one of them: label for one class "
            "per picture, labels for any number."
        )
    if excluded is not None:
        why = [unfit(path.parent / file) for file in files]
        excluded += [(i, reason) for i, reason in zip(ids, why, strict=True) if reason]
        fit = [k for k, reason in enumerate(why) if not reason]
        if len(fit) < len(files):
            files, ids, labels = ([column[k] for k in fit] for column in (files, ids, labels))
            several = several and [several[k] for k in fit]
            table = {key: [column[k] for k in fit] for key, column in table.items()}
    classes = _classes(set(labels) - {""})
    number_of = {label: k for k, label in enumerate(classes)} | {"": -1}
    opened = file_set(
        name, path.parent, files, [number_of[label] for label in labels], classes, ids=ids
    )
    extra = {  # a licence or an author is text, even one that reads as a number
        key: np.array(column, dtype=object) if key in NAMES else _typed(column)
        for key, column in table.items()
    }
    opened = replace(opened, extra=extra)
    if several is None:
        return opened
    names = _classes({name for given in several for name in given})
    marks = fingerprint("|".join(given) for given in several)
    opened = replace(opened, fingerprint=fingerprint((opened.fingerprint, marks)))
    return with_targets(opened, matrix_of(several, names), names)


def _from_cells(path: Path) -> _Columns:
    """The columns of a .csv or .tsv file, read row by row: a million rows in a few seconds."""
    plain_file(path, what="table")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, "excel-tab" if path.suffix == ".tsv" else "excel")
            head = [cell.strip() for cell in next(rows, [])]
            cells: list[list[str]] = [[] for _ in head]
            adders = [column.append for column in cells]
            for row in rows:
                if not row:
                    continue
                if len(row) != len(head):
                    raise InputError(
                        f"{path}, line {rows.line_num}: expected {len(head)} cells, as in the "
                        "header."
                    )
                for add, cell in zip(adders, row, strict=True):
                    add(cell)
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text. Save it as UTF-8.") from None
    except csv.Error as error:
        raise InputError(f"{path} is not a table of comma-separated values: {error}.") from None
    return {key: [cell.strip() for cell in column] for key, column in zip(head, cells, strict=True)}


def _from_lines(path: Path) -> _Columns:
    """The columns of a .jsonl file; a key that a line lacks is empty there."""
    rows = [row for _, row in read_lines(path)]
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: [_cell(row.get(key)) for row in rows] for key in keys}


def _from_parquet(path: Path) -> _Columns:
    """The columns of a Parquet file; an empty cell is empty text."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra(
            f"{path} needs pyarrow. Install it: pip install 'counterlens[formats]'."
        ) from None
    plain_file(path, what="table")
    try:
        stored = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path} is no whole Parquet file ({first_line(error)}).") from None
    return {key: [_cell(value) for value in stored[key].to_pylist()] for key in stored.column_names}


def _cell(value: object) -> str:
    """A value as text; a list of labels as the names of one cell."""
    if isinstance(value, list):
        return "|".join(map(str, value))
    return "" if value is None else str(value)


def _classes(labels: set[str]) -> list[str]:
    if all(label.isascii() and label.isdigit() and len(label) < 19 for label in labels):
        return sorted(labels, key=int)  # 2 before 10
    return sorted(labels)


def _typed(texts: list[str]) -> np.ndarray:
    """Whole numbers, numbers, or texts (objects, so that one long cell costs once)."""
    for kind in (np.int64, np.float64):
        try:
            return np.array([kind(text) for text in texts])
        except (ValueError, OverflowError):
            continue
    return np.array(texts, dtype=object)
