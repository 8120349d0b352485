"""Convolutions of a stack of networks as one batched product of matrices.

A neighbourhood of every pixel is laid out as a column (`around`), or products are added to where
their neighbourhood lies (`gathered`); each is the other's derivative. For a stack this is one
product for all networks, on the units built for products.

Differs: of the two ways to order product and neighbourhood, the one that moves less is taken.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


def conv(
    x: Float[Tensor, "b _ h w"], weight: Float[Tensor, "_ i k k"], stack: int, stride: int, pad: int
) -> Float[Tensor, "b _ _ _"]:
    """Grouped convolution with `stack` groups."""
    b, side = len(x), weight.shape[2]
    inside, outside = weight.shape[1], len(weight) // stack
    planes = x.transpose(0, 1)
    if stride == 1 and outside < inside:  # the product first: its result is smaller
        turned = weight.view(stack, outside, inside, side, side).flip(3, 4).permute(0, 1, 3, 4, 2)
        flat = planes.reshape(stack, inside, -1)
        out = turned.reshape(stack, -1, inside) @ flat
        grid = out.reshape(stack * outside, side, side, b, *x.shape[2:])
        grown = [n + 2 * pad - side + 1 for n in x.shape[2:]]
        return _gathered(grid, grown, 1, side - 1 - pad).transpose(0, 1)
    columns = _around(planes, side, stride, pad)
    shape = columns.shape[3:]
    out = weight.view(stack, outside, -1) @ columns.reshape(stack, inside * side**2, -1)
    return out.reshape(stack * outside, *shape).transpose(0, 1)


def transposed(
    x: Float[Tensor, "b _ h w"], weight: Float[Tensor, "_ o k k"], stack: int, stride: int, pad: int
) -> Float[Tensor, "b _ _ _"]:
    """Grouped transposed convolution."""
    inside, outside, side = len(weight) // stack, weight.shape[1], weight.shape[2]
    flat = x.transpose(0, 1).reshape(stack, inside, -1)
    out = weight.view(stack, inside, -1).transpose(1, 2) @ flat
    grid = out.reshape(stack * outside, side, side, len(x), *x.shape[2:])
    grown = [(n - 1) * stride + side - 2 * pad for n in x.shape[2:]]
    return _gathered(grid, grown, stride, pad).transpose(0, 1)


def of_twice(
    weight: Float[Tensor, "o i 3 3"], taps: Float[Tensor, "9 36"]
) -> Float[Tensor, "o4 i 3 3"]:
    """The filters on a picture that do what 3 × 3 ones do on it at twice the size.

    A pixel of the larger picture has one of four parities; the four filters follow each other, as
    `pixel_shuffle` wants them: conv(twice(x), W) = pixel_shuffle(conv(x, of_twice(W))).
    """
    out = (weight.flatten(2) @ taps).view(*weight.shape[:2], 4, 3, 3)
    return out.transpose(1, 2).reshape(-1, weight.shape[1], 3, 3)


def taps() -> Float[Tensor, "9 36"]:
    """Which taps at twice the size fall on which pixel."""
    one = [[[1.0, 0, 0], [0, 1, 1], [0, 0, 0]], [[0, 0, 0], [1, 1, 0], [0, 0, 1]]]
    rows = torch.tensor(one)  # parity, pixel, tap
    return torch.einsum("pak,qbl->klpqab", rows, rows).reshape(9, 36)


def around(x: Float[Tensor, "c b h w"], side: int, stride: int, pad: int) -> Tensor:
    """c × side × side × b × h′ × w′: what the filter's tap sees at each place, 0 outside."""
    wide = functional.pad(x, (pad, pad, pad, pad))
    seen = wide.unfold(2, side, stride).unfold(3, side, stride)
    return seen.permute(0, 4, 5, 1, 2, 3).contiguous()


def gathered(grid: Tensor, size: list[int], stride: int, pad: int) -> Float[Tensor, "c b h w"]:
    """The adjoint of `around`: every value added where its tap saw, in float32."""
    c, side, _, b, high, long = grid.shape
    kind = torch.promote_types(grid.dtype, torch.float32)
    wide = grid.new_zeros(c, b, size[0] + 2 * pad, size[1] + 2 * pad, dtype=kind)
    for k in range(side):
        rows = slice(k, k + stride * (high - 1) + 1, stride)
        for m in range(side):
            wide[:, :, rows, m : m + stride * (long - 1) + 1 : stride] += grid[:, k, m]
    return wide[:, :, pad : pad + size[0], pad : pad + size[1]].to(grid.dtype)


class _Around(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, side: int, stride: int, pad: int) -> Tensor:
        ctx.given = (list(x.shape[2:]), stride, pad)
        return around(x, side, stride, pad)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return gathered(grads[0], *ctx.given), None, None, None


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grid: Tensor, size: list[int], stride: int, pad: int) -> Tensor:
        ctx.given = (grid.shape[1], stride, pad)
        return gathered(grid, size, stride, pad)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return around(grads[0], *ctx.given), None, None, None


def _around(x: Tensor, side: int, stride: int, pad: int) -> Tensor:
    out: Tensor = _Around.apply(x, side, stride, pad)
    return out


def _gathered(grid: Tensor, size: list[int], stride: int, pad: int) -> Tensor:
    out: Tensor = _Gathered.apply(grid, size, stride, pad)
    return out
