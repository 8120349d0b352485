"""Losses: what training lowers over weights. Each returns named terms; their sum is minimised.

`Loss(net, batch, step) -> {name: term}`: the settings of a paper are bound with
`functools.partial`, the number of the update is there for attacks that grow.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from counterlens.losses.acet import acet_terms
from counterlens.losses.adversarial import (
    adversarial_terms,
    half_adversarial_terms,
    random_strength_terms,
)
from counterlens.losses.inner import Attack
from counterlens.losses.outlier_exposure import outlier_exposure_terms
from counterlens.losses.plain import plain_terms
from counterlens.losses.ratio import ratio_terms, three_part_ratio_terms
from counterlens.losses.trades import trades_terms
from counterlens.types import Batch, Loss

LOSSES: dict[str, Callable[..., dict[str, Tensor]]] = {
    "plain": plain_terms,
    "outlier-exposure": outlier_exposure_terms,
    "acet": acet_terms,
    "adversarial": adversarial_terms,
    "half-adversarial": half_adversarial_terms,
    "random-strength": random_strength_terms,
    "trades": trades_terms,
    "ratio": ratio_terms,
    "three-part-ratio": three_part_ratio_terms,
}
"""The names a recipe may use. What a loss needs, its keyword arguments say; see `needs`."""

ATTACKED_SHARE = {"half-adversarial": 0.5, "three-part-ratio": 0.5}
"""The share of the in-batch that is attacked, where it is not all of it; for counting work."""


@dataclass(frozen=True)
class Needs:
    """What a loss is given.

    Args:
        near, far: attacks around in- and out-distribution images.
        out: out-distribution images.
        random: random numbers.
        names: all of its keyword arguments.
    """

    near: bool
    far: bool
    out: bool
    random: bool
    names: tuple[str, ...]


def needs(loss: str) -> Needs:
    """What the loss of this name needs, from its signature.

    >>> needs("trades").names
    ('near', 'beta', 'generator')
    """
    parameters = inspect.signature(LOSSES[loss]).parameters.values()
    names = tuple(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)
    return Needs(
        near="near" in names,
        far="far" in names,
        out="far" in names or "out_weight" in names,
        random="generator" in names,
        names=names,
    )


__all__ = [
    "ATTACKED_SHARE",
    "LOSSES",
    "Attack",
    "Batch",
    "Loss",
    "Needs",
    "acet_terms",
    "adversarial_terms",
    "half_adversarial_terms",
    "needs",
    "outlier_exposure_terms",
    "plain_terms",
    "random_strength_terms",
    "ratio_terms",
    "three_part_ratio_terms",
    "trades_terms",
]
