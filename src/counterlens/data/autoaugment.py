"""AutoAugment for CIFAR-10: thirteen operations on whole batches, and the policy found with them.

Paper: Cubuk et al. 2019 (autoaugment2019).
Differs: every operation runs on the whole batch and each image keeps the one drawn for it. Pixel
       values are whole numbers 0 … 255 as in the imaging library the policies were found with,
       so the results agree with it exactly. As in the code behind ratio2020, rotation goes one
       way only and fills with grey, while shears and shifts fill with the mean colour.
"""

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from counterlens.data.batches import Draws, Fill, Whole, colour, take

GREY: Fill = (128.0, 128.0, 128.0)

# (operation, probability, level) twice: the 25 sub-policies found on CIFAR-10
CIFAR10_POLICY: tuple[tuple[tuple[str, float, int], tuple[str, float, int]], ...] = (
    (("invert", 0.1, 7), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 8), ("equalize", 0.9, 2)),
    (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("color", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 5), ("equalize", 0.5, 1)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("color", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalize", 0.3, 7), ("autocontrast", 0.4, 8)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("color", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 3)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 8), ("equalize", 0.6, 4)),
    (("color", 0.9, 9), ("equalize", 0.6, 6)),
    (("autocontrast", 0.8, 4), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("color", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 3)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 2), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 8), ("invert", 0.1, 3)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 1)),
)

_RANGES: dict[str, tuple[float, float]] = {
    "shear_y": (0.0, 0.3),
    "translate_x": (0.0, 150 / 331),
    "translate_y": (0.0, 150 / 331),
    "rotate": (0.0, 30.0),
    "color": (0.0, 0.9),
    "contrast": (0.0, 0.9),
    "sharpness": (0.0, 0.9),
    "brightness": (0.0, 0.9),
    "posterize": (8.0, 4.0),
    "solarize": (256.0, 0.0),
}
_SIGNED = ("shear_y", "translate_x", "translate_y", "color", "contrast", "sharpness", "brightness")


def magnitude(operation: str, level: int) -> float:
    """What a level 0 … 9 means for an operation.

    >>> magnitude("posterize", 7), round(magnitude("rotate", 2), 3), magnitude("invert", 7)
    (5.0, 6.667, 0.0)
    """
    low, high = _RANGES.get(operation, (0.0, 0.0))
    value = low + (high - low) * level / 9
    return float(round(value)) if operation == "posterize" else value


def _grid(x: Tensor) -> tuple[Tensor, Tensor]:
    """Pixel centres: rows and columns."""
    h, w = x.shape[2:]
    rows = torch.arange(h, device=x.device, dtype=torch.float64) + 0.5
    cols = torch.arange(w, device=x.device, dtype=torch.float64) + 0.5
    return rows[None, :, None], cols[None, None, :]


def _nearest(x: Whole, rows: Tensor, cols: Tensor, fill: Fill) -> Whole:
    shape = (len(x), *x.shape[2:])
    return take(x, rows.floor().long().expand(shape), cols.floor().long().expand(shape), fill)


def translate_x(x: Whole, m: Tensor, fill: Fill) -> Whole:
    """Shift by m of the width, nearest pixel."""
    rows, cols = _grid(x)
    return _nearest(x, rows, cols + m.double()[:, None, None] * x.shape[3], fill)


def translate_y(x: Whole, m: Tensor, fill: Fill) -> Whole:
    """Shift by m of the height, nearest pixel."""
    rows, cols = _grid(x)
    return _nearest(x, rows + m.double()[:, None, None] * x.shape[2], cols, fill)


def rotate(x: Whole, degrees: Tensor, fill: Fill) -> Whole:
    """Turn about the centre, nearest pixel, grey outside."""
    rows, cols = _grid(x)
    angle = (-degrees.double() * (math.pi / 180))[:, None, None]
    cos, sin = angle.cos(), angle.sin()
    cy, cx = x.shape[2] / 2, x.shape[3] / 2
    dy, dx = rows - cy, cols - cx
    return _nearest(x, -sin * dx + cos * dy + cy, cos * dx + sin * dy + cx, GREY)


