"""RATIO: robust inside, and sure of nothing in a ball around images from outside.

Paper: Augustin, Meinke, Hein 2020, Adversarial Robustness on In- and Out-Distribution Improves
       Explainability, ECCV.
Differs: `scale` is 1/2 (1/3 for three parts) as in the code of the paper's tables; the
       paper's equation has 1. It acts like a smaller learning rate beside the weight decay.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from counterlens.losses.inner import Attack, attack_both, need
from counterlens.losses.outlier_exposure import joint_terms
from counterlens.objectives import uniform_divergence_of
from counterlens.types import Batch


def ratio_terms(
    net: nn.Module,
    batch: Batch,
    step: int,
    *,
    near: Attack,
    far: Attack,
    out_weight: float = 1.0,
    scale: float = 0.5,
) -> dict[str, Tensor]:
    """Worst cross-entropy near in-images, worst certainty near out-images.

    Equation: ratio2020 (6)   E_in max_{B(x, ε_i)} CE_y(z) + λ E_out max_{B(x, ε_o)} KL(1/K ‖ p(z))
    """
    x, y, out = (need(batch, key, "RATIO") for key in ("x", "y", "out"))
    inside, outside = attack_both(near, far, net, x, y, out, step)
    return joint_terms(net, inside, y, outside, out_weight=out_weight, scale=scale)


def three_part_ratio_terms(
    net: nn.Module,
    batch: Batch,
    step: int,
    *,
    near: Attack,
    far: Attack,
    out_weight: float = 1.0,
    scale: float = 1 / 3,
) -> dict[str, Tensor]:
    """RATIO whose in-batch is half clean, half attacked; all three parts share one forward.

    Equation: ratio2020 §3.2   E CE_y(x) + E max CE_y(z) + λ E_out max KL(1/K ‖ p(z))
    """
    x, y, out = (need(batch, key, "three-part RATIO") for key in ("x", "y", "out"))
    half = len(x) // 2
    attacked, outside = attack_both(near, far, net, x[half:], y[half:], out, step)
    parts = [x[:half], attacked, outside]
    clean, hard, far_out = net(torch.cat(parts)).split([len(part) for part in parts])
    return {
        "clean": scale * cross_entropy(clean, y[:half]),
        "in": scale * cross_entropy(hard, y[half:]),
        "out": scale * out_weight * uniform_divergence_of(far_out).mean(),
    }
