"""Coloured, Double-coloured and Wildlife MNIST: digits whose colour or texture gives them away.

In training, colours and textures are those of the digit's class; in the test set they are drawn
independently of it. Each picture is stored as its factors (digit, object class, background class,
noise, place of the texture) and rendered from them, so that one factor can be changed alone and
the digit's mask always belongs to its picture.

Paper: Sauer and Geiger 2021 (cgn2021, section 4.1 and its code); cgnstudy2022; lnl2019.
Differs: all draws come from one seed (the code's depended on loader workers). Colour noise is
       drawn anew for each image; the code adds it to the palette in place, so that a worker's
       colours drift. How digits are enlarged: see `digit_factors`. `pixels` rounds to
       8 bits, as any stored picture is; `render` does not. Where fewer than 60,000 training
       digits are at hand, Double-coloured and Wildlife keep the share 5 : 1.
"""

from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int, Int64, UInt8
from torch import Tensor

from counterlens.data.sets import fingerprint
from counterlens.data.synthetic import digit_factors
from counterlens.data.synthetic.digit_factors import DIGITS, LARGE_SPLIT, SIDE, Digits
from counterlens.errors import InputError

Which = Literal["coloured", "double-coloured", "wildlife"]
WHICH: tuple[Which, ...] = ("coloured", "double-coloured", "wildlife")
COLOUR_VARIANCE = 0.02
DOUBLE_DEVIATION = 0.01
OBJECT_ABOVE = 0.1
MASK_ABOVE = 0.5
PARTS = ("train", "test")


@dataclass(frozen=True)
class DigitVariant:
    """One split of a variant, as factors.

    Args:
        which: the variant.
        part: train or test.
        digits: the shapes with their labels.
        object: class whose colour or texture the digit has.
        background: class of what is behind it; −1 where that is black.
        object_noise, background_noise: added to the colours.
        object_place, background_place: corner of the crop from the texture.
        object_table, background_table: ten colours, or ten textures, in [0, 1].
    """

    which: Which
    part: str
    digits: Digits
    object: Int64[np.ndarray, "n"]
    background: Int64[np.ndarray, "n"]
    object_noise: Float32[np.ndarray, "n 3"]
    background_noise: Float32[np.ndarray, "n 3"]
    object_place: Int64[np.ndarray, "n 2"]
    background_place: Int64[np.ndarray, "n 2"]
    object_table: Float32[np.ndarray, "10 ..."]
    background_table: Float32[np.ndarray, "10 ..."]
    fingerprint: str

    def __len__(self) -> int:
        return len(self.digits)

    @property
    def labels(self) -> Int[Tensor, "n"]:
        """The digit shown."""
        return torch.from_numpy(self.digits.labels.copy())

    @property
    def masks(self) -> Bool[Tensor, "n 32 32"]:
        """Where each digit is, for the overlap with saliency maps."""
        return torch.from_numpy(self.digits.grey / 255 > MASK_ABOVE)

    @property
    def factors(self) -> tuple[str, ...]:
        """What can be changed without changing the digit."""
        return ("object",) if self.which == "coloured" else ("object", "background")

    def render(
        self,
        rows: Int64[np.ndarray, "m"] | None = None,
        *,
        object: Int64[np.ndarray, "m"] | None = None,
        background: Int64[np.ndarray, "m"] | None = None,
    ) -> Float[Tensor, "m 3 32 32"]:
        """Pictures in [0, 1]; Double-coloured ones leave it by their noise, as in the code.

        Args:
            rows: which; None for all.
            object, background: other classes of a factor for these rows, all else unchanged.
        """
        rows = np.arange(len(self)) if rows is None else rows
        front = self.object[rows] if object is None else object
        grey = torch.from_numpy(self.digits.grey[rows])[:, None].float() / 255
        object_fill = self._fill(
            self.object_table, front, self.object_noise[rows], self.object_place[rows]
        )
        if self.which == "coloured":
            return grey * object_fill.clamp(0, 1)
        behind = self.background[rows] if background is None else background
        noise, place = self.background_noise[rows], self.background_place[rows]
        other = self._fill(self.background_table, behind, noise, place)
        return torch.where(grey > OBJECT_ABOVE, object_fill, other)

    def _fill(
        self,
        table: Float32[np.ndarray, "10 ..."],
        classes: Int64[np.ndarray, "m"],
        noise: Float32[np.ndarray, "m 3"],
        place: Int64[np.ndarray, "m 2"],
    ) -> Float[Tensor, "m 3 _ _"]:
        """A colour or a crop of a texture for each row."""
        if table.ndim == 2:
            return torch.from_numpy(table[classes] + noise)[:, :, None, None]
        y = place[:, 0, None] + np.arange(SIDE)
        x = place[:, 1, None] + np.arange(SIDE)
        crops = table[classes[:, None, None], :, y[:, :, None], x[:, None, :]]
        return torch.from_numpy(np.ascontiguousarray(crops.transpose(0, 3, 1, 2)))

    def pixels(self, rows: Int64[np.ndarray, "m"] | None = None) -> UInt8[Tensor, "m 3 32 32"]:
        """Pictures rounded to 8 bits."""
        wanted = np.arange(len(self)) if rows is None else rows
        parts = [
            (self.render(wanted[start : start + 5000]).clamp(0, 1) * 255).round().to(torch.uint8)
            for start in range(0, len(wanted), 5000)
        ]
        return torch.cat(parts)


