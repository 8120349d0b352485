"""What each model sees: one picture changed towards one class for every model of a comparison.

It needs audits that were explained in pixel space on the same pictures: `counterlens explain MODEL
IMAGE --target CLASS --out AUDIT/explained`, for each of them.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from counterlens.report.pages.chapter import latest
from counterlens.runs import Run, atomic, key_part

ChangeKey = tuple[str, str, str, float]
"""Picture, target, norm and radius: what models must share to be put side by side."""


def seen_rows(runs: Mapping[str, Run]) -> list[dict[str, Any]]:
    """A row per picture, target and model, where every model has the counterfactual.

    The pictures are named by their files in the folders of the explanations; `copy_seen` brings
    them into the comparison.
    """
    changes = {name: _changes(run) for name, run in runs.items()}
    first, *others = changes.values()
    common = [key for key in first if all(key in other for other in others)]
    largest: dict[tuple[str, str, str], float] = {}
    for image, target, norm, radius in common:
        place = (image, target, norm)
        largest[place] = max(largest.get(place, 0.0), radius)
    return [
        {"model": name, **changes[name][key]}
        for key in common
        if largest[key[:3]] == key[3]
        for name in runs
    ]


def _changes(run: Run) -> dict[ChangeKey, dict[str, Any]]:
    """The counterfactuals of an audit's newest explanation."""
    explained = latest(run) if run.manifest["command"] == "audit" else None
    if explained is None:
        return {}
    columns = (
        "id",
        "label",
        "predicted",
        "confidence",
        "target",
        "before",
        "after",
        "norm",
        "radius",
    )
    return {
        (str(row["id"]), str(row["target"]), str(row["norm"]), float(row["radius"])): {
            **{name: row.get(name) for name in columns},
            "original": str(explained.file(row["original"])),
            "image": str(explained.file(row["image"])),
        }
        for row in explained.table("counterfactuals")
    }


def copy_seen(run: Run, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rows with their pictures inside the comparison."""
    copied = []
    for row in rows:
        files = {
            kind: _copy(run, Path(row[kind]), f"{key_part(row['model'])}-{kind}")
            for kind in ("original", "image")
        }
        copied.append({**row, **files})
    return copied


def _copy(run: Run, source: Path, kind: str) -> str:
    name = f"{kind}-{source.name}"
    with atomic(run.path("images", name)) as part:
        shutil.copyfile(source, part)
    return f"images/{name}"
