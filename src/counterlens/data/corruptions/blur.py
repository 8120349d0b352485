"""Blur: defocus, glass, motion, zoom and Gaussian.

Paper: Hendrycks, Dietterich 2019, arXiv:1903.12261.
Differs: motion blur follows ImageMagick's kernel and offsets without its rounding to integers.
    Glass: the paper says that neighbours are swapped; the authors' code assigns array views, so
    the neighbour is copied onto the pixel and stays where it is. Their data has the copies, and so
    have these images.
"""

import math

import numpy as np
from jaxtyping import Float
from scipy.ndimage import correlate, correlate1d, gaussian_filter, zoom

_Picture = Float[np.ndarray, "h w c"]
Kernel = Float[np.ndarray, "k k"]


def gaussian_blur(x: _Picture, rng: np.random.Generator, sigma: float) -> _Picture:
    """A Gaussian filter over height and width."""
    blurred: _Picture = gaussian_filter(x, (sigma, sigma, 0), mode="nearest")
    return blurred


def disk(radius: float, sigma: float) -> Kernel:
    """A normalised disk whose edge is smoothed by 3 Gaussian taps (5 beyond a radius of 8)."""
    reach = 8 if radius <= 8 else math.ceil(radius)
    line = np.arange(-reach, reach + 1)
    flat = (line[:, None] ** 2 + line**2 <= radius**2).astype(np.float64)
    half = 1 if radius <= 8 else 2
    taps = np.exp(-(np.arange(-half, half + 1) ** 2) / (2 * sigma**2))
    kernel: Kernel = flat / flat.sum()
    for axis in (0, 1):
        kernel = correlate1d(kernel, taps / taps.sum(), axis=axis, mode="mirror")
    return kernel


def defocus_blur(x: _Picture, rng: np.random.Generator, radius: float, sigma: float) -> _Picture:
    """The filter with a disk, as of a lens out of focus."""
    kernel = disk(radius, sigma)
    rows = np.flatnonzero(kernel.sum(1))
    reach = len(kernel) // 2 - rows[0]  # symmetric: drop the zeros around it
    middle = slice(len(kernel) // 2 - reach, len(kernel) // 2 + reach + 1)
    blurred: _Picture = correlate(x, kernel[middle, middle, None], mode="mirror")
    return blurred


def glass_blur(
    x: _Picture, rng: np.random.Generator, sigma: float, delta: float, rounds: float
) -> _Picture:
    """Blurred, each pixel replaced by one near it in raster order from the end, blurred again.

    Args:
        delta: offsets are drawn from −δ to δ − 1.
    """
    height, width = x.shape[:2]
    near = int(delta)
    soft = np.floor(np.clip(gaussian_blur(x, rng, sigma), 0, 1) * 255 + 1e-6) / 255
    places = np.arange(height * width).tolist()  # where the value of each pixel comes from
    for _ in range(int(rounds)):
        ys, xs = range(height - near, near, -1), range(width - near, near, -1)
        moves = rng.integers(-near, near, (len(ys), len(xs), 2))
        steps = (moves[..., 1] * width + moves[..., 0]).tolist()
        for y, line in zip(ys, steps, strict=True):
            for here, step in zip(range(y * width + xs[0], y * width, -1), line, strict=False):
                places[here] = places[here + step]
    copied = soft.reshape(height * width, -1)[places].reshape(x.shape)
    return gaussian_blur(copied, rng, sigma)


def streaks(x: _Picture, radius: float, sigma: float, angle: float) -> _Picture:
    """A one-sided Gaussian filter along a line; edge values go on beyond the edge.

    Args:
        angle: in degrees, clockwise from the right.
    """
    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    turn = math.radians(angle)
    across = np.ceil(steps * math.cos(turn) - 0.5).astype(np.int64)
    down = np.ceil(steps * math.sin(turn) - 0.5).astype(np.int64)
    rows, columns = np.arange(x.shape[0]), np.arange(x.shape[1])
    out = np.zeros(x.shape)
    for weight, dx, dy in zip(weights / weights.sum(), across, down, strict=True):
        ys, xs = np.clip(rows + dy, 0, rows[-1]), np.clip(columns + dx, 0, columns[-1])
        out += weight * x[ys[:, None], xs]
    return out


def motion_blur(x: _Picture, rng: np.random.Generator, radius: float, sigma: float) -> _Picture:
    """Streaks at an angle drawn from −45° to 45°."""
    return streaks(x, radius, sigma, rng.uniform(-45, 45))


def clipped_zoom(x: _Picture, factor: float) -> _Picture:
    """The middle of an image, enlarged to the size of the whole by linear interpolation."""
    spans = [(side, math.ceil(side / factor)) for side in x.shape[:2]]
    crop = x[tuple(slice((side - part) // 2, (side - part) // 2 + part) for side, part in spans)]
    large: _Picture = zoom(crop, (factor, factor, 1), order=1)
    trims = [(now - side) // 2 for now, side in zip(large.shape, x.shape[:2], strict=False)]
    return large[trims[0] : trims[0] + x.shape[0], trims[1] : trims[1] + x.shape[1]]


def zooms(stop: float, step: float) -> list[float]:
    """The factors of a zoom blur; as in the authors' code floating point lets some stops in.

    >>> len(zooms(1.06, 0.01)), len(zooms(1.16, 0.01))
    (7, 16)
    """
    return [float(factor) for factor in np.arange(1, stop, step)]


def zoom_blur(x: _Picture, rng: np.random.Generator, stop: float, step: float) -> _Picture:
    """The mean of the image and its zooms.

    Equation: corruptions2019 zoom blur   (x + Σ_z zoom_z(x)) / (1 + |Z|)
    """
    factors = zooms(stop, step)
    total: _Picture = x + sum(clipped_zoom(x, factor) for factor in factors)
    return total / (len(factors) + 1)
