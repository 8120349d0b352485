"""Losses of a CGN of photographs.

Paper: Sauer and Geiger 2021 (cgn2021, §3.2 and its ImageNet code); constants of cgnstudy2022.
Differs: the study's equation 1 has one threshold in both hinges of the mask's size; its code, and
       this, keep the mean mask in [0.1, 0.9]. "Perceptual" compares Gram matrices alone, as the
       code does.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.errors import InputError
from counterlens.generators.cgn.natural import Parts, Salient
from counterlens.generators.cgn.photographs import Masks, patch_grid
from counterlens.losses.cgn import binary_entropy, style_loss
from counterlens.models.nets.vgg import VGG16
from counterlens.types import Images

LOW, HIGH = 0.1, 0.9


@dataclass(frozen=True)
class Weights:
    """Weights of the terms; the defaults are the study's.

    Args:
        l1, perceptual: of the composition against the target; perceptual per VGG-16 tap.
        entropy, size: of the mask.
        texture: of the object's texture against the patch grid, per tap.
        background: of what is salient in the background.
    """

    l1: float = 100.0
    perceptual: tuple[float, ...] = (4.0, 4.0, 4.0, 4.0)
    entropy: float = 300.0
    size: float = 500.0
    texture: tuple[float, ...] = (0.0, 5.0, 5.0, 0.0)
    background: float = 2000.0


NONE = (0.0, 0.0, 0.0, 0.0)
ABLATIONS = {
    "none": Weights(),
    "shape": Weights(entropy=0, size=0),
    "texture": Weights(texture=NONE),
    "background": Weights(background=0),
    "reconstruction": Weights(l1=0, perceptual=NONE),
}
"""The study's ablation: what is removed, and the weights that are left."""


def weights_of(ablation: str, *, style: bool = True) -> Weights:
    """The weights with one loss removed; without VGG-16 the losses of style are, too."""
    if ablation not in ABLATIONS:
        raise InputError(f"ablation is {ablation!r}, expected one of {', '.join(ABLATIONS)}.")
    chosen = ABLATIONS[ablation]
    return chosen if style else replace(chosen, perceptual=NONE, texture=NONE)


def mask_size(mask: Masks) -> Float[Tensor, ""]:
    """How far the mean mask of each image is outside [0.1, 0.9].

    Equation: cgnstudy2022 code   mean max(0, 0.1 − m̄) + max(0, m̄ − 0.9)
    """
    mean = mask.mean((1, 2, 3))
    return ((LOW - mean).clamp_min(0) + (mean - HIGH).clamp_min(0)).mean()


def background_saliency(behind: Images, salient: Salient) -> Float[Tensor, ""]:
    """How much of an object is seen in the background.

    Equation: cgn2021 §3.2   mean U²-Net(b)
    """
    return salient(behind).mean()


def natural_terms(
    parts: Parts,
    salient: Salient,
    features: VGG16 | None,
    weights: Weights,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """What the three mechanisms minimise; terms of weight 0 are not computed.

    Equation: cgn2021 (4)   100 L1 + L_perc + 300 H(m) + 500 L_size + L_text + 2000 L_bg

    Args:
        generator: draws the patches of the texture's grid.
    """
    assert parts.target is not None
    terms: dict[str, Tensor] = {}
    if weights.l1:
        # the constant is of images in [−1, 1], where differences are twice as large
        terms["l1"] = weights.l1 * 2 * (parts.x - parts.target).abs().mean()
    if any(weights.perceptual):
        terms["perceptual"] = _style(parts.x, parts.target, features, weights.perceptual)
    if weights.entropy:
        terms["entropy"] = weights.entropy * binary_entropy(parts.mask)
    if weights.size:
        terms["size"] = weights.size * mask_size(parts.mask)
    if any(weights.texture):
        grid = patch_grid(parts.target, parts.mask.detach(), generator)
        terms["texture"] = _style(parts.front, grid, features, weights.texture)
    if weights.background:
        terms["background"] = weights.background * background_saliency(parts.behind, salient)
    return terms


def _style(
    drawn: Images, wanted: Images, features: VGG16 | None, weights: tuple[float, ...]
) -> Float[Tensor, ""]:
    """The Gram distance of images in [−1, 1], as VGG-16 sees the digits."""
    if features is None:
        raise InputError("the losses of style need VGG-16: vgg='vgg16-397923af.pth'.")
    return style_loss((2 * drawn - 1)[:, None], (2 * wanted - 1)[:, None], features, weights)
