"""Accuracy, confidence and gaps by group, with intervals that hold for all groups together.

Paper: Wilson 1927, Newcombe 1998 (intervals); Dunn 1961 (Bonferroni); Holm 1979 (tests); Agresti
       and Coull 1998 (pseudo-observations).
Differs: the gap of a group is to the images outside it, not to all images, which hold the group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import sqrt
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64
from scipy.stats import fisher_exact

from counterlens.metrics.intervals.closed_form import delong, holding, newcombe, wilson
from counterlens.metrics.intervals.multiple import bonferroni, holm, jointly_judged
from counterlens.runs import Number

MemberFlags = Bool[np.ndarray, "n"]
Values = Float64[np.ndarray, "n"]
LEAST_CELL = 2
"""Intersections of fewer images are not looked at."""


@dataclass(frozen=True)
class Group:
    """Some of the images.

    Args:
        column: what they are grouped by; of an intersection both columns.
        value: which value they share.
        inside: which images belong to it.
        known: which images have a value at all; the rest of the group are those outside it.
        judged: whether it is large enough to be judged with the others.
    """

    column: tuple[str, ...]
    value: tuple[str, ...]
    inside: MemberFlags
    known: MemberFlags
    judged: bool = True

    @property
    def n(self) -> int:
        """How many images it has."""
        return int(self.inside.sum())

    @property
    def name(self) -> str:
        """`site = A`, or `site = A, scanner = old`."""
        return ", ".join(f"{c} = {v}" for c, v in zip(self.column, self.value, strict=True))


@dataclass(frozen=True)
class Groups:
    """All groups of a set of images, and how they are judged together.

    Args:
        every: groups and intersections, also those too small to be judged.
        least: images that a group needs to be judged.
        half: the half-width that decides it.
    """

    every: tuple[Group, ...]
    least: int
    half: float

    @property
    def judged(self) -> tuple[Group, ...]:
        """Those large enough."""
        return tuple(group for group in self.every if group.judged)

    @property
    def z(self) -> float:
        """Normal quantile of intervals that hold for all judged groups together."""
        return bonferroni(len(self.judged))

    @property
    def text(self) -> str:
        """How many were looked at and judged, for protocols."""
        small = len(self.every) - len(self.judged)
        left = f", {small} others have fewer than {self.least} images" if small else ""
        return f"{len(self.judged)} of {len(self.every)} groups judged together{left}"


def grouped(columns: Mapping[str, Sequence[str | None]], *, half: float = 0.15) -> Groups:
    """The groups of some columns and of their pairs.

    Args:
        columns: value of each image by column; None where it has none.
        half: a group is judged where its interval, which holds together with those of the other
            judged groups, is at most this wide to either side, whatever its accuracy.

    >>> groups = grouped({"site": ["A"] * 200 + ["B"] * 20})
    >>> [(group.name, group.n, group.judged) for group in groups.every]
    [('site = A', 200, True), ('site = B', 20, False)]
    """
    singles: list[Group] = []
    for column, values in columns.items():
        held = np.array([value is not None for value in values], dtype=bool)
        for value in sorted({value for value in values if value is not None}):
            inside = np.array([one == value for one in values], dtype=bool)
            singles.append(Group((column,), (value,), inside, held))
    cells = list(singles)
    for one, two in combinations(singles, 2):
        if one.column == two.column:
            continue
        inside = one.inside & two.inside
        if LEAST_CELL <= inside.sum() < min(one.n, two.n):  # else it is one of the two
            both = one.known & two.known
            cells.append(Group(one.column + two.column, one.value + two.value, inside, both))
    judged, least = jointly_judged([cell.n for cell in cells], half)
    every = [replace(cell, judged=flag) for cell, flag in zip(cells, judged, strict=True)]
    return Groups(tuple(every), least, half)


def accuracy(group: Group, right: MemberFlags, groups: Groups) -> Number:
    """Share of right answers with its Wilson interval, simultaneous over the judged groups."""
    n, hits = group.n, int((right & group.inside).sum())
    text = f"right answers among images with {group.name}; {groups.text}"
    if not group.judged:
        return Number.missing(too_few(group, groups), text, n)
    low, high = wilson(hits, n, z=groups.z)
    return Number(hits / n, n, low, high, f"{text}; Wilson interval, Bonferroni")


def too_few(group: Group, groups: Groups) -> str:
    """Why a group is not judged."""
    points = f"±{100 * groups.half:g} points"
    has = "1 image" if group.n == 1 else f"{group.n} images"
    return f"{has}, {groups.least} are needed for {points} together with the others"


def overconfidence(group: Group, confidence: Values, right: MemberFlags, groups: Groups) -> Number:
    """Mean confidence less accuracy: above 0 the group's answers are surer than right.

    z²/2 pseudo-observations each of a right and a wrong answer at the group's mean confidence
    keep the interval open where all answers are right, as they do for a proportion.

    Equation: agresti1998 adjusted   d̃ ± z √(s̃²/ñ), ñ = n + z²
    """
    c, hit, z = confidence[group.inside], right[group.inside].astype(float), groups.z
    n, mean = len(c), float(c.mean())
    text = f"mean confidence − accuracy of images with {group.name}; {groups.text}"
    if not group.judged:
        return Number.missing(too_few(group, groups), text, n)
    gap = c - hit
    value, size = float(gap.mean()), n + z * z
    centre = float((gap.sum() + z * z / 2 * (2 * mean - 1)) / size)
    square = float((gap**2).sum() + z * z / 2 * ((mean - 1) ** 2 + mean**2)) / size
    reach = z * sqrt(max(square - centre**2, 0.0) / size)
    ends = holding(value, centre - reach, centre + reach, (-1.0, 1.0))
    return Number(value, n, *ends, f"{text}; adjusted normal interval, Bonferroni")


def auroc(group: Group, inside: Values, outside: Values, groups: Groups) -> Number:
    """AUROC of the group's images against unknown ones, by the score of each."""
    own = inside[group.inside]
    text = f"images with {group.name} against {len(outside)} unknown; {groups.text}"
    if not group.judged:
        return Number.missing(too_few(group, groups), text, len(own))
    ranks = np.searchsorted(np.sort(outside), own) + np.searchsorted(np.sort(outside), own, "right")
    value = float(ranks.mean() / (2 * len(outside)))
    low, high = delong(own, outside, z=groups.z)
    low, high = holding(value, low, high, (0.0, 1.0))
    return Number(value, len(own), low, high, f"{text}; DeLong interval, Bonferroni")


