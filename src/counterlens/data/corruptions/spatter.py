"""Spatter: drops of water or of mud on the lens.

Paper: Hendrycks, Dietterich 2019, arXiv:1903.12261.
Differs: edges (Canny) and the histogram equalisation are written after OpenCV's; distances to an
    edge are exact, where OpenCV approximates them with a 5 × 5 mask.
"""

import numpy as np
from jaxtyping import Bool, Float
from scipy.ndimage import (
    correlate,
    distance_transform_edt,
    gaussian_filter,
    label,
    sobel,
    uniform_filter,
)

_Picture = Float[np.ndarray, "h w c"]
_Plane = Float[np.ndarray, "h w"]
WATER = np.array([175, 238, 238]) / 255
MUD = np.array([63, 42, 20]) / 255
RELIEF = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
FAR = 20.0


def spatter(x: _Picture, rng: np.random.Generator, *row: float) -> _Picture:
    """Water at severities 1 to 3, mud at 4 and 5; without a drop the image stays as it is.

    Args:
        row: mean and deviation of the noise, its blur, the cut below which there is no liquid, the
            strength of water or the blur of mud, and 1 for mud.
    """
    mean, deviation, blur, cut, k, mud = row
    noise = gaussian_filter(rng.normal(mean, deviation, x.shape[:2]), blur, mode="nearest")
    liquid = np.where(noise < cut, 0, noise)
    if mud:
        cover = gaussian_filter((liquid > cut).astype(np.float64), k, mode="nearest")
        cover = np.where(cover < 0.8, 0, cover)[..., None]
        muddy: _Picture = x * (1 - cover) + cover * MUD
        return muddy
    levels = np.floor(liquid * 255) % 256
    layer = levels * relief(levels)
    wet: _Picture = x + k * (layer / max(layer.max(), 1e-12))[..., None] * WATER
    return wet


def relief(levels: _Plane) -> _Plane:
    """Light and shade at the edges of drops, 0 to 255."""
    edges = canny(levels, 50, 150)
    far = distance_transform_edt(~edges) if edges.any() else np.full(levels.shape, FAR)
    near = uniform_filter(np.minimum(far, FAR), 3, mode="mirror")
    even = equalised(np.floor(near + 1e-6))
    shaded = np.clip(correlate(even, RELIEF, mode="mirror"), 0, 255)
    lit: _Plane = np.rint(uniform_filter(shaded, 3, mode="mirror"))
    return lit


def canny(levels: _Plane, low: float, high: float) -> Bool[np.ndarray, "h w"]:
    """Edges: ridges of |∂x| + |∂y| above `low` that are connected to one above `high`."""
    dx, dy = sobel(levels, 1, mode="nearest"), sobel(levels, 0, mode="nearest")
    size = np.abs(dx) + np.abs(dy)
    padded = np.pad(size, 1)
    height, width = levels.shape

    def near(y: int, x: int) -> _Plane:
        return padded[1 + y : 1 + y + height, 1 + x : 1 + x + width]

    tangent = np.tan(np.pi / 8)
    flat = np.abs(dy) < tangent * np.abs(dx)
    steep = np.abs(dx) < tangent * np.abs(dy)
    same = (dx < 0) == (dy < 0)
    ridge = np.select(
        [flat, steep, same],
        [
            (size > near(0, -1)) & (size >= near(0, 1)),
            (size > near(-1, 0)) & (size >= near(1, 0)),
            (size > near(-1, -1)) & (size > near(1, 1)),
        ],
        (size > near(-1, 1)) & (size > near(1, -1)),
    )
    parts, count = label(ridge & (size > low), np.ones((3, 3)))
    strong = np.zeros(count + 1, dtype=bool)
    strong[parts[ridge & (size > high)]] = True
    strong[0] = False
    edges: Bool[np.ndarray, "h w"] = strong[parts]
    return edges


def equalised(levels: _Plane) -> _Plane:
    """Histogram equalisation: the lowest level becomes 0, the highest 255."""
    whole = levels.astype(np.int64)
    counts = np.bincount(whole.ravel(), minlength=256)
    first = int(np.flatnonzero(counts)[0])
    if counts[first] == whole.size:
        return levels
    table = np.rint((counts.cumsum() - counts[first]) * 255 / (whole.size - counts[first]))
    even: _Plane = np.clip(table, 0, 255)[whole]
    return even
