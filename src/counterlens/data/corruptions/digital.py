"""Digital changes: contrast, elastic, pixelate, JPEG and saturate.

Paper: Hendrycks, Dietterich 2019, arXiv:1903.12261.
Differs: elastic: the affine part is interpolated at exact places (OpenCV: at 1/32 of a pixel).
"""

import numpy as np
from jaxtyping import Float, UInt8
from scipy.ndimage import gaussian_filter, map_coordinates

from counterlens.data.corruptions.colour import from_hsv, to_hsv
from counterlens.images import decode, jpeg_bytes, resize

_Picture = Float[np.ndarray, "h w c"]


def contrast(x: _Picture, rng: np.random.Generator, factor: float) -> _Picture:
    """Nearer to, or further from, the mean of each channel.

    Equation: corruptions2019 contrast   (x − mean)·c + mean
    """
    mean = x.mean((0, 1))
    shrunk: _Picture = (x - mean) * factor + mean
    return shrunk


def affine_sources(
    shape: tuple[int, int], rng: np.random.Generator, amount: float
) -> Float[np.ndarray, "2 h w"]:
    """Where each pixel comes from (x, y) when three points move by up to ± `amount` pixels."""
    height, width = shape
    centre, square = np.array([width // 2, height // 2]), min(shape) // 3
    points = centre + square * np.array([[1, 1], [1, -1], [-1, -1]])
    moved = points + rng.uniform(-amount, amount, points.shape)
    back = np.linalg.solve(np.column_stack([moved, np.ones(3)]), points.astype(np.float64))
    ys, xs = np.mgrid[:height, :width].astype(np.float64)
    return np.stack([back[0, k] * xs + back[1, k] * ys + back[2, k] for k in (0, 1)])


def elastic_transform(
    x: _Picture, rng: np.random.Generator, amount: float, sigma: float, affine: float
) -> _Picture:
    """A random affine map, then a smoothed field of shifts; all lengths in pixels."""
    shape = x.shape[:2]
    xs, ys = affine_sources(shape, rng, affine)
    warped = _sampled(x, ys, xs, "mirror")
    across, down = (
        gaussian_filter(rng.uniform(-1, 1, shape), sigma, mode="reflect", truncate=3) * amount
        for _ in range(2)
    )
    ys, xs = np.mgrid[: shape[0], : shape[1]].astype(np.float64)
    return _sampled(warped, ys + down, xs + across, "reflect")


def pixelate(x: _Picture, rng: np.random.Generator, factor: float) -> _Picture:
    """Made smaller and larger again, both with a box filter."""
    height, width = x.shape[:2]
    small = resize(_levels(x), (max(int(height * factor), 1), max(int(width * factor), 1)), "box")
    return resize(small, (height, width), "box") / 255


def jpeg_compression(x: _Picture, rng: np.random.Generator, quality: float) -> _Picture:
    """Written as JPEG and read again."""
    return decode(jpeg_bytes(_levels(x), quality=int(quality))) / 255


def saturate(x: _Picture, rng: np.random.Generator, factor: float, plus: float) -> _Picture:
    """The saturation of HSV scaled and raised.

    Equation: corruptions2019 saturate   S ← clip(S·c₁ + c₂, 0, 1)
    """
    hsv = to_hsv(x)
    hsv[..., 1] = np.clip(hsv[..., 1] * factor + plus, 0, 1)
    return from_hsv(hsv)


def _levels(x: _Picture) -> UInt8[np.ndarray, "h w c"]:
    return (x * 255).round().astype(np.uint8)


def _sampled(
    x: _Picture, ys: Float[np.ndarray, "h w"], xs: Float[np.ndarray, "h w"], mode: str
) -> _Picture:
    planes = [map_coordinates(x[..., k], [ys, xs], order=1, mode=mode) for k in range(x.shape[-1])]
    return np.stack(planes, -1)
