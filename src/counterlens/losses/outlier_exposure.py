"""Outlier exposure: know nothing about out-distribution images.

Paper: Hendrycks, Mazeika, Dietterich 2019, Deep Anomaly Detection with Outlier Exposure.
Differs: KL to the uniform distribution in place of the cross-entropy to it: the same gradient,
       and 0 is reached. Both terms share one forward pass and so their batch statistics.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from counterlens.losses.inner import need
from counterlens.objectives import uniform_divergence_of
from counterlens.types import Batch


def outlier_exposure_terms(
    net: nn.Module, batch: Batch, step: int, *, out_weight: float = 1.0, scale: float = 0.5
) -> dict[str, Tensor]:
    """Cross-entropy inside, divergence from uniform outside.

    Equation: oe2019 (1)   E_in CE_y(x) + λ E_out KL(1/K ‖ p(x_out))

    Args:
        out_weight: λ.
        scale: weight of the whole sum; the authors of RATIO trained with 1/2, their paper writes 1.
    """
    x, y, out = (need(batch, key, "outlier exposure") for key in ("x", "y", "out"))
    return joint_terms(net, x, y, out, out_weight=out_weight, scale=scale)


def joint_terms(
    net: nn.Module, x: Tensor, y: Tensor, out: Tensor, *, out_weight: float, scale: float
) -> dict[str, Tensor]:
    """Both terms from one training-mode forward pass over the mixture."""
    inside, outside = net(torch.cat([x, out])).split([len(x), len(out)])
    return {
        "in": scale * cross_entropy(inside, y),
        "out": scale * out_weight * uniform_divergence_of(outside).mean(),
    }
