"""Weather: snow, frost, fog and brightness.

Paper: Hendrycks, Dietterich 2019, arXiv:1903.12261.
Differs: the frost textures are made by code (`frost_texture`); the authors crop photographs of
    frost, so accuracies under frost compare with each other and not with published ones. The fog
    map has the power of two that holds the image (the authors: 256 for 224, 32 for 32).
"""

from functools import lru_cache

import numpy as np
from jaxtyping import Float

from counterlens.data.corruptions.blur import clipped_zoom, streaks
from counterlens.data.corruptions.colour import from_hsv, to_hsv
from counterlens.data.corruptions.tables import size_of

_Picture = Float[np.ndarray, "h w c"]
_HeightMap = Float[np.ndarray, "n n"]
GREY = np.array([0.299, 0.587, 0.114])
TEXTURES = 5
SHRINK = 5  # the authors scale the frost by 0.2 for 32 pixels


def power_of_two(side: int) -> int:
    """The least power of two that is not below a side.

    >>> power_of_two(32), power_of_two(224)
    (32, 256)
    """
    return 1 << (side - 1).bit_length()


def diamond_square(side: int, decay: float, rng: np.random.Generator) -> _HeightMap:
    """A periodic random landscape scaled to [0, 1].

    Args:
        side: a power of two.
        decay: the spread of a level is a², a = 100, 100/decay, 100/decay², … as in the authors'
            code, which multiplies by a a draw that has the spread a already.
    """
    field = np.zeros((side, side))
    step, a = side, 100.0
    while step >= 2:
        half = step // 2

        def jitter(total: _HeightMap, a: float = a) -> _HeightMap:
            return total / 4 + a * rng.uniform(-a, a, total.shape)

        corners = field[::step, ::step]
        beside = corners + np.roll(corners, -1, 1)
        below = corners + np.roll(corners, -1, 0)
        field[half::step, half::step] = jitter(below + np.roll(below, -1, 1))
        middles = field[half::step, half::step]
        field[::step, half::step] = jitter(beside + middles + np.roll(middles, 1, 0))
        field[half::step, ::step] = jitter(below + middles + np.roll(middles, 1, 1))
        step, a = half, a / decay
    field -= field.min()
    scaled: _HeightMap = field / field.max()
    return scaled


def fog(x: _Picture, rng: np.random.Generator, amount: float, decay: float) -> _Picture:
    """A landscape of white added, the brightest value kept.

    Equation: corruptions2019 fog   (x + a·map)·max(x)/(max(x) + a)
    """
    height, width = x.shape[:2]
    cloud = diamond_square(power_of_two(max(height, width)), decay, rng)[:height, :width, None]
    top = x.max()
    foggy: _Picture = (x + amount * cloud) * top / (top + amount)
    return foggy


def snow(x: _Picture, rng: np.random.Generator, *row: float) -> _Picture:
    """Flakes of noise, streaked by the wind, over a whitened image.

    Args:
        row: mean and deviation of the noise, its zoom, the cut below which there is no flake,
            radius and σ of the streaks, and the share of the image that is not whitened.
    """
    mean, deviation, factor, cut, radius, sigma, mix = row
    noise = rng.normal(mean, deviation, x.shape[:2])[..., None]
    layer = clipped_zoom(noise, factor)
    flakes = np.floor(np.clip(np.where(layer < cut, 0, layer), 0, 1) * 255) / 255
    flakes = streaks(flakes, radius, sigma, rng.uniform(-135, -45))
    white = np.maximum(x, (x @ GREY)[..., None] * 1.5 + 0.5)
    snowy: _Picture = mix * x + (1 - mix) * white + flakes + np.rot90(flakes, 2)
    return snowy


@lru_cache(maxsize=8)
def frost_texture(index: int, side: int) -> _Picture:
    """Ice made by code: needles in three directions on ridges of a landscape, slightly blue.

    Args:
        index: 0 to 4, the five textures.
        side: a power of two.
    """
    rng = np.random.default_rng([1903, 12261, index])
    ridges = 1 - np.abs(2 * diamond_square(side, 1.5 + 0.1 * index, rng) - 1)
    seeds = (rng.random((side, side)) < 0.004).astype(np.float64)
    first, needles = rng.uniform(0, 60), np.zeros((side, side))
    for angle in np.deg2rad(first + np.array([0, 60, 120])):
        for k in range(-24, 25):
            shift = (round(k * np.sin(angle)), round(k * np.cos(angle)))
            needles += (1 - abs(k) / 25) * np.roll(seeds, shift, (0, 1))
    ice = np.clip(0.15 + 0.6 * ridges**3 + 0.35 * np.minimum(needles, 1.5), 0, 1)
    texture: _Picture = ice[..., None] * np.array([0.88, 0.95, 1.0])
    texture.setflags(write=False)
    return texture


def frost(x: _Picture, rng: np.random.Generator, weight: float, ice: float) -> _Picture:
    """A random crop of a frost texture laid over the image.

    Equation: corruptions2019 frost   c₁·x + c₂·texture
    """
    height, width = x.shape[:2]
    side = max(512, power_of_two(max(height, width) * 3 // 2))
    texture = frost_texture(int(rng.integers(TEXTURES)), side)
    if size_of(height, width) == "small":
        n = side // SHRINK
        blocks = texture[: n * SHRINK, : n * SHRINK].reshape(n, SHRINK, n, SHRINK, 3)
        texture = blocks.mean((1, 3))
    y, left = rng.integers(0, len(texture) - height), rng.integers(0, len(texture) - width)
    return weight * x + ice * texture[y : y + height, left : left + width]


def brightness(x: _Picture, rng: np.random.Generator, amount: float) -> _Picture:
    """The value of HSV raised.

    Equation: corruptions2019 brightness   V ← min(V + b, 1)
    """
    hsv = to_hsv(x)
    hsv[..., 2] = np.clip(hsv[..., 2] + amount, 0, 1)
    return from_hsv(hsv)