def variant(
    which: str,
    part: str,
    digits: tuple[Digits, Digits],
    *,
    textures: str | None = None,
    seed: int = 0,
) -> DigitVariant:
    """One split of one variant.

    Args:
        which: coloured, double-coloured or wildlife.
        part: train or test.
        digits: both splits of MNIST, `digit_factors.open_digits`.
        textures: where Wildlife's textures come from, `digit_factors.open_textures`.
        seed: of everything drawn.
    """
    if which not in WHICH or part not in PARTS:
        raise InputError(
            f"no set {which}/{part}, expected one of {', '.join(WHICH)} and train or test."
        )
    chosen = split_digits(which, part, digits)
    n = len(chosen)
    rng = np.random.default_rng([seed, WHICH.index(which), PARTS.index(part)])
    free = part == "test"
    front = rng.integers(0, DIGITS, n) if free else chosen.labels
    behind = rng.integers(0, DIGITS, n) if free else chosen.labels
    spread = COLOUR_VARIANCE**0.5 if which == "coloured" else DOUBLE_DEVIATION
    noise = rng.normal(0, spread, (2, n, 3)).astype(np.float32)
    last = digit_factors.TEXTURE_SIDE + 2 * digit_factors.TEXTURE_PAD - SIDE
    place = rng.integers(0, last + 1, (2, n, 2))
    tables, mark = _tables(which, textures)
    return DigitVariant(
        which,
        part,
        chosen,
        np.asarray(front, np.int64),
        np.full(n, -1) if which == "coloured" else np.asarray(behind, np.int64),
        noise[0],
        noise[1],
        place[0],
        place[1],
        tables[0],
        tables[1],
        fingerprint([which, part, chosen.fingerprint, mark, str(seed)]),
    )


def split_digits(which: Which, part: str, digits: tuple[Digits, Digits]) -> Digits:
    """The digits of a split.

    Coloured MNIST keeps MNIST's own splits. The other two are cut from the training digits: the
    first 50,000 for training, the last 10,000 for the test.
    """
    train, test = digits
    if which == "coloured":
        return train if part == "train" else test
    cut = 50_000 if len(train) == LARGE_SPLIT else len(train) * 5 // 6
    return train.rows(0, cut) if part == "train" else train.rows(cut, len(train))


def _tables(
    which: str, textures: str | None
) -> tuple[tuple[Float32[np.ndarray, "10 ..."], Float32[np.ndarray, "10 ..."]], str]:
    if which == "wildlife":
        front, behind, mark = digit_factors.open_textures(textures)
        return (digit_factors.padded(front), digit_factors.padded(behind)), mark
    if which == "coloured":
        return (_colours(digit_factors.COLOURED), np.zeros((DIGITS, 3), np.float32)), "palette-1"
    return (
        _colours(digit_factors.DOUBLE_OBJECT),
        _colours(digit_factors.DOUBLE_BACKGROUND),
    ), "palette-1"


def _colours(palette: tuple[tuple[int, int, int], ...]) -> Float32[np.ndarray, "10 3"]:
    return np.asarray(palette, np.float32) / 255


def independence(split: DigitVariant) -> list[dict[str, float | str]]:
    """χ² test of every pair of factors: a small p says that one tells about the other.

    Equation: pearson1900 §5   χ² = Σ (observed − expected)² / expected
    """
    from scipy.stats import chi2_contingency

    columns = {"label": split.digits.labels}
    columns |= {name: getattr(split, name) for name in split.factors}
    rows: list[dict[str, float | str]] = []
    for one, two in combinations(columns, 2):
        table = np.zeros((DIGITS, DIGITS), np.int64)
        np.add.at(table, (columns[one], columns[two]), 1)
        table = table[table.sum(1) > 0][:, table.sum(0) > 0]
        test = chi2_contingency(table, correction=False)
        rows.append(
            {"factors": f"{one} × {two}", "chi2": float(test.statistic), "p": float(test.pvalue)}
        )
    return rows
