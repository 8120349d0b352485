"""Perceptual hashes: 64 bits of a picture that survive resizing and JPEG, and their comparison.

Paper: Zauner 2010, Implementation and Benchmarking of Perceptual Image Hash Functions (pHash);
    Norouzi, Punjani, Fleet 2012, Fast Search in Hamming Space with Multi-Index Hashing.
Differs: the 64 lowest frequencies without the mean are hashed, so no bit merely says "bright".
    Pictures shrink by exact area means; a mirrored picture has another hash.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float64, Int64, UInt64
from scipy.fft import dct

from counterlens.errors import InputError
from counterlens.images import Pixels

BITS = 64
_SIDE = 32
_FLAT = 1e-6
_CHUNKS, _WIDTH = 4, 16
_CELLS = 1 << 24  # pairs compared at once
_LEAST_SEARCHED = 1 << 26  # below so many pairs, comparing all is as fast
_MOST_SEARCHED = 15  # allowed bits above which buckets no longer save work

Plane = Float64[np.ndarray, "_ _"]
Hashes = UInt64[np.ndarray, "_"]
_Rows = Int64[np.ndarray, "_"]
_Pair = tuple[int, int, int]


def _lowest(side: int, count: int) -> tuple[_Rows, _Rows]:
    """Row and column of the `count` lowest frequencies after the mean, by u + v, then u."""
    grid = sorted(itertools.product(range(side), repeat=2), key=lambda uv: (sum(uv), uv[0]))
    u, v = np.array(grid[1 : count + 1], dtype=np.int64).T
    return u, v


_U, _V = _lowest(_SIDE, BITS)
_WAVES = dct(np.eye(_SIDE), axis=0, norm="ortho")[: max(_U.max(), _V.max()) + 1]
_POWERS = np.uint64(1) << np.arange(BITS, dtype=np.uint64)


def phash(pixels: Pixels) -> int:
    """64 bits: which of the 64 lowest cosine frequencies lie above their median.

    >>> phash(np.full((40, 30, 3), 77, np.uint8))
    0
    """
    block = (_WAVES @ shrunk(pixels, _SIDE, _SIDE) @ _WAVES.T)[_U, _V]
    if np.abs(block).max() < _FLAT:  # a flat picture has no frequencies, only rounding
        return 0
    return _pack(block > np.median(block))


def dhash(pixels: Pixels) -> int:
    """64 bits: where, on a grid of 8 × 9 means, brightness rises from left to right.

    >>> dhash(np.arange(0, 90, 10, dtype=np.uint8)[None, :, None].repeat(8, 0)) == 2**64 - 1
    True
    """
    grid = shrunk(pixels, 8, 9)
    return _pack((np.diff(grid, axis=1) > _FLAT).ravel())


def near(
    hashes_a: Sequence[int] | Hashes, hashes_b: Sequence[int] | Hashes, most_bits: int
) -> list[_Pair]:
    """All pairs (i, j, bits) of a hash of a and a hash of b that differ in ≤ `most_bits` bits.

    Two words that differ in at most k bits agree, up to k // 4 bits, in one of their four
    quarters; only such pairs are compared. Sorted by i, then j.

    >>> near([0b1011], [0b1000, 0b1010], 1)
    [(0, 1, 1)]
    """
    if not 0 <= most_bits <= BITS:
        raise InputError(f"most_bits is {most_bits}, expected 0 … {BITS} bits that may differ.")
    a, b = _codes(hashes_a, "hashes_a"), _codes(hashes_b, "hashes_b")
    if not len(a) or not len(b):
        return []
    every = len(a) * len(b) < _LEAST_SEARCHED or most_bits > _MOST_SEARCHED
    parts = _all_pairs(a, b) if every else _candidates(a, b, most_bits // _CHUNKS)
    close_pairs: list[tuple[_Rows, _Rows]] = []
    for i, j in parts:
        close = np.bitwise_count(a[i] ^ b[j]) <= most_bits
        close_pairs.append((i[close], j[close]))
    rows = np.concatenate([i for i, _ in close_pairs])
    columns = np.concatenate([j for _, j in close_pairs])
    flat = np.unique(rows * len(b) + columns)  # a pair may agree in several quarters
    i, j = np.divmod(flat, len(b))
    bits = np.bitwise_count(a[i] ^ b[j])
    return list(zip(i.tolist(), j.tolist(), bits.tolist(), strict=True))


def _all_pairs(a: Hashes, b: Hashes) -> Iterator[tuple[_Rows, _Rows]]:
    step = max(1, _CELLS // len(b))
    columns = np.arange(len(b))
    for start in range(0, len(a), step):
        rows = np.arange(start, min(start + step, len(a)))
        yield np.repeat(rows, len(b)), np.tile(columns, len(rows))


def _candidates(a: Hashes, b: Hashes, slack: int) -> Iterator[tuple[_Rows, _Rows]]:
    """Pairs that agree up to `slack` bits in one quarter, in blocks of bounded size."""
    masks = [
        sum(1 << bit for bit in bits)
        for count in range(slack + 1)
        for bits in itertools.combinations(range(_WIDTH), count)
    ]
    for chunk in range(_CHUNKS):
        part_a, part_b = _quarter(a, chunk), _quarter(b, chunk)
        order = np.argsort(part_b, kind="stable")
        starts = np.searchsorted(part_b[order], np.arange((1 << _WIDTH) + 1))
        for mask in masks:
            keys = part_a ^ mask
            yield from _expand(starts[keys], starts[keys + 1], order)


def _expand(first: _Rows, last: _Rows, order: _Rows) -> Iterator[tuple[_Rows, _Rows]]:
    sizes = last - first
    total = np.cumsum(sizes)
    start = 0
    while start < len(sizes):  # cut where the pairs of a block pass the limit
        done = total[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(total, done + _CELLS, side="right")))
        size = sizes[start:stop]
        rows = np.repeat(np.arange(start, stop), size)
        offset = np.arange(len(rows)) - np.repeat(np.cumsum(size) - size, size)
        yield rows, order[np.repeat(first[start:stop], size) + offset]
        start = stop


def _quarter(codes: Hashes, chunk: int) -> _Rows:
    shifted = codes >> np.uint64(_WIDTH * chunk)
    return (shifted & np.uint64((1 << _WIDTH) - 1)).astype(np.int64)


def _codes(hashes: Sequence[int] | Hashes, name: str) -> Hashes:
    try:
        return np.asarray(hashes, dtype=np.uint64).reshape(-1)
    except (OverflowError, ValueError, TypeError):
        raise InputError(f"{name} holds something other than 64-bit hashes ≥ 0.") from None


def _pack(bits: np.ndarray) -> int:
    return int(_POWERS[bits].sum(dtype=np.uint64))


def shrunk(pixels: Pixels, rows: int, columns: int) -> Plane:
    """Luminance as a grid of exact area means; smaller pictures are spread the same way."""
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3):
        raise InputError(
            f"got a picture of {pixels.dtype} and shape {pixels.shape}, expected uint8 "
            "height × width × 3."
        )
    grey = pixels.astype(np.float64)
    grey = grey[..., 0] if pixels.shape[2] == 1 else grey @ np.array([0.299, 0.587, 0.114])
    shrunk: Plane = _areas(grey.shape[0], rows) @ grey @ _areas(grey.shape[1], columns).T
    return shrunk


@functools.lru_cache(maxsize=256)
def _areas(size: int, cells: int) -> Plane:
    """Share of each of `size` pixels in each of `cells` equal stretches; rows sum to one."""
    edges = np.arange(cells + 1) * size / cells
    low, high = np.arange(size), np.arange(1, size + 1)
    overlap = np.minimum(edges[1:, None], high) - np.maximum(edges[:-1, None], low)
    shares: Plane = np.clip(overlap, 0, None) * cells / size
    return shares
