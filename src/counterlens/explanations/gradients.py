"""Where a classifier's gradient lies: on the object, or all over the picture?

Paper: Augustin et al. 2024 (digin2024), Figure 13: with cut-outs the gradient moves onto the
       object, with noise on top more so.
Differs: the paper shows the gradients; here the share of their mass inside a mask is measured.
       Crops cover the middle more often than the edges, so a part of a gain is that of place.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from counterlens.ball import Seeds
from counterlens.generators.diffusion.optimise import ChainSettings, Term, augmented
from counterlens.metrics.saliency import mass_outside
from counterlens.types import Images, Scores

ARMS: Mapping[str, ChainSettings] = {
    "no augmentation": ChainSettings(cuts=0),
    "cut-outs": ChainSettings(cuts=16, sigma=0.0),
    "cut-outs and noise": ChainSettings(cuts=16, sigma=0.05),
}
"""The three arms of the figure."""


@dataclass(frozen=True)
class Gradients:
    """Gradients of one score, in one arm.

    Args:
        values: one per pixel and channel.
        inside: share of their mass inside the masks.
    """

    values: Images
    inside: Scores


def gradients(
    term: Term, x: Images, masks: Bool[Tensor, "b h w"], settings: ChainSettings, *, seeds: Seeds
) -> Gradients:
    """The gradient of a score by the pixels, averaged over cut-outs as the search does.

    Equation: digin2024 Fig. 13   ∇_x E_τ[p_f(y | τ(x))];  Σ_{p ∈ M} |∇_p| / Σ_p |∇_p|
    """
    with torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        total = augmented([term], leaf, settings, seeds).sum()
        (values,) = torch.autograd.grad(total, leaf)
    return Gradients(values, 1 - mass_outside(magnitude(values), masks))


def magnitude(values: Images) -> Float[Tensor, "b h w"]:
    """The mass of a gradient at each pixel: absolute values, summed over colours."""
    return values.abs().sum(1)
