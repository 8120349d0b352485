"""OOD filtration: photographs of unknown things that a classifier is sure about.

Paper: Hendrycks et al. 2021, Natural Adversarial Examples (section 3, ImageNet-O: images of
    ImageNet-22k without ImageNet-1k to which a ResNet-50 gives high confidence).
Differs: the paper states no threshold; here it is an option. Classes are distinguished by name,
    synonym, WordNet id and ImageNet's groups; the paper's authors looked at them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64

from counterlens.errors import InputError
from counterlens.filters.funnel import Rows, Rule, capped, first, where


@dataclass(frozen=True)
class OutsideLimits:
    """Thresholds of the filtration.

    Args:
        confidence: least probability of the answer, by every filter.
        answer: most images with one answer of the first filter; None for no cap.
        shortlist: how many images go to review; None for all that are left.
    """

    confidence: float = 0.5
    answer: int | None = None
    shortlist: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.confidence < 1:
            raise InputError(f"got a confidence of {self.confidence}, expected a share in [0, 1).")
        for count in (self.answer, self.shortlist):
            if count is not None and count < 1:
                raise InputError("per_answer and shortlist take 1 or more images.")


def rules(
    table: Mapping[str, np.ndarray],
    foreign: Bool[np.ndarray, "n"],
    filters: int,
    limits: OutsideLimits,
    screens: tuple[Rule, ...] = (),
) -> list[Rule]:
    """The stages of ImageNet-O, in order.

    Equation: nae2021 §3   keep x of a foreign class if max_k p_k(x) ≥ τ

    Args:
        table: opinions of the filters, a row per image of the pool.
        foreign: whether the image's class is none of the filters'.
        filters: how many filters there are.
        limits: thresholds.
        screens: more stages before the caps, such as near-duplicates of known images.
    """
    sure = certainty(table, filters)
    answers: Sequence[object] = table["0_answer"].tolist()

    def surest(rows: Rows) -> Rows:
        return rows[np.lexsort((rows, -sure[rows]))]

    return [
        where("readable", "a whole picture of sufficient size", table["why"] == ""),
        where("foreign class", "its class is none of the filters'", foreign),
        where(
            "fools the filters",
            f"every filter gives its answer {limits.confidence:.0%} or more",
            sure >= limits.confidence,
        ),
        *screens,
        *(
            [
                capped(
                    "answer cap",
                    f"at most {limits.answer} images of one answer, most confidence first",
                    answers,
                    surest,
                    limits.answer,
                )
            ]
            if limits.answer
            else []
        ),
        first(
            "shortlist",
            f"the {limits.shortlist} with most confidence"
            if limits.shortlist
            else "all, most confidence first",
            surest,
            limits.shortlist,
        ),
    ]


def certainty(table: Mapping[str, np.ndarray], filters: int) -> Float64[np.ndarray, "n"]:
    """Least confidence of any filter in its answer; NaN where the image was not seen."""
    values = np.stack([table[f"{f}_confidence"] for f in range(filters)]).astype(np.float64)
    return np.asarray(values.min(0))
