"""Flips by group: for whom a release breaks what was right before.

Groups are those of the audits (`audit --groups`), read from their table `group_values`. Intervals
hold for all listed groups together (Wilson at the Bonferroni level); groups of fewer than 30 images
are counted and not listed.
"""

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from counterlens.runs import LogitSet, Number, Run, key_part
from counterlens.workflows.compare.flips import flips
from counterlens.workflows.compare.pairs import common_rows, known_set, right_rows

LEAST = 30
_WORDS = {"negative": "right before, wrong after", "positive": "wrong before, right after"}


def group_flip_results(
    runs: Mapping[str, Run], logits: Mapping[str, Mapping[str, LogitSet]]
) -> tuple[dict[str, Number], list[dict[str, Any]]]:
    """Flip rates of each later model against the first by group, and a row per group.

    The keys are flips.groups.COLUMN.VALUE.negative and flips.groups.worst.negative for two models,
    flips.NAME.groups.… for more.
    """
    names = list(logits)
    numbers: dict[str, Number] = {}
    rows: list[dict[str, Any]] = []
    for name in names[1:]:
        values = {
            str(row["image"]): row
            for run in (runs[names[0]], runs[name])
            for row in run.table("group_values")
        }
        part = "flips" if len(names) == 2 else f"flips.{key_part(name)}"
        flips = _groups(logits[names[0]], logits[name], values)
        if flips:
            numbers |= _numbers(f"{part}.groups", flips)
            rows += [{"model": name, **row} for row in flips]
    return numbers, rows


def _groups(
    one: Mapping[str, LogitSet],
    two: Mapping[str, LogitSet],
    values: Mapping[str, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """A row per group with its counts and rates, the most broken first."""
    inside = known_set(one, two)
    if inside is None or not values:
        return []
    left, right = common_rows(one[inside], two[inside])
    known = one[inside].labels[left] >= 0
    left, right = left[known], right[known]
    ids = [one[inside].ids[int(i)] for i in left]
    flipped = flips(right_rows(one[inside], left), right_rows(two[inside], right))
    columns = [key for key in next(iter(values.values())) if key != "image"]
    cells = {column: np.array([values.get(i, {}).get(column) for i in ids]) for column in columns}
    groups = [
        (column, value, cells[column] == value)
        for column in columns
        for value in sorted({str(v) for v in cells[column] if v is not None})
    ]
    large = [(c, v, own) for c, v, own in groups if own.sum() >= LEAST]
    z = NormalDist().inv_cdf(1 - 0.05 / (2 * max(1, len(large))))
    rows = []
    for column, value, own in large:
        row: dict[str, Any] = {"column": column, "value": value, "n": int(own.sum())}
        for kind, hit in flipped.items():
            text = (
                f"{_WORDS[kind]}, images with {column} = {value}; {len(large)} of {len(groups)} "
                f"groups with {LEAST} images or more"
            )
            number = Number.share(int((hit & own).sum()), int(own.sum()), text, z=z)
            row |= {kind: number.value, f"{kind}_low": number.low, f"{kind}_high": number.high}
            row[f"{kind}_protocol"] = f"{number.protocol}, Bonferroni"
        rows.append(row)
    return sorted(rows, key=lambda row: (-row["negative"], row["column"], row["value"]))


def _numbers(part: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Number]:
    """One number per group and kind, and the worst negative rate of all."""
    out = {}
    for row in rows:
        for kind in _WORDS:
            key = f"{part}.{_plain(row['column'])}.{_plain(row['value'])}.{kind}"
            ends = (row[f"{kind}_low"], row[f"{kind}_high"])
            out[key] = Number(row[kind], row["n"], *ends, row[f"{kind}_protocol"])
    worst = rows[0]
    low, high = (max(float(row[f"negative_{end}"]) for row in rows) for end in ("low", "high"))
    name = f"{worst['column']} = {worst['value']}"
    text = f"negative flips of the worst of {len(rows)} groups: {name}"
    out[f"{part}.worst.negative"] = Number(
        worst["negative"], worst["n"], low, high, f"{text}; simultaneous intervals, Bonferroni"
    )
    return out


def _plain(text: object) -> str:
    return key_part(str(text)).replace(".", "_")
