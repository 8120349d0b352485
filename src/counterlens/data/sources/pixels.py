"""Pixels of images in memory: Pillow images, arrays and tensors, all as uint8 RGB.

uint8 stays as it is, float in [0, 1] is rounded to 8 bits, 16 bits are scaled by 255 / 65535,
grey is repeated, transparency lies over white. Other ranges are refused: the model normalises.
"""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from counterlens import images
from counterlens.errors import InputError
from counterlens.images import Pixels

CHANNELS = (1, 3, 4)
NORMALISED = (
    "Normalisation belongs to the model: leave it out of the transform and give "
    "counterlens.Classifier(net, classes=names, mean=…, std=…, size=224)."
)


def as_pixels(image: object, name: str = "the image") -> Pixels:
    """One image as uint8 RGB, height × width × 3.

    >>> as_pixels(torch.full((3, 1, 2), 0.5)).tolist()
    [[[128, 128, 128], [128, 128, 128]]]
    """
    if isinstance(image, str | Path):
        return images.read(image)
    drawn = images.from_pillow(image, name=name)
    if drawn is not None:
        return drawn
    array = as_array(image)
    if array is None:
        raise InputError(
            f"{name} is {type(image).__name__}, expected a Pillow image, an array, a tensor or the "
            "path of a picture."
        )
    if array.ndim == 4 and len(array) == 1:
        array = array[0]
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3:
        raise InputError(
            f"{name} has shape {array.shape}, expected (channels, height, width) or (height, "
            "width, channels) with 1, 3 or 4 channels."
        )
    first = isinstance(image, Tensor)
    rgb = _rgb(eight_bits(channels_last(array[None], first=first, name=name), name))
    return np.asarray(rgb[0])


def as_batch(batch: object, name: str = "the images") -> UInt8[np.ndarray, "n h w 3"]:
    """A batch of images of one size as one array; uint8 n × h × w × 3 is not copied."""
    array = as_array(batch)
    if array is None or array.ndim not in (3, 4) or not array.size:
        came = type(batch).__name__ if array is None else f"of shape {array.shape}"
        raise InputError(
            f"{name} are {came}, expected (n, channels, height, width) or (n, height, width, "
            "channels) with 1, 3 or 4 channels."
        )
    if array.ndim == 3:
        array = array[..., None]
    return _rgb(eight_bits(channels_last(array, first=isinstance(batch, Tensor), name=name), name))


def as_array(value: object) -> np.ndarray | None:
    """The numpy array behind an array, a tensor or what can be seen as one; None for the rest."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, Tensor):
        plain = value.detach().cpu()
        low = plain.dtype in (torch.bfloat16, torch.float16)
        return np.asarray((plain.float() if low else plain).numpy())
    return np.asarray(value) if hasattr(value, "__array__") else None


def channels_last(array: np.ndarray, *, first: bool, name: str) -> np.ndarray:
    """n × h × w × c of a batch with channels in either place; `first` decides where both fit."""
    second, last = array.shape[1] in CHANNELS, array.shape[3] in CHANNELS
    if not second and not last:
        raise InputError(
            f"{name} has shape {array.shape[1:]}, expected 1, 3 or 4 channels before or after "
            "height and width."
        )
    return array.transpose(0, 2, 3, 1) if second and (first or not last) else array


def eight_bits(array: np.ndarray, name: str) -> np.ndarray:
    """Pixels of any kind as uint8.

    >>> eight_bits(np.array([0, 65535], np.uint16), "x").tolist()
    [0, 255]
    """
    if array.dtype == np.uint8:
        return array
    if array.dtype == bool:
        return array.astype(np.uint8) * 255
    if array.dtype == np.uint16:
        return (array / 65535 * 255).round().astype(np.uint8)
    low, high = float(array.min()), float(array.max())
    if array.dtype.kind != "f":
        raise InputError(
            f"{name} holds {array.dtype} pixels from {low:g} to {high:g}, expected uint8 or float "
            "in [0, 1]. Convert them: .astype('uint8'), or .to(torch.uint8)."
        )
    if not -1e-6 <= low <= high <= 1 + 1e-6:  # written so that NaN fails too
        whole = low >= 0 and 1 < high <= 255
        raise InputError(
            f"{name} spans [{low:.3g}, {high:.3g}], expected float in [0, 1] or uint8. "
            + ("Divide by 255." if whole else NORMALISED)
        )
    return (array * 255).round().clip(0, 255).astype(np.uint8)


def _rgb(batch: np.ndarray) -> np.ndarray:
    if batch.shape[3] == 3:
        return batch
    if batch.shape[3] == 1:
        return np.repeat(batch, 3, axis=3)
    alpha = batch[..., 3:].astype(np.float32) / 255
    return (batch[..., :3] * alpha + 255 * (1 - alpha)).round().astype(np.uint8)
