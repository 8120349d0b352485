"""Colour counterfactuals: does the answer hang on colour alone?

Paper: Hendrycks et al. 2021, Natural Adversarial Examples, arXiv:1907.07174 (Figure 12): an
       image taken for a banana is recognised once its colours are changed.
Differs: the paper shows a handful of edits by hand; here the sweep is fixed, so that the share of
       images whose answer changes is a number models can be compared by.
"""

from collections.abc import Iterable
from functools import partial
from itertools import permutations

import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.errors import InputError
from counterlens.explanations.edits.variants import EditVariant
from counterlens.types import Images


def hue(x: Images, degrees: float) -> Images:
    """Turn all hues by an angle; saturation and value stay.

    >>> hue(torch.tensor([1.0, 0, 0]).view(1, 3, 1, 1), 120).flatten()
    tensor([0., 1., 0.])
    """
    turned = _hsv(x)
    turned[:, 0] = (turned[:, 0] + degrees / 360) % 1
    return _rgb(turned)


def saturation(x: Images, factor: float) -> Images:
    """Multiply the saturation; 0 gives grey of the same value, above 1 stronger colours."""
    scaled = _hsv(x)
    scaled[:, 1] = (scaled[:, 1] * factor).clamp(0, 1)
    return _rgb(scaled)


def grey(x: Images) -> Images:
    """The image without colour: the luma of ITU-R BT.601 in all three channels."""
    weights = x.new_tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    luma = (x * weights).sum(1, keepdim=True)
    return luma.clamp(0, 1).expand_as(x).contiguous()


def swap(x: Images, order: tuple[int, ...]) -> Images:
    """The channels in another order: (2, 1, 0) turns RGB to BGR."""
    return x[:, list(order)]


def colour_variants(
    *,
    hues: Iterable[float] = range(30, 360, 30),
    saturations: Iterable[float] = (0.25, 0.5, 1.5, 2.0),
) -> tuple[EditVariant, ...]:
    """The sweep: hues, saturations, grey, and the five other orders of the channels.

    >>> len(colour_variants()), colour_variants()[0].name
    (21, 'hue 30°')
    """
    sweep = [EditVariant("hue", f"hue {d:g}°", partial(hue, degrees=d)) for d in hues]
    sweep += [
        EditVariant("saturation", f"saturation × {f:g}", partial(saturation, factor=f))
        for f in saturations
    ]
    sweep.append(EditVariant("grey", "grey", grey))
    for order in permutations(range(3)):
        if order != (0, 1, 2):
            name = "".join("RGB"[i] for i in order)
            sweep.append(EditVariant("channels", name, partial(swap, order=order)))
    return tuple(sweep)


def _hsv(x: Images) -> Float[Tensor, "b 3 h w"]:
    """Hue, saturation, value, each in [0, 1]."""
    if x.shape[1] != 3:
        raise InputError(
            f"got images of {x.shape[1]} channels, expected 3: grey has no colour to change."
        )
    top, which = x.max(1)
    span = top - x.amin(1)
    safe = torch.where(span > 0, span, 1)
    red, green, blue = x.unbind(1)
    sixth = torch.stack(
        [(green - blue) / safe, 2 + (blue - red) / safe, 4 + (red - green) / safe], 1
    ).gather(1, which[:, None])[:, 0]
    angle = torch.where(span > 0, (sixth / 6) % 1, 0)
    return torch.stack(
        [angle, torch.where(top > 0, span / torch.where(top > 0, top, 1), 0), top], 1
    )


def _rgb(hsv: Float[Tensor, "b 3 h w"]) -> Images:
    """Back to red, green, blue: c = v − v s max(0, min(k, 4 − k, 1)), k = (n + 6 h) mod 6."""
    angle, strength, value = hsv.unbind(1)
    channels = []
    for n in (5, 3, 1):
        k = (n + 6 * angle) % 6
        channels.append(value - value * strength * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(channels, 1).clamp(0, 1)
