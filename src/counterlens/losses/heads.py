"""Losses of a classifier with a head for each factor: its mean on real images, its heads on others.

Paper: Sauer and Geiger 2021 (cgn2021, §3.3 and its ImageNet code).
Differs: real images and counterfactuals go through the network in one batch, which is the same
       since batch norm is frozen.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from counterlens.models.nets.heads import FACTORS


def heads_loss(
    logits: Float[Tensor, "3 b k"],
    real: Int[Tensor, "r"] | None,
    factors: Int[Tensor, "3 c"] | None,
) -> dict[str, Tensor]:
    """Terms of a batch whose real images stand before its counterfactuals.

    Equation: cgn2021 §3.3   CE(mean of logits, y) + CE_shape + CE_texture + CE_background

    Args:
        real: labels of the real images; None where there are none.
        factors: labels of shape, texture and background of the counterfactuals; None without any.
    """
    terms: dict[str, Tensor] = {}
    count = 0 if real is None else len(real)
    if real is not None:
        terms["real"] = cross_entropy(logits[:, :count].mean(0), real)
    if factors is not None:
        for name, own, labels in zip(FACTORS, logits[:, count:], factors, strict=True):
            terms[name] = cross_entropy(own, labels)
    return terms


def factor_labels(columns: Sequence[Sequence[str]], classes: Sequence[str]) -> Tensor:
    """Class names of shape, texture and background as numbers, 3 × n.

    >>> factor_labels([["cat"], ["dog"], ["cat"]], ("cat", "dog")).tolist()
    [[0], [1], [0]]
    """
    number = {name: k for k, name in enumerate(classes)}
    return torch.tensor([[number[str(name)] for name in column] for column in columns])
