# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# ruff: noqa: N803
"""Triton kernels of `fusing`; importing this module needs Triton.

Pictures are stored channels last, so the channel of an element is its place modulo the number of
channels. Sums are made in float32 whatever the storage.
"""

import triton
import triton.language as tl


@triton.jit
def summed(x, bias, other, at, inside, channels, ADDS: tl.constexpr):
    """x + bias + other, in float32."""
    total = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(bias + at % channels, mask=inside, other=0.0)
    if ADDS:
        total += tl.load(other + at, mask=inside, other=0.0).to(tl.float32)
    return total


@triton.jit
def forward(
    x,
    bias,
    other,
    out,
    count,
    channels,
    ADDS: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out = act(x + bias + other)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    total = summed(x, bias, other, at, inside, channels, ADDS)
    value = total / (1 + tl.exp(-total)) if SILU else tl.maximum(total, 0.0)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def backward(
    grad,
    x,
    bias,
    other,
    out,
    count,
    channels,
    ADDS: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out = grad · act'(x + bias + other)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    total = summed(x, bias, other, at, inside, channels, ADDS)
    if SILU:
        share = 1 / (1 + tl.exp(-total))
        slope = share * (1 + total * (1 - share))
    else:
        slope = tl.where(total > 0, 1.0, 0.0)
    value = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32) * slope
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)
