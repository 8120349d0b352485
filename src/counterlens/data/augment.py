"""Augmentation policies of whole batches on the device that trains.

Paper: Augustin et al. 2020 (ratio2020) for the policies of CIFAR, SVHN and Restricted ImageNet;
       Krizhevsky et al. 2012 (alexnet2012) for the lighting noise of the last.
Differs: the ImageNet policy crops from a stored square (256 pixels) by bilinear sampling.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from counterlens.data.autoaugment import autoaugment
from counterlens.data.batches import Bytes, Draws, Fill, Whole, crop, cutout, flip
from counterlens.errors import InputError

CIFAR_MEAN: Fill = (125.0, 122.0, 113.0)
SVHN_MEAN: Fill = (112.0, 113.0, 121.0)

# principal axes of the colours of ImageNet, times their spread
LIGHTING = (
    (-0.5675 * 0.2175, 0.7192 * 0.0188, 0.4009 * 0.0045),
    (-0.5808 * 0.2175, -0.0045 * 0.0188, -0.8140 * 0.0045),
    (-0.5836 * 0.2175, -0.6948 * 0.0188, 0.4203 * 0.0045),
)


def cifar(x: Bytes, generator: torch.Generator | None, *, fill: Fill = CIFAR_MEAN) -> Whole:
    """Crop, flip, AutoAugment, Cutout 16: the CIFAR policy of ratio2020; values in [0, 1]."""
    return _small(x, generator, fill=fill, mirrored=True, policy=1.0, hole=16)


def cifar_half(x: Bytes, generator: torch.Generator | None, *, fill: Fill = CIFAR_MEAN) -> Whole:
    """The CIFAR policy with AutoAugment for every second image: for short trainings."""
    return _small(x, generator, fill=fill, mirrored=True, policy=0.5, hole=16)


def cifar_light(x: Bytes, generator: torch.Generator | None, *, fill: Fill = CIFAR_MEAN) -> Whole:
    """Crop, flip, Cutout 8."""
    return _small(x, generator, fill=fill, mirrored=True, policy=0.0, hole=8)


def crop_flip(x: Bytes, generator: torch.Generator | None, *, fill: Fill = CIFAR_MEAN) -> Whole:
    """Crop and flip alone."""
    return _small(x, generator, fill=fill, mirrored=True, policy=0.0, hole=0)


def svhn(x: Bytes, generator: torch.Generator | None, *, fill: Fill = SVHN_MEAN) -> Whole:
    """Crop and Cutout 16, no mirror: digits have a direction."""
    return _small(x, generator, fill=fill, mirrored=False, policy=0.0, hole=16)


def none(x: Bytes, generator: torch.Generator | None, *, fill: Fill = CIFAR_MEAN) -> Whole:
    """Pixels as they are, in [0, 1]."""
    return x.float() / 255


def imagenet(
    x: Bytes, generator: torch.Generator | None, *, fill: Fill = CIFAR_MEAN, size: int = 224
) -> Whole:
    """Random resized crop, mirror, colour jitter 0.1, lighting 0.05: Restricted ImageNet."""
    draws = Draws.make(8, len(x), x, generator)
    z = resized_crop(x.float() / 255, draws, size)
    z = _jitter(flip(z, draws.uniform[4] < 0.5), 0.9 + 0.2 * draws.uniform[5:8])
    noise = 0.05 * torch.randn(len(x), 3, 1, device=x.device, generator=generator)
    axes = torch.stack([torch.stack([_scalar(v, z) for v in row]) for row in LIGHTING])
    return (z + (axes @ noise)[..., None]).clamp(0, 1)


def imagenet_crop(
    x: Bytes, generator: torch.Generator | None, *, fill: Fill = CIFAR_MEAN, size: int = 224
) -> Whole:
    """Random resized crop and mirror alone: the networks of nae2021."""
    draws = Draws.make(5, len(x), x, generator)
    return flip(resized_crop(x.float() / 255, draws, size), draws.uniform[4] < 0.5)


def photographs(
    x: Bytes, generator: torch.Generator | None, *, fill: Fill = CIFAR_MEAN, size: int = 128
) -> Whole:
    """Random resized crop of 25 % of the area or more, mirror, colour jitter 0.3."""
    draws = Draws.make(8, len(x), x, generator)
    z = resized_crop(x.float() / 255, draws, size, least=0.25)
    return _jitter(flip(z, draws.uniform[4] < 0.5), 0.7 + 0.6 * draws.uniform[5:8]).clamp(0, 1)


def photographs_light(
    x: Bytes, generator: torch.Generator | None, *, fill: Fill = CIFAR_MEAN, size: int = 128
) -> Whole:
    """Random resized crop of 64 % of the area or more and mirror: for adversarial training."""
    draws = Draws.make(5, len(x), x, generator)
    z = resized_crop(x.float() / 255, draws, size, least=0.64)
    return flip(z, draws.uniform[4] < 0.5)


def resized_crop(
    x: Whole, draws: Draws, size: int, *, least: float = 0.08, widest: float = 4 / 3
) -> Whole:
    """A rectangle of `least` to all of the area, its sides at most `widest` apart, as size × size.

    With `widest` 1 squares alone are cropped, so that shapes are kept.
    """
    h, w = x.shape[2:]
    area = (least + (1 - least) * draws.uniform[0]) * h * w
    ratio = torch.exp((2 * draws.uniform[1] - 1) * math.log(widest))
    wide, tall = (area * ratio).sqrt().clamp_max(w), (area / ratio).sqrt().clamp_max(h)
    left, top = draws.uniform[2] * (w - wide), draws.uniform[3] * (h - tall)
    steps = (torch.arange(size, device=x.device) + 0.5) / size
    cols = (left[:, None] + wide[:, None] * steps) * 2 / w - 1
    rows = (top[:, None] + tall[:, None] * steps) * 2 / h - 1
    grid = torch.stack(
        [cols[:, None, :].expand(-1, size, -1), rows[:, :, None].expand(-1, -1, size)], 3
    )
    cut: Tensor = grid_sample(x, grid, padding_mode="border", align_corners=False)
    return cut


def _jitter(x: Whole, factor: Tensor) -> Whole:
    """Brightness, contrast and saturation by a factor each, in [0, 1]."""
    light, contrast, colour = factor[:, :, None, None, None].unbind(0)
    x = (x * light).clamp(0, 1)
    mean = _grey(x).mean((1, 2, 3), keepdim=True)
    x = (mean + contrast * (x - mean)).clamp(0, 1)
    grey = _grey(x)
    return (grey + colour * (x - grey)).clamp(0, 1)


def _grey(x: Whole) -> Tensor:
    return 0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:3]


def _scalar(value: float, like: Tensor) -> Tensor:
    return torch.full((), value, dtype=like.dtype, device=like.device)


def _small(
    x: Bytes,
    generator: torch.Generator | None,
    *,
    fill: Fill,
    mirrored: bool,
    policy: float,
    hole: int,
    pad: int = 4,
) -> Whole:
    h, w = x.shape[2:]
    draws = Draws.make(11, len(x), x, generator)
    z = crop(x.float(), draws.below(0, 2 * pad + 1), draws.below(1, 2 * pad + 1), pad, fill)
    if mirrored:
        z = flip(z, draws.uniform[2] < 0.5)
    if policy:
        drawn = (draws.uniform[10] < policy).view(-1, 1, 1, 1)
        z = torch.where(drawn, autoaugment(z, draws, 3, fill), z)
    if hole:
        z = cutout(z, draws.below(8, h), draws.below(9, w), hole, fill)
    return z / 255


POLICIES: dict[str, Callable[..., Whole]] = {
    "cifar": cifar,
    "cifar-half": cifar_half,
    "cifar-light": cifar_light,
    "crop-flip": crop_flip,
    "svhn": svhn,
    "imagenet": imagenet,
    "imagenet-crop": imagenet_crop,
    "photographs": photographs,
    "photographs-light": photographs_light,
    "none": none,
}
"""The names a recipe may use."""


def augment(
    name: str,
    x: Bytes,
    generator: torch.Generator | None,
    *,
    fill: Fill | None = None,
    size: int | None = None,
) -> Whole:
    """A batch of stored pictures under a named policy, as float images in [0, 1].

    Args:
        fill: colour of what a crop or a hole leaves empty; None takes the policy's own.
        size: side of the result, for policies that crop from larger pictures.
    """
    if name not in POLICIES:
        raise InputError(f"augmentation is {name!r}, expected one of {', '.join(POLICIES)}.")
    options: dict[str, Any] = {} if fill is None else {"fill": fill}
    if size is not None and name.startswith(("imagenet", "photographs")):
        options["size"] = size
    return POLICIES[name](x, generator, **options)
