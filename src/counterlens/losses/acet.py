"""ACET: know nothing in a whole ball around out-distribution images.

Paper: Hein, Andriushchenko, Bitterwolf 2019 (acet2019), in the form of Augustin et al. 2020.
Differs: KL to uniform in place of the largest log-confidence, as RATIO's authors compare it.
"""

from torch import Tensor, nn

from counterlens.losses.inner import Attack, need
from counterlens.losses.outlier_exposure import joint_terms
from counterlens.types import Batch


def acet_terms(
    net: nn.Module,
    batch: Batch,
    step: int,
    *,
    far: Attack,
    out_weight: float = 1.0,
    scale: float = 0.5,
) -> dict[str, Tensor]:
    """Cross-entropy inside, worst divergence from uniform in a ball outside.

    Equation: acet2019 (2)   E_in CE_y(x) + λ E_out max_{‖z − x_out‖ ≤ ε_o} KL(1/K ‖ p(z))
    """
    x, y, out = (need(batch, key, "ACET") for key in ("x", "y", "out"))
    z = far.far(net, out, step)
    return joint_terms(net, x, y, z, out_weight=out_weight, scale=scale)
