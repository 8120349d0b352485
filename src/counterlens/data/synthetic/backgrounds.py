"""Objects without their background, backgrounds without their object, objects on others'.

Paper: Xiao, Engstrom, Ilyas, Madry 2021 (xiao2021), Noise or Signal, the variants of ImageNet-9.
Differs: any pictures with masks; the object's edge is feathered outwards by two pixels, its inside
       is untouched; a background is tiled inside the object's box alone, from the largest strip
       beside the box, so the rest of it stays as it was.
"""

from typing import Literal

import numpy as np
from jaxtyping import Float32
from scipy.ndimage import distance_transform_edt

from counterlens.data.masks import Mask
from counterlens.images import Pixels, prepare
from counterlens.types import Preprocess

MaskFlag = Literal["", "empty", "full"]
LEAST, MOST = 0.01, 0.95
"""An object of less or more of the picture has vanished, or leaves no background."""
FEATHER = 2
VARIANTS = ("original", "mixed-same", "mixed-rand", "only-fg", "no-fg", "only-bg-b", "only-bg-t")


def mask_flag(mask: Mask) -> MaskFlag:
    """What is wrong with a mask; empty text where nothing is.

    >>> mask_flag(np.zeros((4, 4), dtype=bool)), mask_flag(np.eye(4, dtype=bool))
    ('empty', '')
    """
    area = float(mask.mean())
    return "empty" if area < LEAST else "full" if area > MOST else ""


def only_foreground(pixels: Pixels, mask: Mask) -> Pixels:
    """Only-FG: the object on black."""
    return np.where(mask[..., None], pixels, np.uint8(0))


def no_foreground(pixels: Pixels, mask: Mask) -> Pixels:
    """No-FG: the object's shape in black on its background."""
    return np.where(mask[..., None], np.uint8(0), pixels)


def box_of(mask: Mask) -> tuple[int, int, int, int]:
    """Top, bottom, left and right of the object, the ends excluded.

    >>> box_of(np.array([[0, 0, 0], [0, 1, 1]], dtype=bool))
    (1, 2, 1, 3)
    """
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1


def only_background_box(pixels: Pixels, mask: Mask) -> Pixels:
    """Only-BG-B: the object's box in black."""
    top, bottom, left, right = box_of(mask)
    out = pixels.copy()
    out[top:bottom, left:right] = 0
    return out


def only_background_tiled(pixels: Pixels, mask: Mask) -> Pixels | None:
    """Only-BG-T: the object's box filled with the largest strip beside it, repeated.

    None where the box leaves no strip.
    """
    top, bottom, left, right = box_of(mask)
    strips = (pixels[:top], pixels[bottom:], pixels[:, :left], pixels[:, right:])
    strip = max(strips, key=lambda part: part.shape[0] * part.shape[1])
    if not strip.size:
        return None
    rows = np.arange(top, bottom) % strip.shape[0]
    columns = np.arange(left, right) % strip.shape[1]
    out = pixels.copy()
    out[top:bottom, left:right] = strip[np.ix_(rows, columns)]
    return out


def mixed(pixels: Pixels, mask: Mask, background: Pixels, *, feather: int = FEATHER) -> Pixels:
    """Mixed-Same, Mixed-Rand: the object on another background, resized to the picture.

    Args:
        feather: pixels around the object over which the old background fades out.
    """
    shape = (pixels.shape[0], pixels.shape[1])
    behind = resized_to(background, shape)
    alpha = coverage(mask, feather)[..., None]
    blend = alpha * pixels + (1 - alpha) * behind
    return np.where(mask[..., None], pixels, blend.round().astype(np.uint8))


def coverage(mask: Mask, feather: int) -> Float32[np.ndarray, "_ _"]:
    """1 on the object, falling linearly to 0 over `feather` pixels around it."""
    apart = distance_transform_edt(~mask)
    share: Float32[np.ndarray, "_ _"] = np.clip(1 - apart / (feather + 1), 0, 1).astype(np.float32)
    return share


def resized_to(pixels: Pixels, shape: tuple[int, int]) -> Pixels:
    """A picture squashed to height and width."""
    if pixels.shape[:2] == shape:
        return pixels
    planes = prepare(pixels, Preprocess(size=shape, crop=None))
    return np.ascontiguousarray(planes.transpose(1, 2, 0))
