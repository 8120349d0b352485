"""RGB to HSV and back, all in [0, 1].

Paper: none; Smith 1978, "Color gamut transform pairs", as in Python's colorsys.
Differs: nothing.
"""

import numpy as np
from jaxtyping import Float

_Picture = Float[np.ndarray, "h w 3"]


def to_hsv(x: _Picture) -> _Picture:
    """Hue, saturation and value; hue and saturation of a grey are 0."""
    top, low = x.max(-1), x.min(-1)
    spread = top - low
    safe = np.where(spread > 0, spread, 1)
    red, green, blue = np.moveaxis(x, -1, 0)
    sector = np.where(
        red == top,
        (green - blue) / safe,
        np.where(green == top, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    saturation = spread / np.where(top > 0, top, 1)
    return np.stack([sector / 6 % 1, saturation, top], -1)


def from_hsv(hsv: _Picture) -> _Picture:
    """The inverse of `to_hsv`."""
    hue, saturation, value = np.moveaxis(hsv, -1, 0)
    channels = []
    for start in (5, 3, 1):  # red, green, blue
        k = (start + hue * 6) % 6
        channels.append(value * (1 - saturation * np.clip(np.minimum(k, 4 - k), 0, 1)))
    return np.stack(channels, -1)
