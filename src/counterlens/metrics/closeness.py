"""How near a counterfactual stays to its image, inside and outside the object, and how sparse.

Paper: Augustin, Neuhaus, Hein 2024 (digin2024), section 5: the background should stay.
Differs: the paper asks people; these are the distances that its penalties weigh.
"""

from jaxtyping import Float
from torch import Tensor

from counterlens.types import Images, Scores

VISIBLE = 16.5 / 255
"""A pixel counts as changed where some channel moved by more than 16 of 255 levels."""


def masked_l2(z: Images, x: Images, mask: Float[Tensor, "b 1 h w"]) -> Scores:
    """The l2 distance where a soft mask is; of a mask and its complement the squares add up.

    Equation: digin2024 (4)   ‖√M ⊙ (z − x)‖₂
    """
    return (mask * (z - x).square()).flatten(1).sum(1).sqrt()


def masked_mean(values: Float[Tensor, "b h w"], mask: Float[Tensor, "b 1 h w"]) -> Scores:
    """The mean of a map weighed by a mask; NaN where the mask is empty."""
    weight = mask[:, 0]
    return (weight * values).flatten(1).sum(1) / weight.flatten(1).sum(1)


def changed_share(z: Images, x: Images, *, level: float = VISIBLE) -> Scores:
    """The share of pixels of which some channel moved by more than a level.

    >>> import torch
    >>> changed_share(torch.tensor([[[[0.0, 0.5, 0.01, 0.0]]]]), torch.zeros(1, 1, 1, 4))
    tensor([0.2500])
    """
    return ((z - x).abs() > level).any(1).flatten(1).float().mean(1)
