"""Masks of the objects in a set's pictures by a spec, and what is doubtful about them.

own                 what lies in the pack itself
FOLDER, key:NAME    see `data.masks`
salient:FILE.onnx   made by a network that marks what stands out (U²-Net and its kind)
sam:FOLDER          made by Segment Anything, shown the middle of each picture; or sam:OWNER/MODEL
"""

from collections.abc import Callable

import numpy as np
import torch
from scipy.ndimage import label
from torch import Tensor

from counterlens.data.masks import Mask, ReadMask, open_masks, own_masks
from counterlens.data.synthetic.backgrounds import mask_flag
from counterlens.errors import InputError
from counterlens.images import ImageSet
from counterlens.models.salient import load_salient
from counterlens.models.segmenter import centre, load_segmenter
from counterlens.runs import user_path

SALIENT, SAM = "salient:", "sam:"
WHOLE, TOUCHED = 0.8, 3
"""Share of the object in its largest piece, and sides touched, from which a mask is doubtful."""


def masks_by(spec: str, data: str, images: ImageSet) -> ReadMask:
    """From the place of a picture to its mask; None where it has none.

    Args:
        spec: see above.
        data: the spec of the set.
        images: the set, or a part of it.
    """
    if spec.startswith(SALIENT):
        return salient_masks(spec.removeprefix(SALIENT), images)
    if spec.startswith(SAM):
        return sam_masks(spec.removeprefix(SAM), images)
    source = "" if data.partition("=")[2].startswith("object:") else data
    if spec != "own":
        return open_masks(spec, source or images.name, images, border=True)
    masks = own_masks(source or images.name, images, border=True)
    if masks is None:
        raise InputError(
            f"{images.name} has no masks of its own: give a folder of masks, key:NAME of a pack, "
            "or salient:FILE.onnx, a network such as U²-Net that makes them."
        )
    return masks[1]


def salient_masks(file: str, images: ImageSet) -> ReadMask:
    """Masks that a network makes of what stands out, each once."""
    network = load_salient(user_path(file))
    return made_masks(images, lambda x: network(x) > 0.5)


def sam_masks(spec: str, images: ImageSet) -> ReadMask:
    """Masks of what Segment Anything sees in the middle of each picture, each once."""
    segment = load_segmenter(spec, device=torch.device("cpu"))
    return made_masks(images, lambda x: segment(x, centre(x)) > 0.5)


def made_masks(images: ImageSet, make: Callable[[Tensor], Tensor]) -> ReadMask:
    """Masks that are made when they are asked for, each once."""
    known: dict[int, Mask] = {}

    def one(i: int) -> Mask:
        if i not in known:
            pixels = torch.from_numpy(images.read(i).transpose(2, 0, 1).copy()).float() / 255
            known[i] = make(pixels[None])[0, 0].numpy()
        return known[i]

    return one


def doubt(mask: Mask | None, shape: tuple[int, ...]) -> str:
    """What is wrong with a mask, or doubtful; empty text where nothing is.

    Missing, empty and full masks, and those of another size, cannot be used; an object in pieces,
    or one that touches three sides of the picture, is often two objects, or the background.

    >>> doubt(None, (4, 4)), doubt(np.zeros((4, 4), dtype=bool), (4, 4))
    ('missing', 'empty')
    """
    if mask is None:
        return "missing"
    if mask.shape != tuple(shape):
        return f"of {mask.shape[0]} × {mask.shape[1]} pixels for {shape[0]} × {shape[1]}"
    if flag := mask_flag(mask):
        return flag
    pieces, count = label(mask)
    if count > 1 and np.bincount(pieces.ravel())[1:].max() < WHOLE * mask.sum():
        return DOUBTS[0]
    sides = (mask[0], mask[-1], mask[:, 0], mask[:, -1])
    return DOUBTS[1] if sum(bool(side.any()) for side in sides) >= TOUCHED else ""


DOUBTS = ("in pieces", "touches three sides")
"""Of masks that are used all the same."""
