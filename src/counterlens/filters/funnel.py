"""A funnel: named rules applied one after another, each with the number of images it dropped.

A rule sees the images that are left and says which of them stay. What each stage kept and dropped
is the record that the paper's 81,413 → 8,925 → 1,452 → 80 stands for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64

Rows = Int64[np.ndarray, "_"]
_Flags = Bool[np.ndarray, "_"]


@dataclass(frozen=True)
class Rule:
    """One stage of a funnel.

    Args:
        name: a word or two.
        description: the rule in words, with its threshold.
        keep: from the rows that are left to those that stay; keeps their order, or, in a stage
            that ranks, gives them a new one.
    """

    name: str
    description: str
    keep: Callable[[Rows], Rows]


@dataclass(frozen=True)
class Stage:
    """What a rule did."""

    name: str
    description: str
    before: int
    after: int


@dataclass(frozen=True)
class Funnel:
    """The images that are left, the stages, and at which stage each image was dropped.

    Args:
        rows: the images that are left, in the order of the last rule.
        stages: one per rule, in order.
        fate: for every image the number of the stage that dropped it, −1 where none did.
    """

    rows: Rows
    stages: tuple[Stage, ...]
    fate: Int64[np.ndarray, "n"]


def run_funnel(count: int, rules: Sequence[Rule]) -> Funnel:
    """Apply the rules to images 0 … count − 1, one after another.

    >>> even = Rule("even", "even numbers stay", lambda rows: rows[rows % 2 == 0])
    >>> result = run_funnel(5, [even])
    >>> result.rows.tolist(), result.stages[0].after, result.fate.tolist()
    ([0, 2, 4], 3, [-1, 0, -1, 0, -1])
    """
    rows = np.arange(count)
    fate = np.full(count, -1, np.int64)
    stages = []
    for number, rule in enumerate(rules):
        stay = np.asarray(rule.keep(rows), dtype=np.int64)
        gone = np.setdiff1d(rows, stay)
        assert len(stay) + len(gone) == len(rows), f"{rule.name} invents or doubles images"
        fate[gone] = number
        stages.append(Stage(rule.name, rule.description, len(rows), len(stay)))
        rows = stay
    return Funnel(rows, tuple(stages), fate)


def where(name: str, description: str, stays: _Flags) -> Rule:
    """A rule that keeps the images of a flag given for all of them."""
    return Rule(name, description, lambda rows: rows[stays[rows]])


def capped(
    name: str, description: str, groups: Sequence[object], order: Callable[[Rows], Rows], most: int
) -> Rule:
    """A rule that keeps at most so many images of each group, the first ones in an order.

    Equation: nae2021 §3   at most 15 images of each (label, answer)
    """

    def keep(rows: Rows) -> Rows:
        counts: dict[object, int] = {}
        stay = []
        for row in order(rows):
            group = groups[int(row)]
            counts[group] = counts.get(group, 0) + 1
            if counts[group] <= most:
                stay.append(int(row))
        return np.sort(np.asarray(stay, dtype=np.int64))

    return Rule(name, description, keep)


def first(name: str, description: str, order: Callable[[Rows], Rows], most: int | None) -> Rule:
    """A rule that ranks the images and keeps the first ones."""
    return Rule(name, description, lambda rows: order(rows)[: len(rows) if most is None else most])
