"""What of a run people can judge: a shortlist, doubtful labels, or pairs of pictures.

A run may come from anyone: rows without what a command writes are refused by name.
"""

import sqlite3
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from counterlens.errors import InputError
from counterlens.review import TAGS, Store, store_path
from counterlens.review.pairs import PAIR_TABLES, SAME_CLASS
from counterlens.review.shortlist import about
from counterlens.runs import Run, reading

_OF_PAIRS = ("not realistic", "more changed than should")

_making = threading.Lock()
_held: dict[Path, sqlite3.Connection] = {}
"""Stores that this process has made or checked, each with a connection that stays open."""


@dataclass(frozen=True)
class Item:
    """One item to judge.

    Args:
        id: its name in the store of verdicts.
        label: its class, or the target of a changed picture.
        original: class of the picture it was made of, where that is known.
        image: picture in the run; `before`: the picture it was made of, empty where there is none.
        answer: what the filter or model says; hidden until the verdict is given.
        suggested: tags that the filter suggests; hidden as well.
    """

    id: str
    label: str
    image: str
    question: str
    before: str = ""
    original: str = ""
    answer: str = ""
    confidence: float | None = None
    suggested: tuple[str, ...] = ()


@dataclass(frozen=True)
class Review:
    """All that can be judged of a run, in order, and by what name each is found."""

    kind: str
    items: tuple[Item, ...]
    places: Mapping[str, int]

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags that reviewers may give."""
        if self.kind not in PAIR_TABLES:
            return TAGS
        return _OF_PAIRS if self.kind == "pairs" else (SAME_CLASS, *_OF_PAIRS)


def has_review(run: Run) -> bool:
    """Whether a run holds anything to judge; nothing is read."""
    return any((run.folder / "tables" / f"{name}.jsonl").is_file() for name in _READERS)


def review_of(run: Run) -> Review:
    """What can be judged of a run."""
    for name in _READERS:
        path = run.file(f"tables/{name}.jsonl")
        if path.is_file():
            facts = path.stat()
            with reading(run):
                queue = _read(run, name, facts.st_mtime_ns, facts.st_size)
            if queue.items:
                return queue
    raise InputError(f"{run.folder.name} holds nothing to review.")


def store_of(run: Run) -> Store:
    """The store of verdicts on a run, made if need be; the command line uses the same."""
    path = store_path(run.folder)
    with _making:  # a second request must not find a store that is half made
        if path in _held and not path.is_file():
            _held.pop(path).close()
        if path not in _held:
            ids = [item.id for item in review_of(run).items]
            with reading(run):
                named = about(run)
            _held[path] = Store.create(path, ids, about=named).held()
    return Store(path)


def close_stores() -> None:
    """Close the stores that were used; they are opened again when they are asked for."""
    with _making:
        while _held:
            _held.popitem()[1].close()


def store_if_any(run: Run) -> Store | None:
    """The store of verdicts on a run, if there is one."""
    path = store_path(run.folder)
    return Store(path) if path.is_file() else None


@lru_cache(maxsize=4)
def _read(run: Run, name: str, stamp: int, size: int) -> Review:
    rows = run.table(name)
    make = _READERS[name]
    items = tuple(make(run, rows))
    return Review(name, items, {item.id: place for place, item in enumerate(items)})


def _shortlist(run: Run, rows: list[dict[str, Any]]) -> list[Item]:
    kind = str(run.manifest.get("kind", "adversarial"))
    question = {
        "ood": "Is this none of the known classes?",
    }.get(kind, "Is this a fair picture of its label?")
    return [
        Item(
            str(row["id"]), str(row["label"]), str(row["image"]), question,
            answer=str(row["answer"]), confidence=float(row["confidence"]),
            suggested=tuple(str(tag) for tag in row.get("suggested", ())),
        )
        for row in rows
    ]  # fmt: skip


def _suspects(run: Run, rows: list[dict[str, Any]]) -> list[Item]:
    shown = {str(row["id"]): str(row["image"]) for row in run.table("gallery")}
    return [
        Item(
            str(row["id"]), str(row["label"]), shown[str(row["id"])], "Is this label wrong?",
            answer=str(row["answer"]), confidence=float(row["confidence"]),
        )
        for row in rows
        if str(row["id"]) in shown
    ]  # fmt: skip


def _pairs(run: Run, rows: list[dict[str, Any]]) -> list[Item]:
    question = "Does the changed picture show its target, fit to be trained on?"
    items = {}
    for row in rows:
        if not row.get("image") or not row.get("original"):
            continue
        sure = row.get("after", row.get("confidence"))
        items[str(row["image"])] = Item(
            str(row["image"]), str(row["target"]), str(row["image"]), question,
            before=str(row["original"]), original=str(row.get("label") or ""),
            answer=str(row.get("verdict", row.get("answer", ""))),
            confidence=float(sure) if isinstance(sure, (int, float)) else None,
        )  # fmt: skip
    return list(items.values())


def _edited(run: Run, rows: list[dict[str, Any]]) -> list[Item]:
    """Pairs of a repair: the edit must leave the class as it is."""
    question = "Does the edited picture still show its class, and only the shortcut changed?"
    return [replace(item, question=question) for item in _pairs(run, rows)]


_READERS: dict[str, Callable[[Run, list[dict[str, Any]]], list[Item]]] = {
    "shortlist": _shortlist,
    "suspects": _suspects,
    **dict.fromkeys(PAIR_TABLES, _pairs),
    "pairs": _edited,
}


def is_pairs(run: Run) -> bool:
    """Whether a run holds pairs of pictures, original and changed."""
    return not (run.folder / "tables" / "shortlist.jsonl").is_file() and any(
        (Path(run.folder) / "tables" / f"{name}.jsonl").is_file() for name in PAIR_TABLES
    )