def shear_y(x: Whole, m: Tensor, fill: Fill) -> Whole:
    """Shear upright, bicubic along the columns (the columns themselves stay in place)."""
    h, w = x.shape[2:]
    rows, cols = _grid(x)
    at = rows + m.double()[:, None, None] * cols  # b × h × w
    inside = ((at >= 0) & (at < h))[:, None]
    low = (at - 0.5).floor()
    d = (at - 0.5 - low)[:, None]
    column = torch.arange(w, device=x.device).expand(len(x), h, w)

    def tap(offset: int) -> Tensor:
        row = (low + offset).long().clamp(0, h - 1)
        return take(x, row, column, fill).double()

    v1, v2, v3, v4 = (tap(offset) for offset in (-1, 0, 1, 2))
    # the cubic through four values with a = −1, as the imaging library has it
    curve = v2 + d * ((v3 - v1) + d * ((2 * (v1 - v2) + v3 - v4) + d * (v2 - v1 + v4 - v3)))
    return torch.where(inside, curve.clamp(0, 255).floor().to(x.dtype), colour(fill, x))


def invert(x: Whole, m: Tensor, fill: Fill) -> Whole:
    """Negative."""
    return 255 - x


def posterize(x: Whole, bits: Tensor, fill: Fill) -> Whole:
    """Keep the upper `bits` of each value."""
    unit = torch.exp2(8 - bits).view(-1, 1, 1, 1)
    return (x / unit).floor() * unit


def solarize(x: Whole, threshold: Tensor, fill: Fill) -> Whole:
    """Negative of all values at the threshold and above."""
    return torch.where(x < threshold.view(-1, 1, 1, 1), x, 255 - x)


def _blend(plain: Tensor, x: Whole, m: Tensor) -> Whole:
    """plain + (1 + m)(x − plain), cut to whole numbers as the imaging library does."""
    factor = (1 + m.double()).float().view(-1, 1, 1, 1)
    return (plain + factor * (x - plain)).clamp(0, 255).floor()


def _luma(x: Whole) -> Tensor:
    red, green, blue = x.double().unbind(1)
    grey = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) / 65536
    return grey.floor()[:, None].to(x.dtype)


def brightness(x: Whole, m: Tensor, fill: Fill) -> Whole:
    """Away from or towards black."""
    return _blend(torch.zeros_like(x), x, m)


def color(x: Whole, m: Tensor, fill: Fill) -> Whole:
    """Away from or towards grey."""
    return _blend(_luma(x), x, m)


def contrast(x: Whole, m: Tensor, fill: Fill) -> Whole:
    """Away from or towards the mean grey level."""
    mean = (_luma(x).double().mean((1, 2, 3), keepdim=True) + 0.5).floor()
    return _blend(mean.to(x.dtype), x, m)


def sharpness(x: Whole, m: Tensor, fill: Fill) -> Whole:
    """Away from or towards a smoothed copy whose border stays as it is."""
    c = x.shape[1]
    kernel = torch.ones(c, 1, 3, 3, dtype=x.dtype, device=x.device)
    kernel[:, :, 1, 1].fill_(5.0)
    with torch.autocast(x.device.type, enabled=False):
        inner = torch.nn.functional.conv2d(x, kernel, groups=c)  # sums of whole numbers: exact
    smooth = x.clone()
    smooth[:, :, 1:-1, 1:-1] = (inner / 13 + 0.5).floor()
    return _blend(smooth, x, m)


def autocontrast(x: Whole, m: Tensor, fill: Fill) -> Whole:
    """Stretch each channel to 0 … 255."""
    flat = x.double().flatten(2)
    low, high = flat.amin(2)[:, :, None, None], flat.amax(2)[:, :, None, None]
    scale = torch.full_like(low, 255) / (high - low).clamp_min(1)  # a scalar / would round twice
    # the same order of rounding as a look-up table: value · scale + offset
    stretched = (x.double() * scale + (-low * scale)).clamp(0, 255).floor()
    return torch.where(high > low, stretched, x.double()).to(x.dtype)


