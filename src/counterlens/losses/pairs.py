"""Cross-entropy of images and of edited versions of them, with answers that agree.

Paper: Heinze-Deml and Meinshausen 2021 (core2021), conditional variance of images of one object;
       Geirhos et al. 2019 (geirhos2019) where the versions are stylised.
Differs: squared distance of the probabilities of each pair in place of the variance over all
       versions; that of logits is unbounded, and a step of an ordinary rate may diverge by it.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from counterlens.losses.inner import need
from counterlens.types import Batch

WEIGHT = 1.0


def pair_terms(net: nn.Module, batch: Batch, step: int) -> dict[str, Tensor]:
    """CE(x) + CE(x') + λ ‖p(x) − p(x')‖², the last over pairs of one class.

    `batch["version"]` holds the edited images, `batch["of"]` their originals' places in the batch,
    `batch["version_y"]` their classes.
    """
    x, y, version, of, labels = (
        need(batch, key, "pairs") for key in ("x", "y", "version", "of", "version_y")
    )
    if not len(of):
        return {"in": cross_entropy(net(x), y)}
    logits = net(torch.cat([x, version]))
    own, other = logits[: len(x)], logits[len(x) :]
    alike = y[of] == labels
    gap = (own[of].softmax(1) - other.softmax(1)).square().sum(1)[alike]
    return {
        "in": cross_entropy(own, y),
        "edited": cross_entropy(other, labels),
        "agree": WEIGHT * (gap.mean() if len(gap) else gap.sum()),
    }
