"""Adversarial training: classify the most misleading image near each image.

Paper: Madry et al. 2018 (madry2018); Augustin et al. 2020 (ratio2020) for the half-clean form;
       Hendrycks et al. 2021 (nae2021) for noise, FGSM and PGD of random strength.
Differs: half-clean batches split one batch, so an epoch keeps its number of updates. The
       gradient of the last form is taken at the current point; the paper's formula prints x.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from counterlens.ball import Ball
from counterlens.losses.inner import Attack, need
from counterlens.objectives import wrongness
from counterlens.search import frozen, pgd
from counterlens.types import Batch


def adversarial_terms(
    net: nn.Module, batch: Batch, step: int, *, near: Attack
) -> dict[str, Tensor]:
    """Cross-entropy at the worst point of a ball.

    Equation: madry2018 (2.1)   E max_{‖z − x‖ ≤ ε} CE_y(z)
    """
    x, y = need(batch, "x", "adversarial"), need(batch, "y", "adversarial")
    return {"in": cross_entropy(net(near.near(net, x, y, step)), y)}


def half_adversarial_terms(
    net: nn.Module, batch: Batch, step: int, *, near: Attack
) -> dict[str, Tensor]:
    """Half of the batch clean, the other half attacked, one forward pass for both.

    Equation: ratio2020 §3.2   ½ E CE_y(x) + ½ E max_{‖z − x‖ ≤ ε} CE_y(z)
    """
    x, y = need(batch, "x", "adversarial"), need(batch, "y", "adversarial")
    half = len(x) // 2
    attacked = near.near(net, x[half:], y[half:], step)
    clean, hard = net(torch.cat([x[:half], attacked])).split([half, len(x) - half])
    return {
        "clean": 0.5 * cross_entropy(clean, y[:half]),
        "in": 0.5 * cross_entropy(hard, y[half:]),
    }


def random_strength_terms(
    net: nn.Module,
    batch: Batch,
    step: int,
    *,
    kind: Literal["noise", "fgsm", "pgd"],
    radius: float = 8 / 255,
    steps: int = 10,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Cross-entropy at l∞ perturbations whose size is drawn for each image.

    Equation: nae2021 §4.2   ε = (8/255) u, u ~ U[0, 1];  FGSM α = ε;  PGD α = ε/√steps
    """
    x, y = need(batch, "x", "adversarial"), need(batch, "y", "adversarial")
    size = radius * torch.rand(len(x), generator=generator, device=x.device, dtype=x.dtype)
    if kind == "noise":
        noise = torch.rand(x.shape, generator=generator, device=x.device, dtype=x.dtype)
        z = (x + size.view(-1, 1, 1, 1) * (2 * noise - 1)).clamp(0, 1)
        return {"in": cross_entropy(net(z), y)}
    count = 1 if kind == "fgsm" else steps
    with frozen(net):
        z = pgd(
            wrongness(net, y), x, Ball("linf", size), steps=count, step_size=size / count**0.5
        ).points
    return {"in": cross_entropy(net(z.detach()), y)}
