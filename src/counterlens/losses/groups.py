"""Losses of images that do not weigh the same: more weight on mistakes, or on the worst group.

Paper: Liu et al. 2021 (jtt2021), Just Train Twice; Sagawa et al. 2020 (groupdro2020).
Differs: the weights of a batch come with its images. Group DRO has no adjustment of the losses by
       the group sizes (the C of the paper, 0 by default in its code).
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from counterlens.losses.inner import need
from counterlens.types import Batch


def weighted_terms(net: nn.Module, batch: Batch, step: int) -> dict[str, Tensor]:
    """Cross-entropy in which each image has a weight of its own.

    Equation: jtt2021 upweighted loss   Σ_i s_i CE_i / n
    """
    x, y, weight = (need(batch, key, "weighted") for key in ("x", "y", "weight"))
    return {"in": (weight * cross_entropy(net(x), y, reduction="none")).mean()}


class GroupDRO:
    """Cross-entropy of the groups, the worst of them weighing more and more.

    Equation: groupdro2020 Alg. 1   q_g ← q_g exp(η ℓ_g) / Σ_g' q_g' exp(η ℓ_g'),  loss Σ_g q_g ℓ_g

    Groups that a batch does not hold have the loss 0 in it, as in the authors' code.

    Args:
        count: how many groups there are; `batch["group"]` holds numbers below it.
        rate: η.
    """

    def __init__(self, count: int, rate: float = 0.01) -> None:
        self.weights = torch.full((count,), 1 / count, dtype=torch.float64)
        self.rate = rate

    def __call__(self, net: nn.Module, batch: Batch, step: int) -> dict[str, Tensor]:
        """The terms of one batch; the weights of the groups move."""
        x, y, group = (need(batch, key, "group DRO") for key in ("x", "y", "group"))
        each = cross_entropy(net(x), y, reduction="none")
        count = len(self.weights)
        sums = each.new_zeros(count).index_add(0, group, each)
        sizes = torch.bincount(group, minlength=count).clamp_min(1)
        losses = sums / sizes
        grown = self.weights * torch.exp(self.rate * losses.detach().double().cpu())
        self.weights = grown / grown.sum()
        return {"in": (self.weights.to(losses) * losses).sum()}
