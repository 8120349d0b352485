"""Losses: what training lowers over weights. Each returns named terms; their sum is minimised.

`Loss(net, batch, step) -> {name: term}`: the settings of a paper are bound with
`functools.partial`, the number of the update is there for attacks that grow.
"""

from collections.abc import Callable

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
"""The names a recipe may use."""

__all__ = [
    "LOSSES",
    "Attack",
    "Batch",
    "Loss",
    "acet_terms",
    "adversarial_terms",
    "half_adversarial_terms",
    "outlier_exposure_terms",
    "plain_terms",
    "random_strength_terms",
    "ratio_terms",
    "three_part_ratio_terms",
    "trades_terms",
]
