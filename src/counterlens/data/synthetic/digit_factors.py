"""What the MNIST variants are made of: digits at 32 pixels, colours by class, textures by class.

Paper: Sauer and Geiger 2021 (cgn2021, section 4.1 and its code); the reproducibility study
       (cgnstudy2022); Kim et al. 2019, Learning Not to Learn (lnl2019), for the coloured digits.
Differs: the mean colours of Coloured MNIST were published in pictures only. The ten below are a
       palette from public code that fits their description; with it the difficulty is that of the
       papers. The default textures are drawn by code; pass the photographs with `textures`.
       Digits of all sets are enlarged as Pillow does (pixel centres); the reference code enlarges
       Double-coloured and Wildlife digits as PyTorch does (pixel corners), which differs in 4.5 %
       of their pixels (benchmarks/cgn_baselines.py).
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int64, UInt8

from counterlens.data.open import open_set
from counterlens.data.sources.packed import load_npz
from counterlens.data.specs import split
from counterlens.data.synthetic.textures import pattern
from counterlens.errors import InputError
from counterlens.images import ImageSet, decode, read, resize

SIDE = 32
DIGITS = 10
TEXTURE_SIDE = 150
TEXTURE_PAD = 3
LARGE_SPLIT = 60_000

COLOURED = (
    (220, 20, 60), (0, 128, 128), (253, 233, 16), (0, 149, 182), (237, 145, 33),
    (145, 30, 188), (70, 240, 240), (250, 197, 187), (210, 245, 60), (128, 0, 0),
)  # fmt: skip
"""Mean colour of each digit in Coloured MNIST."""

DOUBLE_BACKGROUND = (
    (0, 100, 0), (0, 0, 139), (176, 48, 96), (255, 69, 0), (255, 255, 0),
    (222, 184, 135), (0, 255, 0), (0, 255, 255), (255, 0, 255), (100, 149, 237),
)  # fmt: skip
"""darkgreen, darkblue, #b03060, orangered, yellow, burlywood, lime, aqua, fuchsia, #6495ed."""

DOUBLE_OBJECT = tuple(DOUBLE_BACKGROUND[(i - 6) % DIGITS] for i in range(DIGITS))

STRIPED = (1, 91, 8, 43, 92, 28, 97, 4, 125, 33)
VEINED = (66, 67, 73, 180, 131, 157, 158, 104, 188, 189)
"""Numbers of the DTD pictures of class 0 … 9: objects are striped, backgrounds veined."""

Grey = UInt8[np.ndarray, "n 32 32"]
Textures = UInt8[np.ndarray, "10 150 150 3"]


@dataclass(frozen=True)
class Digits:
    """MNIST digits at 32 pixels.

    Args:
        grey: their pixels.
        labels: which digit each is.
        ids: name of each digit in its source.
        fingerprint: of the source.
    """

    grey: Grey
    labels: Int64[np.ndarray, "n"]
    ids: tuple[str, ...]
    fingerprint: str

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, start: int, stop: int) -> "Digits":
        """Digits start … stop − 1."""
        part = slice(start, stop)
        mark = f"{self.fingerprint}[{start}:{stop}]"
        return Digits(self.grey[part], self.labels[part], self.ids[part], mark)


def open_digits(spec: str) -> tuple[Digits, Digits]:
    """Both splits of MNIST, training first.

    Args:
        spec: `known:mnist@ROOT` (idx files or mnist.npz), `sample:mnist`, or two specs joined by
            a comma, training first.
    """
    train, test = _two(spec)
    return _digits(open_set(train), train), _digits(open_set(test), test)


def _two(spec: str) -> tuple[str, str]:
    if "," in spec:
        first, _, second = spec.partition(",")
        return first, second
    _, scheme, rest = split(spec)
    if scheme == "known" and rest.startswith("mnist@"):
        root = rest.removeprefix("mnist@")
        return f"known:mnist/train@{root}", f"known:mnist/test@{root}"
    if spec == "sample:mnist":
        return "sample:mnist-train", "sample:mnist"
    raise InputError(
        f"{spec} names no MNIST with its two splits, expected known:mnist@ROOT, sample:mnist, or "
        "TRAIN,TEST."
    )


def _digits(images: ImageSet, spec: str) -> Digits:
    labels = np.asarray(images.labels)
    if len(images.classes) != DIGITS or not len(images) or labels.min() < 0:
        raise InputError(
            f"{spec} has {len(images)} pictures of {len(images.classes)} classes, expected "
            "labelled MNIST digits of 10 classes."
        )
    first = images.read(0)
    if first.shape[:2] != (28, 28):
        raise InputError(f"{spec} has pictures of {first.shape[:2]} pixels, expected 28 × 28.")
    pixels = np.stack([images.read(i)[..., 0] for i in range(len(images))])
    return Digits(enlarged(pixels), labels, tuple(images.ids), images.fingerprint)


