"""Masks: which pixels show the object, from where its word is attended to.

The mask S is soft: near 1 on the object, near 0 behind it. Its latent size is what blending and the
distance between latents use.

Paper: Augustin et al. 2024 (digin2024), appendix D; sizes and thresholds from its code, where they
       are pixels of 512; here they are fractions of the side.
Differs: the object is where attention exceeds the threshold; the paper draws points there and asks
       a segmenter for the object they lie on, see `points`. Attention is scaled from its least
       value, not from 0, to 1: small generators attend a little everywhere.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import conv2d, interpolate, max_pool2d, pad

from counterlens.errors import InputError
from counterlens.generators.diffusion.attention import Maps
from counterlens.types import Images

SoftMask = Float[Tensor, "b 1 h w"]
Average = Float[Tensor, "b q q n"]
"""Mean attention of each place to each token."""

EROSION, DILATION, BLUR, SPREAD = 3 / 512, 20 / 512, 45 / 512, 30 / 512
FLOOR = 0.3
SHOWN = 0.35
PLACES = 1 / 4
"""Maps of this share of the finest ones' side are read: 16 of 64, or the nearest there are."""
NEARLY = 0.005
"""A mask with less than this share of its pixels, or all but this share, shows nothing."""


def averaged(maps: Maps, *, steps: int, places: float | None = None) -> Average:
    """How much each place attends to each token: the mean over layers, heads and first steps.

    Equation: digin2024 §D.1   mean over the steps with 1 − i / (T − 1) ≥ 1/2

    Args:
        steps: T, of the chain.
        places: along a side, of the layers that are read, or the nearest there are; None: a
            quarter of the finest.
    """
    early = sum(1 - i / max(1, steps - 1) >= 0.5 for i in range(steps))
    side = nearest_side(maps, places)
    read = [
        one.float().mean(1)
        for layers in maps.steps[:early]
        for one in layers.values()
        if one.shape[2] == side * side
    ]
    average = torch.stack(read).mean(0)
    return average.view(len(average), side, side, -1)


def attended(average: Average, tokens: Sequence[Sequence[int]]) -> Float[Tensor, "b q q"]:
    """How much each place attends to some tokens of its image's caption, as a mean over them."""
    rows = [row[..., list(some)].mean(-1) for row, some in zip(average, tokens, strict=True)]
    return torch.stack(rows)


def nearest_side(maps: Maps, places: float | None = None) -> int:
    """The side of the maps that is nearest to the wanted one, the finer of two."""
    sides = {int(one.shape[2] ** 0.5 + 0.5) for one in maps.steps[0].values()}
    wanted = PLACES * max(sides) if places is None else places
    return min(sides, key=lambda side: (abs(side - wanted), -side))


def soft_map(attention: Float[Tensor, "b q q"], side: int) -> SoftMask:
    """Attention as a soft mask of the image's side.

    Equation: digin2024 §D.1   v ← √(max(v − 0.3, 0) / 0.7),  v = attention, scaled to [0, 1]
    """
    low, high = (f.view(-1, 1, 1) for f in attention.flatten(1).aminmax(dim=1))
    v = ((attention - low) / (high - low).clamp_min(1e-8))[:, None]
    v = interpolate(v, (side, side), mode="bicubic", align_corners=False).clamp(0, 1)
    return ((v - FLOOR).clamp_min(0) / (1 - FLOOR)).sqrt()


def from_attention(attention: Float[Tensor, "b q q"], side: int) -> SoftMask:
    """The mask of an object from its word's attention."""
    return softened((soft_map(attention, side) > SHOWN).to(attention.dtype))


def softened(mask: SoftMask) -> SoftMask:
    """A mask without specks, a little wider than the object, with soft edges.

    Equation: digin2024 §D.1   S = blur(dilate(erode(S)))
    """
    side = mask.shape[-1]
    smaller = -wider(-mask, _pixels(EROSION, side))
    larger = wider(smaller, _pixels(DILATION, side))
    return blurred(larger, _pixels(BLUR, side) // 2, SPREAD * side)


def wider(mask: SoftMask, size: int) -> SoftMask:
    """The largest value in a square around each pixel; outside the image there is nothing."""
    before = size // 2
    after = size - 1 - before
    edge = pad(mask, (before, after, before, after), value=-torch.inf)
    return max_pool2d(edge, size, stride=1)


def blurred(mask: SoftMask, radius: int, sigma: float) -> SoftMask:
    """Gaussian blur; the image goes on mirrored beyond its edge."""
    if not radius:
        return mask
    place = torch.arange(-radius, radius + 1, device=mask.device, dtype=mask.dtype)
    weight = (-(place**2) / (2 * sigma**2)).exp()
    weight = weight / weight.sum()
    edge = pad(mask, (radius,) * 4, mode="reflect")
    down = conv2d(edge, weight.view(1, 1, -1, 1))
    return conv2d(down, weight.view(1, 1, 1, -1)).clamp(0, 1)


def resized(mask: SoftMask, size: tuple[int, int]) -> SoftMask:
    """A mask at another size, such as that of the latents."""
    if mask.shape[-2:] == size:
        return mask
    return interpolate(mask, size, mode="bilinear", antialias=True, align_corners=False).clamp(0, 1)


def blank(mask: SoftMask) -> Bool[Tensor, "b"]:
    """Which masks show nothing or everything."""
    share = mask.flatten(1).mean(1)
    return (share < NEARLY) | (share > 1 - NEARLY)


def check_mask(mask: SoftMask, *, images: int, name: str = "mask") -> None:
    """Refuse a mask that cannot keep anything apart."""
    if mask.ndim != 4 or mask.shape[1] != 1 or len(mask) != images:
        raise InputError(
            f"{name} has the shape {tuple(mask.shape)}, expected ({images}, 1, height, width)."
        )
    if not torch.isfinite(mask).all() or mask.min() < 0 or mask.max() > 1:
        raise InputError(f"{name} has values outside 0 … 1, expected 1 on the object, 0 elsewhere.")
    share = mask.flatten(1).mean(1)
    if bool((share < NEARLY).any()):
        raise InputError(
            f"{name} is empty: nothing is marked as the object, so nothing may change."
        )
    if bool((share > 1 - NEARLY).any()):
        raise InputError(f"{name} is full: all is marked as the object, so there is no background.")


def masked_mean(
    mask: SoftMask, a: Float[Tensor, "b c h w"], b: Float[Tensor, "b c h w"]
) -> Float[Tensor, "b"]:
    """The squared distance where the mask is, as a mean over all elements.

    Equation: digin2024 (4)   mean(M · (a − b)²)
    """
    return (mask * (a - b).square()).flatten(1).mean(1)


def overlay(x: Images, mask: SoftMask) -> Images:
    """Images with what is outside the mask darkened, for people."""
    return x * (0.25 + 0.75 * mask)


def normalised(maps: Mapping[str, Float[Tensor, "q q"]]) -> dict[str, Float[Tensor, "q q"]]:
    """Each word's map, scaled from its least to its largest value."""
    return {
        word: (one - one.min()) / (one.max() - one.min()).clamp_min(1e-12)
        for word, one in maps.items()
    }


def _pixels(share: float, side: int) -> int:
    return max(1, round(share * side))
