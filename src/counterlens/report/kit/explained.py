"""Counterfactuals in plain sentences: what the model saw, what it sees after which change."""

from collections.abc import Mapping, Sequence
from typing import Any

from counterlens.runs.keys import show

StoredRow = Mapping[str, Any]
SURE = 0.9


def headline_rows(rows: Sequence[StoredRow]) -> list[StoredRow]:
    """Of each picture and target, the row to tell first, see `headline_row`."""
    groups: dict[tuple[str, str, str], list[StoredRow]] = {}
    for row in rows:
        key = (str(row["id"]), str(row.get("model", "")), str(row["target"]))
        groups.setdefault(key, []).append(row)
    return [headline_row(part) for part in groups.values()]


def tellable(row: StoredRow) -> bool:
    """Whether a row holds what `sentence` says; rows of label checks and figures hold less."""
    return {"confidence", "answer", "sure", "after", "distance", "norm", "radius"} <= row.keys()


def headline_row(rows: Sequence[StoredRow]) -> StoredRow:
    """The smallest budget with which the model is sure of the target.

    Where no budget makes it sure, the smallest with which the target is the answer; else the
    largest.
    """
    by_size = sorted(rows, key=lambda row: float(row["radius"]))
    reached = [row for row in by_size if row["answer"] == row["target"]]
    sure = [row for row in reached if row["after"] >= SURE]
    return (sure or reached or by_size[-1:])[0]


def sentence(row: StoredRow) -> str:
    """What is known of one counterfactual: from which class to which, and how far away.

    >>> row = {"id": "012.png", "predicted": "dog", "confidence": 0.98, "target": "cat"}
    >>> made = {"answer": "cat", "sure": 0.93, "after": 0.93, "distance": 0.998, "norm": "l2"}
    >>> print(sentence({**row, **made}).replace("\u202f", " "))
    012.png: seen as dog (98.0 %); as cat after a change of l₂ 0.998 (cat 93.0 %)
    """
    seen = f"{row['id']}: seen as {row['predicted']} ({show(row['confidence'], 'share')})"
    target, after = row["target"], show(row["after"], "share")
    change = f"a change of {_SIGNS.get(row['norm'], row['norm'])} {row['distance']:.3g}"
    if row["answer"] != target:
        answer = f"{row['answer']} {show(row['sure'], 'share')}"
        return f"{seen}; not as {target} after {change} ({target} {after}, answer {answer})"
    if target == row["predicted"]:
        return f"{seen}; still as {target} after {change} ({target} {after})"
    return f"{seen}; as {target} after {change} ({target} {after})"


def second_opinion(row: StoredRow) -> str:
    """Whether other models see the target in the changed picture too, or were not asked."""
    opinions = row.get("opinions") or ()
    if not opinions:
        return "No second model has judged the changed picture"
    parts = [
        f"{one['judge']} agrees ({row['target']} {show(one['after'], 'share')})"
        if one["agrees"]
        else f"{one['judge']} does not agree: it answers {one['answer']} "
        f"({row['target']} {show(one['after'], 'share')})"
        for one in opinions
    ]
    return "; ".join(parts)


_SIGNS = {"l2": "l₂", "l1": "l₁", "linf": "l∞"}
