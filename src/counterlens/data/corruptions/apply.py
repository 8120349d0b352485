"""corrupt: one image, one corruption, one severity.

Paper: Hendrycks, Dietterich 2019, arXiv:1903.12261.
Differs: as its package says.
"""

from collections.abc import Callable
from hashlib import sha256

import numpy as np

from counterlens.data.corruptions import blur, digital, noise, practice, spatter, weather
from counterlens.data.corruptions.tables import constants
from counterlens.errors import InputError
from counterlens.images import Pixels
from counterlens.notation import check_corruption

LEAST = 8  # pixels of the shorter side
COMMON: dict[str, Callable[..., noise._Picture]] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": weather.brightness,
    "contrast": digital.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
}
EXTRA: dict[str, Callable[..., noise._Picture]] = {
    "speckle_noise": noise.speckle_noise,
    "gaussian_blur": blur.gaussian_blur,
    "spatter": spatter.spatter,
    "saturate": digital.saturate,
}
PRACTICE: dict[str, Callable[..., noise._Picture]] = {
    "jpeg_quality": practice.jpeg_quality,
    "resize_filter": practice.resize_filter,
    "colour_order": practice.colour_order,
    "overlay": practice.overlay,
    "occlusion": practice.occlusion,
}


def corrupt(pixels: Pixels, name: str, severity: int, *, seed: str = "") -> Pixels:
    """A corrupted copy of an image: uint8 RGB in and out, of the same shape.

    Args:
        name: one of NAMES.
        severity: 1 (weak) to 5 (strong).
        seed: of the random draws; a set gives the id of the image.
    """
    check_corruption(name, severity)
    height, width = pixels.shape[:2]
    if min(height, width) < LEAST:
        raise InputError(
            f"an image of {height} × {width} pixels cannot be corrupted, "
            f"expected at least {LEAST} on each side."
        )
    digest = sha256(f"{name}\n{seed}".encode("utf-8", "backslashreplace")).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:16], "little"))
    row = constants(name, severity, height, width)
    changed = {**COMMON, **EXTRA, **PRACTICE}[name](pixels / 255, rng, *row)
    # cut off, not rounded, as by the authors; 1e-6 keeps whole levels whole
    cut: Pixels = np.floor(np.clip(changed, 0, 1) * 255 + 1e-6).astype(np.uint8)
    return cut
