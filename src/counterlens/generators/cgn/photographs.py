"""Shape, texture and background of photographs, taken apart without a generator.

Paper: Sauer and Geiger 2021 (cgn2021, §3.2 and its ImageNet code) for the grid of patches; Xiao et
       al. 2021 (xiao2021, §2) for the background tiled over the object's box.
Differs: windows of equal mask are ordered at random, since with a true mask thousands of windows
       lie wholly inside the object and the first hundred would be neighbours. The strip beside the
       box is at least a twelfth of the side, else the photograph has no background to give.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from counterlens.types import Images, Scores

Masks = Float[Tensor, "b 1 h w"]
WORK = 128
"""Side at which windows are cut, whatever the photograph's."""
WINDOW, BEST, GRID = 15, 100, 6
STRIP = 12
COLOURS = 4


def patch_grid(x: Images, mask: Masks, generator: torch.Generator) -> Images:
    """A texture that holds no shape: windows of the object, drawn at random, side by side.

    Equation: cgn2021 §3.2   6 × 6 of the 15 × 15 windows at 128 px, from the 100 of highest mean m

    No gradient goes through it.

    Args:
        x: photographs.
        mask: where the object is, in [0, 1].
        generator: draws the windows, on the CPU, so that they are the same on every device.
    """
    with torch.no_grad():
        work = (WORK, WORK)
        small, inside = (
            functional.interpolate(one, work, mode="bicubic", align_corners=False)
            for one in (x, mask)
        )
        corners = best_windows(inside, generator)
        drawn = torch.randint(BEST, (len(x), GRID * GRID), generator=generator).to(x.device)
        windows = _windows(small, corners.to(x.device).gather(1, drawn))
        side = GRID * WINDOW
        rows = windows.view(len(x), GRID, GRID, -1, WINDOW, WINDOW).permute(0, 3, 1, 4, 2, 5)
        grid = rows.reshape(len(x), x.shape[1], side, side)
        whole = functional.interpolate(grid, x.shape[2:], mode="bicubic", align_corners=False)
        return whole.clamp(0, 1)


def best_windows(mask: Masks, generator: torch.Generator) -> Int[Tensor, "b 100"]:
    """Corners, counted row by row, of the windows with the highest mean mask; ties at random."""
    mean = functional.avg_pool2d(mask, WINDOW, 1).flatten(1).cpu().double()
    order = torch.rand(mean.shape, generator=generator, dtype=torch.float64)
    return (mean + 1e-7 * order).topk(BEST).indices


def inner_share(mask: Masks) -> Scores:
    """Mean mask of the hundred best windows: below 1 the texture holds some of the background."""
    inside = functional.interpolate(mask, (WORK, WORK), mode="bicubic", align_corners=False)
    means = functional.avg_pool2d(inside.clamp(0, 1), WINDOW, 1).flatten(1)
    return means.topk(BEST).values.mean(1)


def _windows(x: Images, corners: Int[Tensor, "b n"]) -> Float[Tensor, "b n c s s"]:
    columns = x.shape[3] - WINDOW + 1
    along = torch.arange(WINDOW, device=x.device)
    rows = (corners // columns)[..., None] + along
    places = (
        rows[..., :, None] * x.shape[3] + ((corners % columns)[..., None] + along)[..., None, :]
    )
    flat = places.flatten(1)[:, None].expand(-1, x.shape[1], -1)
    out = x.flatten(2).gather(2, flat)
    cut = out.view(*x.shape[:2], corners.shape[1], WINDOW, WINDOW)
    return cut.transpose(1, 2).contiguous()


def tiled_background(
    x: Float[Tensor, "c h w"], mask: Float[Tensor, "1 h w"]
) -> Float[Tensor, "c h w"] | None:
    """The photograph with the box around its object tiled by the largest strip beside the box.

    Equation: xiao2021 §2   Only-BG-T: the object's box replaced by tiled background

    None where the object's box leaves no strip of a twelfth of the side.
    """
    height, width = x.shape[1:]
    rows, columns = (mask[0] > 0.5).nonzero().unbind(1)
    if not len(rows):
        return x
    top, bottom = int(rows.min()), int(rows.max()) + 1
    left, right = int(columns.min()), int(columns.max()) + 1
    strips = (x[:, :top], x[:, bottom:], x[:, :, :left], x[:, :, right:])
    largest = max(strips, key=lambda one: one.shape[1] * one.shape[2])
    if min(largest.shape[1:]) * STRIP < min(height, width):
        return None
    tiles = (1, -(-height // largest.shape[1]), -(-width // largest.shape[2]))
    out = x.clone()
    out[:, top:bottom, left:right] = largest.repeat(tiles)[:, : bottom - top, : right - left]
    return out


@dataclass(frozen=True)
class MaskQuality:
    """What a mask is worth, per photograph.

    Args:
        area: mean of the mask.
        entropy: bits of doubt per pixel: 0 for black and white.
        inner: mean mask of the windows that the texture is drawn from.
    """

    area: Scores
    entropy: Scores
    inner: Scores


def mask_quality(mask: Masks) -> MaskQuality:
    """Area, entropy and inner share of masks in [0, 1]."""
    sure = mask.clamp(1e-6, 1 - 1e-6)
    doubt = -(sure * sure.log2() + (1 - sure) * (1 - sure).log2())
    return MaskQuality(mask.mean((1, 2, 3)), doubt.mean((1, 2, 3)), inner_share(mask))


def colour_overlap(front: Images, behind: Images, inside: Bool[Tensor, "b 1 h w"]) -> Scores:
    """Share of colours that object and background have in common; 1 means equal colours.

    The intersection of two histograms of 4 × 4 × 4 colours: of the object's pixels and of those
    around it.
    """
    return torch.stack(
        [
            torch.minimum(_colours(f, m), _colours(b, ~m)).sum()
            for f, b, m in zip(front, behind, inside[:, 0], strict=True)
        ]
    )


def _colours(x: Float[Tensor, "c h w"], where: Bool[Tensor, "h w"]) -> Float[Tensor, "k"]:
    levels = (x[:, where] * COLOURS).long().clamp(0, COLOURS - 1)
    place = (levels[0] * COLOURS + levels[1]) * COLOURS + levels[2]
    counts = place.bincount(minlength=COLOURS**3).float()
    return counts / counts.sum().clamp_min(1)
