"""Masks of the objects in a set's pictures: a folder of mask pictures, or arrays of a packed file.

    FOLDER      one picture per image, named as the image; white (or 1) is the object
    key:NAME    of the pack itself: NAME_png and NAME_offsets, encoded masks one after another, or
                NAME as n × height × width

A mask whose values are 1, 2 and 3 alone is a trimap: 1 is the object, 2 what is behind it, 3 the
border, which belongs to whom the caller says.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from counterlens import zoo
from counterlens.data.sources.packed import load_npz, open_pack
from counterlens.data.specs import split
from counterlens.errors import InputError
from counterlens.images import SUFFIXES, ImageSet, Pixels, decode, read
from counterlens.runs import user_path

Mask = Bool[np.ndarray, "_ _"]
ReadMask = Callable[[int], Mask | None]
"""From the place of a picture in its set to its mask; None where it has none."""
KEYS = ("mask", "masks")


def object_of(pixels: Pixels, *, border: bool = False) -> Mask:
    """Where a mask picture shows the object.

    Args:
        border: whether the border of a trimap counts as object.

    >>> trimap = np.array([[[1], [2], [3]]], dtype=np.uint8).repeat(3, 2)
    >>> object_of(trimap).tolist(), object_of(trimap, border=True).tolist()
    ([[True, False, False]], [[True, False, True]])
    """
    first = pixels[..., 0]
    low, high = int(first.min()), int(first.max())
    if low >= 1 and high <= 3:
        return np.asarray(first != 2 if border else first == 1)
    return np.asarray(first >= (1 if high == 1 else 128))


def open_masks(spec: str, data: str, images: ImageSet, *, border: bool = False) -> ReadMask:
    """The masks of a set's pictures.

    Args:
        spec: FOLDER or key:NAME.
        data: the spec of the set.
        images: the set, or a part of it.
        border: whether the border of trimaps counts as object.
    """
    if spec.startswith("key:"):
        name = spec.removeprefix("key:")
        masks = _packed(name, data, images, border)
        if masks is None:
            raise InputError(
                f"{data} has no arrays {name}_png and {name}_offsets, nor {name} of n × height × "
                "width."
            )
        return masks
    folder = user_path(spec)
    if not folder.is_dir():
        raise InputError(f"masks are {spec!r}, expected a folder of pictures or key:NAME.")
    files = {file.stem: file for file in sorted(folder.rglob("*")) if file.suffix in SUFFIXES}
    if not any(Path(name).stem in files for name in images.ids):
        stem = Path(images.ids[0]).stem
        raise InputError(f"{folder} has no mask for {images.ids[0]}, expected {stem}.png.")
    return lambda i: _of_file(folder, files, str(images.ids[i]), border)


def own_masks(data: str, images: ImageSet, *, border: bool = False) -> tuple[str, ReadMask] | None:
    """Masks that lie in the pack itself, and under which name; None where there are none."""
    for key in KEYS:
        masks = _packed(key, data, images, border)
        if masks is not None:
            return key, masks
    return None


def _of_file(folder: Path, files: Mapping[str, Path], name: str, border: bool) -> Mask | None:
    """By the whole name where classes have folders of their own, else by the last part of it."""
    whole = folder / Path(name).with_suffix(".png")
    path = whole if whole.is_file() else files.get(Path(name).stem)
    return None if path is None else object_of(read(path), border=border)


def _packed(key: str, data: str, images: ImageSet, border: bool) -> ReadMask | None:
    """Masks of packs, by the ids of their pictures, so that a part of the set finds its own."""
    dense = images.extra.get(key)
    if dense is not None and dense.ndim == 3:
        return lambda i: object_of(_grey(dense[i]), border=border)
    _, scheme, rest = split(data)
    if scheme == "sample" and rest in zoo.samples():
        scheme, rest = "pack", str(zoo.sample(rest))
    if scheme != "pack":
        return None
    places: dict[str, tuple[np.ndarray, np.ndarray, int]] = {}
    for part in [rest] if Path(rest).exists() else rest.split("+"):
        arrays = load_npz(Path(part))
        if f"{key}_png" not in arrays or f"{key}_offsets" not in arrays:
            return None
        encoded, offsets = arrays[f"{key}_png"], arrays[f"{key}_offsets"]
        for row, name in enumerate(open_pack(Path(part), name="masks").ids):
            places[str(name)] = (encoded, offsets, row)

    def one(i: int) -> Mask | None:
        name = str(images.ids[i])
        if name not in places:
            return None
        encoded, offsets, row = places[name]
        piece = encoded[int(offsets[row]) : int(offsets[row + 1])].tobytes()
        return object_of(decode(piece, name=f"mask of {name}"), border=border)

    return one


def _grey(plane: np.ndarray) -> Pixels:
    whole = (plane * 255 if plane.dtype == bool else plane).astype(np.uint8)
    return np.repeat(whole[..., None], 3, axis=2)
