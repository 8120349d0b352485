"""Slow, literal references for the CGN: plain loops read off the papers, no code of the package."""

import math

import numpy as np
import torch
from torch import Tensor


def composed(mask: Tensor, front: Tensor, behind: Tensor) -> Tensor:
    """x = m f + (1 − m) b, pixel by pixel."""
    out = torch.zeros_like(front)
    b, s, c, h, w = front.shape
    for i in np.ndindex(b, s, c, h, w):
        m = float(mask[i[0], i[1], 0, i[3], i[4]])
        out[i] = m * float(front[i]) + (1 - m) * float(behind[i])
    return out


def tiled_crop(x: Tensor, dy: int, dx: int) -> Tensor:
    """Tile a picture 2 × 2 and cut 32 × 32 out at (dy, dx)."""
    wide = torch.cat([torch.cat([x, x], 2), torch.cat([x, x], 2)], 1)
    return wide[:, dy : dy + 32, dx : dx + 32]


def moved_patches(x: Tensor, order: list[int]) -> Tensor:
    """Patch i of a 4 × 4 grid taken from place order[i]."""
    out = torch.zeros_like(x)
    for i, source in enumerate(order):
        to = (8 * (i // 4), 8 * (i % 4))
        at = (8 * (source // 4), 8 * (source % 4))
        out[:, to[0] : to[0] + 8, to[1] : to[1] + 8] = x[:, at[0] : at[0] + 8, at[1] : at[1] + 8]
    return out


def gram(x: Tensor) -> Tensor:
    """Sums of products of features over places, over C H W."""
    b, c, h, w = x.shape
    out = torch.zeros(b, c, c, dtype=x.dtype)
    for n, i, j in np.ndindex(b, c, c):
        total = 0.0
        for y, z in np.ndindex(h, w):
            total += float(x[n, i, y, z]) * float(x[n, j, y, z])
        out[n, i, j] = total / (c * h * w)
    return out


def entropy(mask: Tensor) -> float:
    """Mean of −m log₂ m − (1 − m) log₂(1 − m)."""
    values = mask.flatten().tolist()
    return sum(-m * math.log2(m) - (1 - m) * math.log2(1 - m) for m in values) / len(values)


def edge(mask: Tensor) -> float:
    """Mean over all pixels of m within three pixels of the border."""
    total = 0.0
    for n in range(len(mask)):
        for y, x in np.ndindex(32, 32):
            if min(y, x, 31 - y, 31 - x) < 3:
                total += float(mask[n, y, x])
    return total / mask.numel()


def edge_of_code(mask: Tensor) -> float:
    """Border less centre over three channels; floor division makes the far border 7 wide."""
    total = 0.0
    first, last = 32 // 5, -32 // 5  # 6 and −7
    for n in range(len(mask)):
        for y, x in np.ndindex(32, 32):
            centre = first <= y < 32 + last and first <= x < 32 + last
            total += 3 * (-1 if centre else 1) * float(mask[n, y, x])
    return total / (32 * 32 * len(mask))
