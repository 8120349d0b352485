"""Masks of the objects in a set's pictures: a folder of mask pictures, or arrays of a packed file.

    FOLDER      one picture per image, named as the image; white is the object
    key:NAME    arrays NAME_png and NAME_offsets of the pack: encoded masks, one after another

A mask whose values are 1, 2 and 3 alone is a trimap: 1 is the object, 2 what is behind it, 3 the
border, which counts as neither's.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from counterlens.data.packed import load_npz
from counterlens.errors import InputError
from counterlens.images import SUFFIXES, ImageSet, Pixels, decode, read

ReadMask = Callable[[int], Bool[np.ndarray, "h w"] | None]
"""From the place of a picture in its set to its mask; None where it has none."""
KEYS = ("mask",)


def object_of(pixels: Pixels) -> Bool[np.ndarray, "h w"]:
    """Where a mask picture shows the object."""
    first = pixels[..., 0]
    trimap = first.min() >= 1 and first.max() <= 3
    found: Bool[np.ndarray, "h w"] = first == 1 if trimap else first > 127
    return found


def open_masks(spec: str, data: str, images: ImageSet) -> ReadMask:
    """The masks of a set's pictures.

    Args:
        spec: FOLDER or key:NAME.
        data: the spec of the set.
        images: the set, or a part of it.
    """
    if spec.startswith("key:"):
        found = _packed(spec.removeprefix("key:"), data, images)
        if found is None:
            name = spec.removeprefix("key:")
            raise InputError(f"{data} has no arrays {name}_png and {name}_offsets.")
        return found
    folder = Path(spec).expanduser()
    if not folder.is_dir():
        raise InputError(f"masks are {spec!r}, expected a folder of pictures or key:NAME.")
    files = {file.stem: file for file in sorted(folder.rglob("*")) if file.suffix in SUFFIXES}
    if not any(Path(name).stem in files for name in images.ids):
        stem = Path(images.ids[0]).stem
        raise InputError(f"{folder} has no mask for {images.ids[0]}, expected {stem}.png.")
    return lambda i: _of_file(files, str(images.ids[i]))


def own_masks(data: str, images: ImageSet) -> tuple[str, ReadMask] | None:
    """Masks that lie in the pack itself, and under which name; None where there are none."""
    for key in KEYS:
        found = _packed(key, data, images)
        if found is not None:
            return key, found
    return None


def _of_file(files: Mapping[str, Path], name: str) -> Bool[np.ndarray, "h w"] | None:
    path = files.get(Path(name).stem)
    return None if path is None else object_of(read(path))


def _packed(key: str, data: str, images: ImageSet) -> ReadMask | None:
    """Masks of a pack, by the ids of its pictures, so that a part of the set finds its own."""
    text = data.rpartition("=")[2]
    if not text.startswith("pack:") or "+" in text:
        return None
    path = Path(text.removeprefix("pack:")).expanduser()
    arrays = load_npz(path)
    if f"{key}_png" not in arrays or f"{key}_offsets" not in arrays:
        return None
    encoded, offsets = arrays[f"{key}_png"], arrays[f"{key}_offsets"]
    listed = arrays.get("ids")
    names = [f"{path.stem}/{i}" for i in range(len(offsets) - 1)]
    if listed is not None:
        names = [n.decode() if isinstance(n, bytes) else str(n) for n in listed.tolist()]
    places = {name: i for i, name in enumerate(names)}

    def one(i: int) -> Bool[np.ndarray, "h w"] | None:
        place = places.get(str(images.ids[i]))
        if place is None:
            return None
        part = encoded[offsets[place] : offsets[place + 1]].tobytes()
        return object_of(decode(part, name=f"{path}, mask {place}"))

    return one
