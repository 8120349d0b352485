# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# ruff: noqa: N803
"""Triton kernels of `fusing` and of the square attack; importing this module needs Triton.

Pictures are stored channels last, so the channel of an element is its place modulo the number of
channels. Sums are computed in float32 whatever the storage. Whether something is added is decided
at run time, by how many of its elements are (all or none): a kernel built for each case would
lengthen the first call of a process.
"""

import triton
import triton.language as tl

from counterlens import ball

GOLDEN, MIX_1, MIX_2 = (tl.constexpr(n) for n in (ball._GOLDEN, ball._MIX_1, ball._MIX_2))
SMALLEST = tl.constexpr(2.0**-23)


@triton.jit
def summed(x, bias, other, at, inside, channels, added, BLOCK: tl.constexpr):
    """x + bias, plus the first `added` elements of other, in float32."""
    # `at % channels` without dividing long numbers, which takes as long as the rest
    channel = (tl.program_id(0) % channels * BLOCK + tl.arange(0, BLOCK)) % channels
    total = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(bias + channel, mask=inside, other=0.0)
    total += tl.load(other + at, mask=at < added, other=0.0).to(tl.float32)
    return total


@triton.jit
def forward(
    x,
    bias,
    other,
    out,
    count,
    channels,
    added,
    SILU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out = act(x + bias + other)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    total = summed(x, bias, other, at, inside, channels, added, BLOCK)
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
    added,
    SILU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out = grad · act'(x + bias + other)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    total = summed(x, bias, other, at, inside, channels, added, BLOCK)
    if SILU:
        share = 1 / (1 + tl.exp(-total))
        slope = share * (1 + total * (1 - share))
    else:
        slope = tl.where(total > 0, 1.0, 0.0)
    value = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32) * slope
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def drawn(bits):
    """`ball.unit` of the last steps of `ball.mix`."""
    bits = (bits ^ ((bits >> 30) & 0x3FFFFFFFF)) * MIX_1
    bits = (bits ^ ((bits >> 27) & 0x1FFFFFFFFF)) * MIX_2
    bits = bits ^ ((bits >> 31) & 0x1FFFFFFFF)
    return (((bits >> 41) & 0x7FFFFF).to(tl.float32) + 0.5) * SMALLEST


@triton.jit
def corner(bits, room):
    """A place in a row or column with so much room."""
    return tl.minimum((drawn(bits) * room.to(tl.float32)).to(tl.int64), room - 1)


@triton.jit
def move_mass(
    x, best, out, seeds, steps, halvings, sizes, reach, table, width, pixels, table_side,
    reach_step, LEVELS: tl.constexpr, STRIDE: tl.constexpr, CHANNELS: tl.constexpr, ROWS:
    tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One proposal of the square attack in l2, a whole picture (channels, pixels) per program.

    The same steps as `square._draw` and `square._propose_l2`, which explain them.
    """
    picture = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, ROWS)[:, None]
    pixel = tl.arange(0, BLOCK)[None, :]
    inside = (channel < CHANNELS) & (pixel < pixels)
    at = picture * CHANNELS * pixels + channel * pixels + pixel
    start = tl.load(x + at, mask=inside, other=0.0)
    delta = tl.load(best + at, mask=inside, other=0.0) - start

    step = tl.load(steps + picture)
    entry = tl.arange(0, 16)
    bounds = tl.load(halvings + entry, mask=entry < LEVELS, other=0)
    level = tl.sum(((bounds < step) & (entry < LEVELS)).to(tl.int32), 0)
    side = tl.load(sizes + level)
    high, wide = pixels // width - side + 1, width - side + 1
    seed = tl.load(seeds + picture) + step * STRIDE
    one = seed + GOLDEN  # each next number drawn is one more of these away
    two = one + GOLDEN
    three = two + GOLDEN
    four = three + GOLDEN
    upright = drawn(four + GOLDEN) < 0.5
    kind = 2 * level + upright.to(tl.int32)
    sign = tl.where(drawn(seed + (channel + 6).to(tl.int64) * GOLDEN) > 0.5, 1.0, -1.0)
    sign = tl.where(channel < CHANNELS, sign, 0.0)

    down = pixel // width - corner(one, high)
    right = pixel % width - corner(two, wide)
    mask = (down >= 0) & (down < side) & (right >= 0) & (right < side)
    down_there = pixel // width - corner(three, high)
    right_there = pixel % width - corner(four, wide)
    other = (down_there >= 0) & (down_there < side) & (right_there >= 0) & (right_there < side)
    place = (kind * table_side + down) * table_side + right
    shape = tl.load(table + place, mask=mask & (pixel < pixels), other=0.0)

    old = tl.where(mask, delta, 0.0)
    new = shape * sign + old / (tl.sqrt(tl.sum(old * old, 1))[:, None] + 1e-10)
    radius = tl.load(reach + picture * reach_step)
    spare = tl.maximum(radius * radius - tl.sum(tl.sum(delta * delta, 1), 0), 0.0)
    freed = tl.where(mask | other, delta, 0.0)
    mass = tl.sqrt(spare / CHANNELS + tl.sum(freed * freed, 1))[:, None]
    new = new * (mass / (tl.sqrt(tl.sum(new * new, 1))[:, None] + 1e-10))
    moved = tl.where(mask, new, tl.where(other, 0.0, delta))
    size = tl.sqrt(tl.sum(tl.sum(moved * moved, 1), 0))
    point = start + moved * (radius / tl.maximum(size, 1e-12))
    tl.store(out + at, tl.minimum(tl.maximum(point, 0.0), 1.0), mask=inside)
