"""Copies of pictures: re-encoded, resized, recoloured a little, or with up to a fifth cut off.

A picture is known by two hashes and a tiny grey version of itself and of six cut-outs of it. Two
pictures are copies if one, whole, agrees in all three with the other or a cut-out of it. Mirrored
pictures are not looked for.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8, UInt64

from counterlens.images import Pixels
from counterlens.screen.hashes import dhash, near, phash, shrunk

MOST_BITS = 10
"""Of 64 bits of the cosine hash that may differ."""

SLACK = 6  # the gradient hash is coarser and may differ in so many bits more
LEAST_CORRELATION = 0.9  # of the grey versions: pictures merely composed alike stay below it
_SIDE = 8
_CUTS = ((0.1, 0.5, 0.5), (0.2, 0.5, 0.5), (0.1, 0, 0), (0.1, 0, 1), (0.1, 1, 0), (0.1, 1, 1))


@dataclass(frozen=True)
class Signatures:
    """Hashes of a set; the first column is of the whole pictures, the rest of cut-outs."""

    cosine: UInt64[np.ndarray, "n v"]
    gradient: UInt64[np.ndarray, "n v"]
    grey: UInt8[np.ndarray, "n v p"]

    def __len__(self) -> int:
        return len(self.cosine)


@dataclass(frozen=True, slots=True)
class Copy:
    """Picture `other` of one set is picture `own` of another; `bits` of its hash differ."""

    other: int
    own: int
    bits: int


def signatures(pictures: Iterable[Pixels]) -> Signatures:
    """Hash every picture and its cut-outs."""
    codes, greys = [], []
    for picture in pictures:
        cuts = cut_outs(picture)
        codes.append([(phash(cut), dhash(cut)) for cut in cuts])
        greys.append([shrunk(cut, _SIDE, _SIDE).round().astype(np.uint8).ravel() for cut in cuts])
    views = len(_CUTS) + 1
    table = np.array(codes, dtype=np.uint64).reshape(len(codes), views, 2)
    grey = np.array(greys, dtype=np.uint8).reshape(len(greys), views, _SIDE**2)
    return Signatures(table[..., 0], table[..., 1], grey)


def cut_outs(pixels: Pixels) -> list[Pixels]:
    """The picture, its centre without 10 and 20 %, and its corners without 10 %."""
    height, width = pixels.shape[:2]
    cuts = [pixels]
    for share, down, across in _CUTS:
        rows, columns = max(1, round(height * (1 - share))), max(1, round(width * (1 - share)))
        top, left = round((height - rows) * down), round((width - columns) * across)
        cuts.append(pixels[top : top + rows, left : left + columns])
    return cuts


def copies(own: Signatures, other: Signatures, *, most_bits: int = MOST_BITS) -> list[Copy]:
    """For each picture of the other set that is a copy, the nearest of the own ones."""
    views = own.cosine.shape[1]
    best: dict[int, Copy] = {}
    for whole, cut, swapped in ((other, own, False), (own, other, True)):
        pairs = near(whole.cosine[:, 0].copy(), cut.cosine.ravel(), most_bits)
        for i, flat, bits in pairs:
            j, view = divmod(flat, views)
            apart = int(np.bitwise_count(whole.gradient[i, 0] ^ cut.gradient[j, view]))
            alike = _correlation(whole.grey[i, 0], cut.grey[j, view])
            if apart > most_bits + SLACK or alike < LEAST_CORRELATION:
                continue
            copy = Copy(j, i, bits) if swapped else Copy(i, j, bits)
            if copy.other not in best or bits < best[copy.other].bits:
                best[copy.other] = copy
    return [best[i] for i in sorted(best)]


def _correlation(a: UInt8[np.ndarray, "p"], b: UInt8[np.ndarray, "p"]) -> float:
    """Of two grey pictures; two flat ones agree."""
    x, y = a - a.mean(), b - b.mean()
    size = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / size if size > 0 else float(not x.any() and not y.any())