def enlarged(pixels: UInt8[np.ndarray, "n 28 28"]) -> Grey:
    """28 to 32 pixels, each taking its nearest neighbour's value.

    >>> enlarged(np.arange(784, dtype=np.uint8).reshape(1, 28, 28))[0, 0, :6]
    array([0, 1, 2, 3, 3, 4], dtype=uint8)
    """
    places = ((np.arange(SIDE) + 0.5) * 28 / SIDE).astype(int)
    return pixels[:, places][:, :, places]


def open_textures(spec: str | None) -> tuple[Textures, Textures, str]:
    """Object textures, background textures, and a mark of where they come from.

    Args:
        spec: None for textures drawn by code; `pack:FILE.npz` with arrays `role` and `labels`;
            or the folder of DTD, which holds images/striped and images/veined.
    """
    if spec is None:
        drawn = tuple(
            np.stack([_drawn(role, digit) for digit in range(DIGITS)]) for role in range(2)
        )
        return drawn[0], drawn[1], "drawn-1"
    if spec.startswith("pack:"):
        textures = _packed(Path(spec.removeprefix("pack:")))
    else:
        textures = _photographed(Path(spec))
    digest = hashlib.sha256(textures[0].tobytes() + textures[1].tobytes()).hexdigest()[:16]
    return *textures, digest


def _packed(path: Path) -> tuple[Textures, Textures]:
    if not path.is_file():
        raise InputError(f"packed textures {path} do not exist, expected FILE.npz.")
    arrays = load_npz(path, leave=())
    if not {"encoded", "offsets", "labels", "role"} <= set(arrays):
        raise InputError(
            f"{path} holds no textures: expected arrays encoded, offsets, labels and role "
            "(object or background)."
        )
    parts = []
    for role in ("object", "background"):
        chosen = []
        for digit in range(DIGITS):
            rows = np.flatnonzero((arrays["role"] == role) & (arrays["labels"] == digit))
            if len(rows) != 1:
                raise InputError(f"{path} has {len(rows)} {role} textures of {digit}, expected 1.")
            start, stop = arrays["offsets"][rows[0] : rows[0] + 2]
            data = arrays["encoded"][start:stop].tobytes()
            chosen.append(_fitted(decode(data, name=f"{path}, {role} {digit}")))
        parts.append(np.stack(chosen))
    return parts[0], parts[1]


def _photographed(root: Path) -> tuple[Textures, Textures]:
    parts = []
    for kind, numbers in (("striped", STRIPED), ("veined", VEINED)):
        files = [root / "images" / kind / f"{kind}_{number:04d}.jpg" for number in numbers]
        absent = [file for file in files if not file.is_file()]
        if absent:
            raise InputError(
                f"textures: {absent[0]} does not exist, expected the folder of DTD (with "
                "images/striped and images/veined) or pack:FILE.npz."
            )
        parts.append(np.stack([_fitted(read(file)) for file in files]))
    return parts[0], parts[1]


def _fitted(pixels: np.ndarray) -> UInt8[np.ndarray, "150 150 3"]:
    return resize(pixels, (TEXTURE_SIDE, TEXTURE_SIDE), "nearest")


def _drawn(role: int, digit: int) -> UInt8[np.ndarray, "150 150 3"]:
    """Texture of one class, the same on every machine: stripes for objects, veins behind them."""
    rng = np.random.default_rng([29, role, digit])
    kinds = ("stripes", "waves") if role == 0 else ("marble", "cells")
    field = pattern(kinds[digit % 2], (TEXTURE_SIDE, TEXTURE_SIDE), rng)[..., None]
    if role == 0:  # five times as many stripes: a crop of 32 must show several
        zoomed = pattern(kinds[digit % 2], (TEXTURE_SIDE // 3, TEXTURE_SIDE // 3), rng)
        field = np.tile(zoomed, (3, 3))[..., None]
    turn = (digit + 0.5 * role) / DIGITS
    hue = 0.5 + 0.5 * np.cos(2 * np.pi * (turn + np.array([0.0, 1 / 3, 2 / 3])))
    dark, light = (0.15 * hue, 0.35 + 0.65 * hue) if role == 0 else (0.3 * hue + 0.1, 0.8 * hue)
    grain = rng.normal(0, 0.03, (TEXTURE_SIDE, TEXTURE_SIDE, 3))
    mixed: np.ndarray = ((dark + (light - dark) * field + grain) * 255).round().clip(0, 255)
    return mixed.astype(np.uint8)


def padded(textures: Textures) -> Float32[np.ndarray, "10 3 156 156"]:
    """Textures in [0, 1], reflected at their borders."""
    pad = ((0, 0), (TEXTURE_PAD, TEXTURE_PAD), (TEXTURE_PAD, TEXTURE_PAD), (0, 0))
    wide = np.pad(textures, pad, mode="reflect").transpose(0, 3, 1, 2)
    return np.ascontiguousarray(wide, dtype=np.float32) / 255
