"""What a model said about every image in one small file: comparisons without its audits.

For zoo_orderings.py, which writes such files (--keep) and reads them where audits can stand.
"""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from counterlens.errors import InputError
from counterlens.runs import atomic
from zoo_audits import Points, Rows

_PARTS = ("outside", "worst", "doubled")


def keep(points: Points, row: str, path: Path) -> None:
    """Write the points of a row of the table; the file is whole or not there."""
    facts = {
        "row": row, "card": points.card, "weights": points.weights, "audits": points.audits,
        "temperature": points.temperature, "marks": points.marks,
    }  # fmt: skip
    arrays: dict[str, Any] = {}
    lists: dict[tuple[str, ...], str] = {}  # many quantities are of the same images
    for name, rows in _named(points):
        key = lists.setdefault(tuple(rows), f"ids/{len(lists)}")
        arrays[key] = np.array([i.encode() for i in rows])
        arrays[f"{key}/{name}"] = np.array(list(rows.values()))
    arrays["facts"] = np.array(json.dumps(facts))
    with atomic(path) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)


def _named(points: Points) -> Iterator[tuple[str, Rows]]:
    yield "right", points.right
    yield "known", points.known
    for (column, version), rows in points.robust.items():
        yield f"robust/{column}/{version}", rows
    for part in _PARTS:
        for name, rows in getattr(points, part).items():
            yield f"{part}/{name}", rows


def read(path: Path) -> tuple[str, Points]:
    """The row of the table and its points."""
    try:
        with np.load(path) as file:
            facts = json.loads(str(file["facts"]))
            rows = dict(_rows(file))
        points = Points(
            facts["card"], facts["weights"], facts["temperature"], rows["right"], rows["known"],
            marks=facts["marks"], audits=facts["audits"],
        )  # fmt: skip
        for key, values in rows.items():
            part, _, name = key.partition("/")
            if part == "robust":
                column, _, version = name.rpartition("/")
                points.robust[column, version] = values
            elif part in _PARTS:
                getattr(points, part)[name] = values
        return facts["row"], points
    except (KeyError, OSError, ValueError, TypeError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} holds no points that zoo_orderings.py kept: {error}.") from error


def _rows(file: np.lib.npyio.NpzFile) -> Iterator[tuple[str, Rows]]:
    for key in file.files:
        _, _, rest = key.partition("ids/")
        number, _, name = rest.partition("/")
        if name:
            ids = (i.decode() for i in file[f"ids/{number}"].tolist())
            yield name, dict(zip(ids, file[key], strict=True))
