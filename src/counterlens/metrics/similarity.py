"""How an image differs from another: how many pixels, and is the change smooth or noise.

Paper: Augustin et al. 2020 (ratio2020, Figure 1) for the failure these numbers make visible: on a
       plain model a counterfactual is high-frequency noise.
Differs: the paper judges by eye; smoothness is our measure.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterlens.types import Images


def changed_pixels(z: Images, x: Images) -> Int[Tensor, "b"]:
    """In how many places any channel differs once both are stored with 8 bits.

    >>> x = torch.zeros(1, 3, 2, 2)
    >>> changed_pixels(x + torch.tensor([[1 / 255, 0.0], [0.001, 0.0]]), x)
    tensor([1])
    """
    levels = (z * 255).round() != (x * 255).round()
    return levels.any(1).flatten(1).sum(1)


def smoothness(change: Images) -> Float[Tensor, "b"]:
    """How alike neighbouring pixels were changed: correlation at distance one, in [−1, 1].

    Equation: ratio2020 Fig. 1   Σ δ_p δ_q / Σ ½ (δ_p² + δ_q²) over neighbours p, q

    1 for a constant change, 0 for white noise, −1 for a checkerboard; 0 where nothing changed.

    >>> smoothness(torch.ones(1, 1, 4, 4)), smoothness(torch.tensor([[[[1.0, -1.0, 1.0]]]]))
    (tensor([1.]), tensor([-1.]))
    """
    pairs = [
        (change[..., 1:, :], change[..., :-1, :]),
        (change[..., :, 1:], change[..., :, :-1]),
    ]
    product = change.new_zeros(len(change))
    energy = change.new_zeros(len(change))
    for here, there in pairs:
        product += (here * there).flatten(1).sum(1)
        energy += (here.square() + there.square()).flatten(1).sum(1) / 2
    return torch.where(energy > 0, product / torch.where(energy > 0, energy, 1), 0)