def equalize(x: Whole, m: Tensor, fill: Fill) -> Whole:
    """Spread the values of each channel evenly."""
    b, c, h, w = x.shape
    index = x.long().reshape(b * c, h * w)
    counts = torch.zeros(b * c, 256, dtype=torch.long, device=x.device)
    counts.scatter_add_(1, index, torch.ones_like(index))
    last = counts.gather(1, index.amax(1, keepdim=True))  # pixels of the highest value met
    step = torch.div(h * w - last, 255, rounding_mode="floor")
    before = counts.cumsum(1) - counts
    safe = step.clamp_min(1)
    half = torch.div(safe, 2, rounding_mode="floor")
    table = torch.div(before + half, safe, rounding_mode="floor").clamp_max(255)
    spread = table.gather(1, index).view(b, c, h, w).to(x.dtype)
    return torch.where((step > 0).view(b, c, 1, 1), spread, x)


OPERATIONS: dict[str, Callable[[Whole, Tensor, Fill], Whole]] = {
    "invert": invert,
    "rotate": rotate,
    "translate_x": translate_x,
    "translate_y": translate_y,
    "shear_y": shear_y,
    "posterize": posterize,
    "solarize": solarize,
    "brightness": brightness,
    "color": color,
    "contrast": contrast,
    "sharpness": sharpness,
    "autocontrast": autocontrast,
    "equalize": equalize,
}


@functools.cache
def _tables(device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Operation, probability, magnitude and whether it is signed, per sub-policy and stage."""
    names = list(OPERATIONS)
    pairs = [stage for policy in CIFAR10_POLICY for stage in policy]
    shape = (len(CIFAR10_POLICY), 2)
    index = torch.tensor([names.index(name) for name, _, _ in pairs]).view(shape)
    chance = torch.tensor([chance for _, chance, _ in pairs]).view(shape)
    size = torch.tensor([magnitude(n, level) for n, _, level in pairs], dtype=torch.float64)
    signed = torch.tensor([name in _SIGNED for name, _, _ in pairs]).view(shape)
    return index.to(device), chance.to(device), size.view(shape).to(device), signed.to(device)


def autoaugment(x: Whole, draws: Draws, first: int, fill: Fill) -> Whole:
    """One of 25 sub-policies per image, two operations each.

    Uses five draws from number `first` on: the sub-policy, then chance and sign per stage.
    """
    index, chance, size, signed = _tables(x.device)
    policy = draws.below(first, len(CIFAR10_POLICY))
    for stage in range(2):
        acts = draws.uniform[first + 1 + 2 * stage] < chance[policy, stage]
        minus = signed[policy, stage] & (draws.uniform[first + 2 + 2 * stage] < 0.5)
        m = torch.where(minus, -size[policy, stage], size[policy, stage])
        x = _each(x, m, torch.where(acts, index[policy, stage], -1), stage, fill)
    return x


def _each(x: Whole, m: Tensor, chosen: Tensor, stage: int, fill: Fill) -> Whole:
    """Each image under the operation chosen for it; −1 leaves it alone."""
    done = x.clone()
    for number, (name, operation) in enumerate(OPERATIONS.items()):
        if not any(pair[stage][0] == name for pair in CIFAR10_POLICY):
            continue
        mine = chosen == number
        if _by_rows(x):
            rows = mine.nonzero()[:, 0]
            if len(rows):
                done[rows] = operation(x[rows], m[rows], fill).to(x.dtype)
        else:
            safe = torch.where(mine, m, 4.0 if name == "posterize" else 0.0)
            done = torch.where(mine.view(-1, 1, 1, 1), operation(x, safe, fill).to(x.dtype), done)
    return done


def _by_rows(x: Tensor) -> bool:
    """Whether rows may be picked out: on a GPU, learning how many there are would mean waiting."""
    return x.device.type == "cpu"
