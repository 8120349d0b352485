"""The contrastive loss of image and text of CLIP, where several images may share a text.

Paper: Radford et al. 2021 (clip2021), section 2.3; Khosla et al. 2020 (supcon2020) for several
       positives.
Differs: captions built from class names repeat within a batch, so the target of an image is spread
       over all texts equal to its own, and the other way round.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from counterlens.types import Batch


def contrastive(net: Any, batch: Batch, step: int) -> dict[str, Tensor]:
    """Cross-entropy of matching images with texts, and texts with images.

    Args:
        net: images in [0, 1] and token ids to embeddings of both and the logarithm of the scale.
        batch: "x" and "ids".
    """
    image, text, scale = net(batch["x"], batch["ids"])
    same = (batch["ids"][:, None] == batch["ids"][None]).all(2)
    return {"match": matching(image, text, same, scale)}


def matching(
    image: Float[Tensor, "b d"],
    text: Float[Tensor, "b d"],
    same: Tensor,
    scale: Float[Tensor, ""],
) -> Float[Tensor, ""]:
    """The symmetric loss.

    Equation: clip2021 Fig. 3   ½ (CE(s · f gᵀ, T) + CE(s · g fᵀ, T)),  T = uniform over equal texts
    """
    logits = scale.exp().clamp_max(100) * normalize(image, dim=1) @ normalize(text, dim=1).T
    target = same.to(logits) / same.sum(1, keepdim=True)
    there = -(target * torch.log_softmax(logits, 1)).sum(1).mean()
    back = -(target * torch.log_softmax(logits.T, 1)).sum(1).mean()
    return (there + back) / 2
