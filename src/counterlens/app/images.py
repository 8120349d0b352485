"""The images of a run as rows: what the model answered, how surely, and how each can be filtered.

Rows come from the logits that an audit keeps, so that all images are listed, not only those of the
galleries; pictures come from the galleries or, where the app may open it, from the data set.
"""

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from counterlens.app.reviewable import store_if_any
from counterlens.runs import Run, reading, stored_logits

FACTS = ("group", "slice", "tag")
"""Further facts by which images are filtered, where a table of the run has them."""
_TABLES = ("gallery", "shortlist", "suspects")


@dataclass(frozen=True)
class ImageRow:
    """One image.

    Args:
        number: its place in the list; pages go on behind a number.
        label: the true class; empty where unknown.
        picture: path inside the run; empty where the run holds none.
        facts: groups, slices and tags it belongs to.
    """

    number: int
    set: str
    id: str
    label: str
    predicted: str
    confidence: float | None
    picture: str = ""
    facts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def wrong(self) -> bool:
        """Whether the answer is known to be wrong."""
        return bool(self.label) and self.label != self.predicted


@dataclass(frozen=True)
class ImageFilter:
    """What a visitor wants to see; empty: everything."""

    set: str = ""
    label: str = ""
    predicted: str = ""
    low: float = 0.0
    high: float = 1.0
    answer: str = ""
    group: str = ""
    slice: str = ""
    tag: str = ""

    def takes(self, row: ImageRow) -> bool:
        """Whether a row is wanted."""
        sure = 0.0 if row.confidence is None else row.confidence
        right = {"wrong": row.wrong, "right": bool(row.label) and not row.wrong}
        return (
            self.set in ("", row.set)
            and self.label in ("", row.label)
            and self.predicted in ("", row.predicted)
            and self.low <= sure <= self.high
            and right.get(self.answer, True)
            and all(
                not getattr(self, name) or getattr(self, name) in row.facts.get(name, ())
                for name in FACTS
            )
        )


def rows(run: Run) -> tuple[ImageRow, ...]:
    """All images of a run, the surest mistakes first."""
    stamp = tuple(
        (path.name, path.stat().st_mtime_ns)
        for kind in ("logits", "tables")
        for path in sorted((run.folder / kind).glob("*.json*"))
    )
    store = store_if_any(run)
    with reading(run):
        return _rows(run, (*stamp, len(store.history()) if store else 0))


def page(
    rows: Sequence[ImageRow], wanted: ImageFilter, *, after: int = -1, most: int = 60
) -> tuple[list[ImageRow], int, bool]:
    """The next rows behind a number, how many there are in all, and whether more follow."""
    fitting = [row for row in rows if wanted.takes(row)]
    rest = [row for row in fitting if row.number > after]
    return rest[:most], len(fitting), len(rest) > most


def choices(rows: Sequence[ImageRow]) -> dict[str, list[tuple[str, int]]]:
    """The values that each filter can take, with how many images have them."""
    names = ("set", "label", "predicted")
    out = {name: Counter(map(operator.attrgetter(name), rows)) for name in names}
    for fact in FACTS:
        out[fact] = Counter(value for row in rows for value in row.facts.get(fact, ()))
    return {name: sorted((v, n) for v, n in count.items() if v) for name, count in out.items()}


@lru_cache(maxsize=8)
def _rows(run: Run, stamp: object) -> tuple[ImageRow, ...]:
    pictures, listed = _from_tables(run)
    facts = _facts(run)
    rows = _from_logits(run)
    known = {row["id"] for row in rows}
    rows += [row for row in listed if row["id"] not in known]
    rows.sort(key=lambda row: (not _wrong(row), -(row["confidence"] or 0.0)))
    return tuple(
        ImageRow(number, **row, picture=pictures.get(row["id"], ""), facts=facts.get(row["id"], {}))
        for number, row in enumerate(rows)
    )


def _wrong(row: Mapping[str, Any]) -> bool:
    return bool(row["label"]) and row["label"] != row["predicted"]


def _from_logits(run: Run) -> list[dict[str, Any]]:
    out = []
    classes = [str(row["class"]) for row in run.table("per_class")]
    for name, logits in stored_logits(run).items():
        z = np.asarray(logits.logits, np.float64) / logits.temperature
        z -= z.max(1, keepdims=True)
        probs = np.exp(z)
        sure = probs.max(1) / probs.sum(1)
        names = classes if len(classes) == z.shape[1] else [str(k) for k in range(z.shape[1])]
        best = z.argmax(1)
        out += [
            {
                "set": name,
                "id": logits.ids[i],
                "label": names[logits.labels[i]] if logits.labels[i] >= 0 else "",
                "predicted": names[best[i]],
                "confidence": float(sure[i]),
            }
            for i in range(len(z))
        ]
    return out


def _from_tables(run: Run) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Pictures of images by id, and rows of tables that list images themselves."""
    pictures: dict[str, str] = {}
    listed: dict[str, dict[str, Any]] = {}
    for name in _TABLES:
        for row in run.table(name):
            if "id" not in row:
                continue
            own = str(row["id"])
            if row.get("image"):
                pictures.setdefault(own, str(row["image"]))
            entry = {
                "set": str(row.get("set", "")) or _set_of(str(row.get("group", name))),
                "id": own,
                "label": str(row.get("label") or ""),
                "predicted": str(row.get("predicted") or row.get("answer") or ""),
                "confidence": _share(row.get("confidence")),
            }
            listed.setdefault(own, entry)
    return pictures, list(listed.values())


def _set_of(group: str) -> str:
    return group.partition(":")[2] or group


def _facts(run: Run) -> dict[str, dict[str, tuple[str, ...]]]:
    """By image: groups of `audit --groups`, slices of `--slices`, tags of filters and reviewers."""
    by_image: dict[str, dict[str, dict[str, None]]] = {}

    def note(image: object, fact: str, *values: object) -> None:
        known = by_image.setdefault(str(image), {}).setdefault(fact, {})
        known.update(dict.fromkeys(map(str, values)))

    for row in run.table("group_values"):
        note(row["image"], "group", *(f"{k} = {v}" for k, v in row.items() if k != "image"))
    for row in run.table("slice_images"):
        if row["slice"]:  # most images are in none
            note(row["image"], "slice", row["slice"])
    for row in run.table("shortlist"):
        note(row["id"], "tag", *row.get("suggested", ()))
    store = store_if_any(run)
    for verdict in store.latest() if store else []:
        note(verdict.item, "tag", *verdict.tags)
    return {
        image: {fact: tuple(values) for fact, values in facts.items()}
        for image, facts in by_image.items()
    }


def _share(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
