"""Adversarial filtration: photographs that fixed classifiers get wrong, whatever the crop.

Paper: Hendrycks et al. 2021, Natural Adversarial Examples (section 3, ImageNet-A).
Differs: the paper does not say whether the confidence cap of 15 % is per crop or of the mean of
    the crops, nor which network's confusions are capped, nor which 15 images stay. Here the cap
    is per crop unless set otherwise, confusions are those of the first filter's mean crop, and
    the images with the least confidence in their label stay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float64, Int64

from counterlens.errors import InputError
from counterlens.filters.funnel import Rows, Rule, capped, first, where

Cap = Literal["crop", "mean"]


@dataclass(frozen=True)
class Limits:
    """Thresholds of the filtration; the defaults are the paper's.

    Args:
        confidence: most probability any filter may give the label.
        per: "crop" takes each filter's highest crop, "mean" the mean of its ten crops.
        confusion: most images of one (label, answer) pair.
        shortlist: how many images go to review; None for all that are left.
        groups: by class, the group within which a confusion is no egregious one, such as breeds
            of dog; empty text for none. An image that any filter answers within the group of its
            label is dropped. None drops nothing: the paper chose classes by hand instead.
    """

    confidence: float = 0.15
    per: Cap = "crop"
    confusion: int = 15
    shortlist: int | None = None
    groups: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not 0 < self.confidence <= 1:
            raise InputError(f"got a confidence of {self.confidence}, expected a share in (0, 1].")
        if self.per not in ("crop", "mean"):
            raise InputError(f"per is {self.per!r}, expected crop or mean.")
        if self.confusion < 1 or (self.shortlist is not None and self.shortlist < 1):
            raise InputError("confusion and shortlist take 1 or more images.")


def rules(
    table: Mapping[str, np.ndarray],
    labels: Int64[np.ndarray, "n"],
    filters: int,
    limits: Limits,
    screens: tuple[Rule, ...] = (),
) -> list[Rule]:
    """The stages of ImageNet-A, in order.

    Equation: nae2021 §3   keep x if no crop of any filter gives y, and p(y | crop) ≤ 0.15 for all

    Args:
        table: opinions of the filters, a row per image of the pool.
        labels: the images' classes, −1 where unknown.
        filters: how many filters there are.
        limits: thresholds.
        screens: more stages before the caps, such as near-duplicates.
    """
    usual = _any([table[f"{f}_answer"] == labels for f in range(filters)])
    crops = _any([table[f"{f}_right"] > 0 for f in range(filters)])
    which = "true_max" if limits.per == "crop" else "true_mean"
    sure = truth(table, filters, which)
    cap = limits.confidence
    manner = "in any crop" if limits.per == "crop" else "in the mean of ten crops"
    pairs = list(zip(labels.tolist(), table["0_crop_answer"].tolist(), strict=True))

    def least(rows: Rows) -> Rows:
        return rows[np.lexsort((rows, sure[rows]))]

    return [
        where("readable", "a whole picture of sufficient size", table["why"] == ""),
        where("known class", "its label is a class of every filter", labels >= 0),
        where("wrong in the usual view", "no filter's usual view gives the label", ~usual),
        where("wrong in all crops", "no filter gives the label in any of ten crops", ~crops),
        where(
            "not nearly right",
            f"no filter gives the label more than {cap:.0%} {manner}",
            ~(sure > cap),
        ),
        *_egregious(table, labels, filters, limits.groups),
        *screens,
        capped(
            "confusion cap",
            f"at most {limits.confusion} images of one label and answer, least confidence first",
            pairs,
            least,
            limits.confusion,
        ),
        first(
            "shortlist",
            f"the {limits.shortlist or 'images'} with least confidence in their label"
            if limits.shortlist
            else "all, least confidence in the label first",
            least,
            limits.shortlist,
        ),
    ]


def _any(flags: Sequence[np.ndarray]) -> Bool[np.ndarray, "n"]:
    """Whether any filter says so, image by image."""
    return np.asarray(np.any(flags, axis=0))


def _egregious(
    table: Mapping[str, np.ndarray],
    labels: Int64[np.ndarray, "n"],
    filters: int,
    groups: tuple[str, ...] | None,
) -> list[Rule]:
    """The stage that drops confusions within a group, where there are groups."""
    if groups is None:
        return []
    number = {name: k for k, name in enumerate(dict.fromkeys(groups)) if name}
    of = np.array([*(number.get(name, -1) for name in groups), -1])  # the last entry: no answer
    near = np.any(
        [(of[table[f"{f}_crop_answer"]] == of[labels]) & (of[labels] >= 0) for f in range(filters)],
        axis=0,
    )
    description = "no filter answers with a class of the label's own WordNet group"
    return [where("egregious", description, np.asarray(~near))]


def truth(table: Mapping[str, np.ndarray], filters: int, column: str) -> Float64[np.ndarray, "n"]:
    """Highest probability that any filter gives the label; NaN where no crops were seen."""
    values = np.stack([table[f"{f}_{column}"] for f in range(filters)]).astype(np.float64)
    return np.asarray(values.max(0))