def gaps(groups: Groups, right: MemberFlags) -> list[dict[str, Any]]:
    """How far each judged group lies from the images outside it.

    Of a column with two values one gap is the other with its sign changed, and counts once.

    Equation: newcombe1998 (10)   p_group − p_rest, square-and-add, at the Bonferroni level
    """
    judged = [g for g in groups.judged if (g.known & ~g.inside).any()]
    sides = [(g.inside.tobytes(), (g.known & ~g.inside).tobytes()) for g in judged]
    place = {side: i for i, side in enumerate(sides)}
    mirror = {i: place.get((rest, own), i) for i, (own, rest) in enumerate(sides)}
    counted = [i for i in mirror if mirror[i] >= i]
    z = bonferroni(len(counted))
    rows: list[dict[str, Any]] = []
    for group in judged:
        rest = group.known & ~group.inside
        hits = int((right & group.inside).sum()), int((right & rest).sum())
        n = group.n, int(rest.sum())
        low, high = newcombe(hits, n, z=z)
        table = [[hits[0], n[0] - hits[0]], [hits[1], n[1] - hits[1]]]
        row = {"group": group, "rest": hits[1] / n[1], "rest_n": n[1], "low": low, "high": high}
        row |= {"gap": hits[0] / n[0] - hits[1] / n[1], "p": float(fisher_exact(table).pvalue)}
        rows.append(row)
    adjusted = dict(zip(counted, holm([rows[i]["p"] for i in counted]), strict=True))
    for i, row in enumerate(rows):
        row["p_holm"] = adjusted[min(i, mirror[i])]
        row["comparisons"] = len(counted)
    return rows


def worst(numbers: Sequence[tuple[str, Number]], what: str, *, lowest: bool = True) -> Number:
    """The worst of several numbers whose intervals hold together, whichever it is.

    The truth of the worst lies between the least lower and the least upper end (of the largest:
    the greatest), so `low` certifies. The interval holds it in 95 % of samples or more.

    Args:
        numbers: name and number of each group; those without a value are left out.
        what: what they measure.
        lowest: whether low is bad.
    """
    known = [(name, number) for name, number in numbers if number.value is not None]
    if not known:
        largest = max((n for _, n in numbers), key=lambda n: n.n, default=None)
        of = f": the largest has {largest.reason}" if largest else ""
        return Number.missing(f"no group is large enough to be judged{of}", f"worst group: {what}")
    choose = min if lowest else max
    name, chosen = choose(known, key=lambda pair: pair[1].value or 0.0)
    low = choose(number.low or 0.0 for _, number in known)
    high = choose(number.high or 0.0 for _, number in known)
    text = f"{what} of the worst of {len(known)} groups: {name}; simultaneous intervals, Bonferroni"
    return Number(chosen.value, chosen.n, low, high, text)
