"""TRADES: classify clean images, and answer alike in a ball around them.

Paper: Zhang et al. 2019, Theoretically Principled Trade-off between Robustness and Accuracy.
Differs: clean and attacked images share one training-mode forward. The attack starts at a random
       point: at the image itself the divergence has gradient exactly zero.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from counterlens.losses.inner import Attack, need
from counterlens.types import Batch, Images, Logits, Objective, Scores


def trades_terms(
    net: nn.Module,
    batch: Batch,
    step: int,
    *,
    near: Attack,
    beta: float = 6.0,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Cross-entropy of clean images plus the worst divergence around them.

    Equation: trades2019 (5)   E CE_y(x) + β E max_{‖z − x‖ ≤ ε} KL(p(x) ‖ p(z))
    """
    x, y = need(batch, "x", "TRADES"), need(batch, "y", "TRADES")
    z = trades_points(net, x, step, near=near, generator=generator)
    clean, hard = net(torch.cat([x, z])).chunk(2)
    return {
        "clean": cross_entropy(clean, y),
        "near": beta * divergence(clean, hard).mean(),  # p(x) is not detached here
    }


def trades_points(
    net: nn.Module, x: Images, step: int, *, near: Attack, generator: torch.Generator
) -> Images:
    """Where the answers differ most from those at x; p(x) of the network in eval mode."""
    training = net.training
    net.eval()
    try:
        with torch.no_grad():
            clean = net(x)
    finally:
        net.train(training)
    return near.search(net, apart(net, clean), x, step, generator)


def apart(net: nn.Module, clean: Logits) -> Objective:
    """How much the answer at z differs from a given one: what the TRADES attack raises."""
    return lambda z: divergence(clean, net(z))


def divergence(first: Logits, second: Logits) -> Scores:
    """KL(p ‖ q) per row, from logits."""
    p, q = first.log_softmax(1), second.log_softmax(1)
    return (p.exp() * (p - q)).sum(1)
