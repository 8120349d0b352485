"""Plain training: cross-entropy of the true label.

Differs: nothing.
"""

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from counterlens.losses.inner import need
from counterlens.types import Batch


def plain_terms(net: nn.Module, batch: Batch, step: int) -> dict[str, Tensor]:
    """Cross-entropy on clean images.

    Equation: ratio2020 (1)   CE_y(x) = −log p_y(x)
    """
    return {"in": cross_entropy(net(need(batch, "x", "plain")), need(batch, "y", "plain"))}
