"""The shortlist of a curation as its run keeps it; a run may come from anyone: rows are checked."""

from typing import Any

from counterlens.errors import InputError
from counterlens.runs import Run, read_object

_COLUMNS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("id", "label", "answer", "image", "sha256"), str),
    "confidence": (int, float),
    "width": int,
    "height": int,
}


def shortlist(run: Run) -> list[dict[str, Any]]:
    """The rows, best first; one without what a curation writes, or outside the run, is refused."""
    rows = run.table("shortlist")
    for number, row in enumerate(rows, 1):
        wrong = [key for key, kind in _COLUMNS.items() if not isinstance(row.get(key), kind)]
        if wrong:
            raise InputError(
                f"{run.folder}/tables/shortlist.jsonl, row {number}: {wrong[0]} is "
                f"{row.get(wrong[0])!r}, which no curation writes. The run was changed or torn."
            )
        run.file(row["image"])
    return rows


def about(run: Run) -> str:
    """What ties a store of verdicts to a run: its settings' name, its start and its data."""
    facts = run.manifest
    return f"{facts['name']} {facts['started']} {facts.get('data_fingerprint')}"


def classes_of(run: Run) -> list[str]:
    """The classes in which a curation judged its images."""
    path = run.file("tables/classes.json")
    classes = read_object(path).get("classes")
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise InputError(f"{path} has no list of classes: the run was changed or torn.")
    return classes
