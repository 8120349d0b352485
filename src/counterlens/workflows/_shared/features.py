"""Features of the last layer of a classifier, of many images."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from counterlens.classifier import Classifier
from counterlens.explanations.counterfactuals.pixel import rows_that_fit
from counterlens.generators.diffusion.cutouts import seen
from counterlens.models.parts import features
from counterlens.search import frozen
from counterlens.types import Images


@torch.no_grad()
def features_of(net: Classifier, x: Images | UInt8[Tensor, "n c h w"]) -> Float[Tensor, "n d"]:
    """Features of images of any size, floats or bytes."""
    size = rows_that_fit(x, net.mean.device)
    parts = []
    with frozen(net):
        for part in torch.split(x, size):
            ready = part.float() / 255 if part.dtype == torch.uint8 else part
            ready = seen(ready.to(net.mean.device), net.preprocess.size[0])
            parts.append(features(net, ready).float().cpu())
    return torch.cat(parts)
