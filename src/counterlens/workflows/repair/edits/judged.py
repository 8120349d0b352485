"""Edited pictures from a run folder: those that people accepted, or those of `cgn compose`.

    explain, quality       counterfactuals: accepted ones get their target as the label, as in
                           counterfactual knowledge distillation; rejected ones with the tag
                           "same class" keep the label of their original
    repair --plan          pairs that `--write-pairs` wrote: accepted ones keep the label
    cgn compose            every image without a flag, as a version of the photograph of its shape

Paper: Bender et al. 2023 (cfkd2023), where a teacher's answer on a counterfactual is its label.
Differs: the teacher is whoever reviewed; without pairs of one class nothing has to agree.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from counterlens.errors import InputError
from counterlens.images import ImageSet, Pixels, read
from counterlens.review import Store, store_path
from counterlens.review.pairs import PAIR_TABLES, seen
from counterlens.runs import Run, read_lines, user_path
from counterlens.workflows.repair.edits.made import Edited, other_value
from counterlens.workflows.repair.groups import Codes, Grouped

COMPOSED = "counterfactuals.jsonl"


@dataclass(frozen=True)
class EditedImage:
    """One edited picture of a run.

    Args:
        of: id of its original.
        path: its file.
        label: name of its class; empty where it is that of its original.
        value: name of its value; empty where the run does not know it.
    """

    of: str
    path: Path
    label: str = ""
    value: str = ""


def run_edit(images: ImageSet, rows: Codes, by: Grouped, folder: str) -> Edited:
    """Edited versions of pictures of the set; unrelated: the picture mirrored.

    The value of a version is the one that the run names, its original's where the class changed,
    and else the other one of two.
    """
    run = Run.open(user_path(folder))
    place = {str(images.ids[row]): row for row in rows.tolist()}
    every = versions(run)
    taken = [one for one in every if one.of in place]
    if not taken:
        example = f" It has versions of {every[0].of}, for example." if every else ""
        raise InputError(
            f"{run.folder} has a version of none of the fix images, for example of "
            f"{images.ids[int(rows[0])]}.{example}"
        )
    found = np.array([place[one.of] for one in taken], dtype=np.int64)
    labels = _codes([one.label for one in taken], by.classes, by.labels[found], run)
    own, other = by.values[found], other_value(by, found)
    values = np.where(labels == by.labels[found], other, own)
    values = _codes([one.value for one in taken], by.names, values, run)

    def read_edited(j: int) -> Pixels:
        return read(taken[j].path)

    def unrelated(j: int) -> Pixels:
        return images.read(int(found[j]))[:, ::-1].copy()

    return Edited(found, read_edited, unrelated, values, labels)


def _codes(texts: list[str], names: tuple[str, ...], otherwise: Codes, run: Run) -> Codes:
    """The place of each text among the names; another code where the text is empty."""
    place = {name: i for i, name in enumerate(names)}
    for text in texts:
        if text and text not in place:
            raise InputError(
                f"{run.folder} has pairs of {text!r}, which is none of {', '.join(names)}."
            )
    codes = [place[t] if t else int(code) for t, code in zip(texts, otherwise, strict=True)]
    return np.array(codes, dtype=np.int64)


def versions(run: Run) -> list[EditedImage]:
    """The edited pictures of a run that may be trained on."""
    if (run.folder / COMPOSED).is_file():
        return [
            EditedImage(str(row["shape_id"]), run.file(str(row["path"])), str(row["label"]))
            for _, row in read_lines(run.folder / COMPOSED)
            if not row.get("flags")
        ]
    rows = [row for name in PAIR_TABLES for row in run.table(name)]
    rows = [row for row in rows if row.get("image") and row.get("original")]
    if not rows:
        raise InputError(
            f"{run.folder} has no pairs: give the run of counterlens explain, cgn compose, or "
            "repair with plan=True and write_pairs=N."
        )
    return _judged(run, rows)


def _judged(run: Run, rows: list[dict[str, Any]]) -> list[EditedImage]:
    path, items = store_path(run.folder), [str(row["image"]) for row in rows]
    latest = Store(path).latest() if path.is_file() else []
    shows = seen(items, latest)
    out = [
        _version(run, row, changed=shows[item] == "target")
        for row, item in zip(rows, items, strict=True)
        if item in shows
    ]
    if not out:
        raise InputError(
            f"none of the {len(rows)} pairs of {run.folder} was accepted by a reviewer: judge them "
            "first, counterlens app FOLDER, page Repairs."
        )
    return out


def _version(run: Run, row: Mapping[str, Any], *, changed: bool) -> EditedImage:
    label = str(row.get("target") or "") if changed else ""
    return EditedImage(
        str(row["id"]), run.file(str(row["image"])), label, str(row.get("value") or "")
    )
