"""How good generated images are: exactness, realism, variety, and whether they are copies.

Paper: Bińkowski et al. 2018 (kid2018); Kynkäänniemi et al. 2019 (recall2019).
Differs: features are whatever the caller gives (here those of a classifier, not of Inception), so
       values compare only with others of the same features.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.errors import InputError
from counterlens.types import Images

_Features = Float[Tensor, "n d"]


def psnr(generated: Images, wanted: Images) -> float:
    """Peak signal-to-noise ratio over all pixels of all images, in decibels.

    >>> round(psnr(torch.full((1, 1, 2, 2), 0.6), torch.full((1, 1, 2, 2), 0.5)), 4)
    20.0
    """
    error = (generated.double() - wanted.double()).square().mean().item()
    return -10 * math.log10(error) if error > 0 else math.inf


def kid(generated: _Features, real: _Features) -> float:
    """Kernel inception distance: unbiased squared distance of two sets of features.

    Equation: kid2018 §3   MMD²_u,  k(x, y) = (xᵀy / d + 1)³

    0 in the mean when both come from one distribution; then it may be below 0.
    """
    if min(len(generated), len(real)) < 2:
        raise InputError(
            f"got {len(generated)} and {len(real)} images, expected 2 or more of each."
        )
    generated, real = generated.double(), real.double()
    d = generated.shape[1]

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return (a @ b.T / d + 1) ** 3

    def within(a: Tensor) -> Tensor:
        k = kernel(a, a)
        return (k.sum() - k.diagonal().sum()) / (len(a) * (len(a) - 1))

    return float(within(generated) + within(real) - 2 * kernel(generated, real).mean())


def kid_blocks(generated: _Features, real: _Features, *, blocks: int = 10) -> Float[Tensor, "m"]:
    """KID of disjoint blocks of both sets, in their order.

    Small sets are cut into fewer blocks, so that each holds twenty images or there are two.
    """
    blocks = max(2, min(blocks, min(len(generated), len(real)) // 20))
    pairs = zip(generated.tensor_split(blocks), real.tensor_split(blocks), strict=True)
    return torch.tensor([kid(a, b) for a, b in pairs], dtype=torch.float64)


def kid_interval(
    generated: _Features, real: _Features, *, blocks: int = 10
) -> tuple[float, float, float]:
    """The mean of KID over disjoint blocks of both sets, and its 95 % interval."""
    return t_interval(kid_blocks(generated, real, blocks=blocks))


def t_interval(values: Float[Tensor, "m"]) -> tuple[float, float, float]:
    """The mean of a few independent values and its 95 % interval by Student's t."""
    from scipy.stats import t

    mean = values.mean().item()
    count = len(values)
    reach = float(t.ppf(0.975, count - 1)) * values.std().item() / math.sqrt(count)
    return mean, mean - reach, mean + reach


def recall(generated: _Features, real: _Features, *, k: int = 3) -> float:
    """Share of real images that lie within reach of the generated ones: variety.

    Equation: recall2019 (2)   1/|Φ_r| Σ_{φ ∈ Φ_r} [∃ φ' ∈ Φ_g: ‖φ − φ'‖ ≤ ‖φ' − NN_k(φ')‖]
    """
    if len(generated) <= k:
        raise InputError(f"got {len(generated)} images, expected more than {k}.")
    radius = (
        torch.cdist(generated, generated).kthvalue(k + 1, dim=1).values
    )  # the nearest is itself
    return float((torch.cdist(real, generated) <= radius).any(1).double().mean())


def nearest(x: Images, others: Images, *, part: int = 4096) -> tuple[Tensor, Tensor]:
    """For each image the l2 distance to the nearest of others, and which one that is."""
    best = torch.full((len(x),), math.inf, device=x.device)
    which = torch.zeros(len(x), dtype=torch.long, device=x.device)
    flat = x.flatten(1)
    for start in range(0, len(others), part):
        distance, place = torch.cdist(flat, others[start : start + part].flatten(1)).min(1)
        which = torch.where(distance < best, place + start, which)
        best = torch.minimum(best, distance)
    return best, which
