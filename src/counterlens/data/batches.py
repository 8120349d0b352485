"""Batches of stored pictures on the training device: random numbers, crop, mirror, hole.

Paper: DeVries and Taylor 2017 (cutout2017) for the hole.
Differs: nothing waits for the device and no Python runs per image; the hole has the mean colour.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

Bytes = UInt8[Tensor, "b c h w"]
Whole = Float[Tensor, "b c h w"]
"""Images as whole numbers 0 … 255 held in float."""

Fill = tuple[float, float, float]


@dataclass(frozen=True)
class Draws:
    """Random numbers for a batch, drawn together so that a batch costs few launches."""

    uniform: Float[Tensor, "n b"]

    @classmethod
    def make(
        cls, count: int, rows: int, like: Tensor, generator: torch.Generator | None
    ) -> "Draws":
        """`count` independent uniform numbers for each row."""
        drawn = torch.rand(count, rows, device=like.device, generator=generator)
        return cls(drawn)

    def below(self, i: int, top: int) -> Tensor:
        """Whole numbers 0 … top − 1 from draw i."""
        return (self.uniform[i] * top).long().clamp_max(top - 1)


def crop(x: Whole, shift_y: Tensor, shift_x: Tensor, pad: int, fill: Fill) -> Whole:
    """Cut the picture's own size out of the padded picture, `shift` in 0 … 2·pad."""
    h, w = x.shape[2:]
    rows = torch.arange(h, device=x.device)[None, :] + (shift_y - pad)[:, None]
    cols = torch.arange(w, device=x.device)[None, :] + (shift_x - pad)[:, None]
    return take(x, rows[:, :, None].expand(-1, h, w), cols[:, None, :].expand(-1, h, w), fill)


def flip(x: Whole, mirrored: Tensor) -> Whole:
    """Mirror the rows that are drawn left to right."""
    return torch.where(mirrored.view(-1, 1, 1, 1), x.flip(3), x)


def cutout(x: Whole, center_y: Tensor, center_x: Tensor, size: int, fill: Fill) -> Whole:
    """One square hole of the fill colour, clipped at the borders.

    Equation: cutout2017 §3.2   hole = [c − size/2, c + size/2) ∩ image
    """
    h, w = x.shape[2:]
    rows, cols = torch.arange(h, device=x.device), torch.arange(w, device=x.device)
    low_y, low_x = center_y[:, None] - size // 2, center_x[:, None] - size // 2
    tall = (rows >= low_y) & (rows < low_y + size)
    wide = (cols >= low_x) & (cols < low_x + size)
    hole = (tall[:, :, None] & wide[:, None, :])[:, None]
    return torch.where(hole, colour(fill, x), x)


def colour(fill: Fill, x: Tensor) -> Tensor:
    """A colour shaped to fill images, built on the device: nothing is copied over."""
    parts = [torch.full((1, 1, 1, 1), value, dtype=x.dtype, device=x.device) for value in fill]
    return torch.cat(parts, 1)[:, : x.shape[1]]


def take(x: Whole, rows: Tensor, cols: Tensor, fill: Fill) -> Whole:
    """Pixels at (rows, cols), each b × h × w; the fill colour outside the picture."""
    b, c, h, w = x.shape
    inside = (rows >= 0) & (rows < h) & (cols >= 0) & (cols < w)
    place = (rows.clamp(0, h - 1) * w + cols.clamp(0, w - 1)).view(b, 1, -1).expand(-1, c, -1)
    taken = x.flatten(2).gather(2, place).view(b, c, *rows.shape[1:])
    return torch.where(inside[:, None], taken, colour(fill, x))
