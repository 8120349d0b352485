"""Is it the first classifier's doing? The same search against another second classifier.

Paper: Augustin, Neuhaus, Hein 2024 (digin2024), Figure 15: what was found persists when the second
       classifier is another one.
Differs: beside searching again, the images already found are shown to the other classifier.
"""

from collections.abc import Sequence
from typing import Any

import torch

from counterlens.classifier import Classifier
from counterlens.explanations.counterfactuals.targets import class_named
from counterlens.explanations.disagreement import SURE, UNSURE, succeeded
from counterlens.explanations.figure import Panel
from counterlens.runs import Number, Run, key_part
from counterlens.workflows._shared.figures import save_figure
from counterlens.workflows._shared.generation.generate import reread
from counterlens.workflows.disagree.numbers import TableRows, mean, share
from counterlens.workflows.disagree.search import WAYS, DisagreeTask, Shared, confidence_in, search


def persist(
    task: DisagreeTask,
    first: Classifier,
    others: Sequence[Classifier],
    wanted: Sequence[Shared],
    rows: TableRows,
    notes: list[str],
) -> tuple[list[dict[str, Any]], dict[str, Number]]:
    """Search again with each other second classifier; rows for the table, and numbers.

    Args:
        first: the classifier whose partner is changed.
        others: in place of the second.
        rows: what was found with the second.
    """
    table: list[dict[str, Any]] = []
    results: dict[str, Number] = {}
    for number, other in enumerate(others):
        known = [
            Shared(one.name, one.word, (one.places[0], place))
            for one in wanted
            if (place := class_named(other.classes, one.name)) >= 0
        ]
        if len(known) < len(wanted):
            notes.append(f"{other.name} knows {len(known)} of the {len(wanted)} classes.")
        if not known:
            continue
        pair = (first, other)
        again = search(task, pair, known, numbers=(0, 2 + number), prefix=f"persist{number}-")
        names = {one.name for one in known}
        before = [row for row in rows if row["name"] in names]
        part = _carried(task.run, before, again, other, known)
        results |= _numbers(part, other.name, str(rows[0]["down"]))
        table += part
    _figures(task.run, rows, table)
    return table, results


def _carried(
    run: Run, before: TableRows, again: TableRows, other: Classifier, known: Sequence[Shared]
) -> list[dict[str, Any]]:
    """Rows of the new search, each with what the other says of the image found before."""
    place = {one.name: one.places[1] for one in known}
    values = confidence_in(other, reread(run, [row["image"] for row in before]),
                 torch.tensor([place[row["name"]] for row in before]))  # fmt: skip
    rows = []
    for old, new, p in zip(before, again, values, strict=True):
        raised = old["way"] == WAYS[0]  # the first classifier is up: the other stands below
        sure = torch.tensor(old["p_up"]) if raised else p
        unsure = p if raised else torch.tensor(old["p_down"])
        rows.append(
            {**new, "other": other.name, "found": old["image"], "found_p": round(p.item(), 6),
             "carried": bool(succeeded(sure, unsure))}
        )  # fmt: skip
    return rows


def _numbers(rows: TableRows, other: str, second: str) -> dict[str, Number]:
    results: dict[str, Number] = {}
    for way in WAYS:
        part = [row for row in rows if row["way"] == way]
        key = f"persist.{way}-{key_part(other)}"
        how = f"{part[0]['up']} raised, {part[0]['down']} lowered; all {len(part)} images"
        bar = f"p ≥ {SURE:g} against p ≤ {UNSURE:g}"
        results[f"{key}.succeeded"] = share(
            [row["succeeded"] for row in part], f"searched again: {bar}; {how}"
        )
        results[f"{key}.carried"] = share(
            [row["carried"] for row in part],
            f"images found with {second}, shown to {other} in its place: {bar}; {how}",
        )
        for column in ("p_up", "p_down"):
            results[f"{key}.{column}"] = mean([row[column] for row in part], (0, 1), how)
    return results


def _figures(run: Run, rows: TableRows, table: TableRows) -> None:
    """As in the paper: the first classifier raised, a row per second classifier."""
    for word in dict.fromkeys(row["class"] for row in table):
        groups = [[row for row in rows if row["class"] == word and row["way"] == WAYS[0]][:8]]
        mine = [row for row in table if row["class"] == word and row["way"] == WAYS[0]]
        groups += [
            [row for row in mine if row["other"] == other][:8]
            for other in dict.fromkeys(row["other"] for row in mine)
        ]
        grid = [
            [
                Panel(x, f"{row['p_up']:.2f} / {row['p_down']:.2f}",
                      "good" if row["succeeded"] else "")
                for x, row in zip(reread(run, [r["image"] for r in part]), part, strict=True)
            ]
            for part in groups
        ]  # fmt: skip
        sides = [f"against\n{part[0]['down']}" for part in groups]
        title = f"{word}: {rows[0]['up']} raised / the other lowered"
        save_figure(run, f"figure-persist-{key_part(word)}", grid, sides=sides, title=title)
