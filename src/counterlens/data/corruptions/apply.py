"""corrupt: one image, one corruption, one severity.

Paper: Hendrycks, Dietterich 2019, arXiv:1903.12261.
Differs: as its package says.
"""

from collections.abc import Callable
from difflib import get_close_matches
from hashlib import sha256

import numpy as np

from counterlens.data.corruptions import blur, digital, noise, practice, spatter, weather
from counterlens.data.corruptions.tables import SEVERITIES, constants
from counterlens.errors import InputError
from counterlens.images import Pixels

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
NAMES = (*COMMON, *EXTRA, *PRACTICE)
GROUPS = {"common": tuple(COMMON), "extra": tuple(EXTRA), "practice": tuple(PRACTICE), "all": NAMES}


def parse_corruptions(text: str) -> tuple[str, ...]:
    """Names or groups (common, extra, practice, all) with commas, in the order of NAMES.

    >>> parse_corruptions("fog, gaussian-noise")
    ('gaussian_noise', 'fog')
    """
    wanted: set[str] = set()
    for word in text.split(","):
        name = word.strip().lower().replace("-", "_")
        if name and name not in GROUPS:
            check(name, 1)
        wanted |= set(GROUPS.get(name, (name,) if name else ()))
    if not wanted:
        raise InputError(
            f"corruptions are {text!r}, expected {', '.join(GROUPS)} or names such as fog, with "
            "commas."
        )
    return tuple(name for name in NAMES if name in wanted)


def check(name: str, severity: int) -> None:
    """Refuse an unknown corruption or severity."""
    if name not in NAMES:
        near = get_close_matches(name, NAMES, n=3, cutoff=0.5)
        meant = f" (did you mean {' or '.join(near)}?)" if near else ""
        raise InputError(f"{name} is no corruption{meant}, expected one of {', '.join(NAMES)}.")
    if severity not in SEVERITIES:
        raise InputError(f"{name} has no severity {severity}, expected 1, 2, 3, 4 or 5.")


def corrupt(pixels: Pixels, name: str, severity: int, *, seed: str = "") -> Pixels:
    """A corrupted copy of an image: uint8 RGB in and out, of the same shape.

    Args:
        name: one of NAMES.
        severity: 1 (weak) to 5 (strong).
        seed: of the random draws; a set gives the id of the image.
    """
    check(name, severity)
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
