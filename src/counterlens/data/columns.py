"""Columns of a set: what is known of each picture, or measured of it, as text to group by.

    site                 a column of the manifest, or an array of a packed file
    class                the true class
    folder:2             the second folder of the picture's path; folder:1 is the class folder
    exif:Model           an EXIF field, by its name
    image:brightness     measured: brightness, contrast, sharpness, colourfulness,
                         aspect or side
    mask:area            measured of its mask: area, aspect, offset or edge; mask:area@FOLDER for
                         masks of a folder, mask:area@key:NAME for masks of a packed file

Numbers of more than ten values become three bands of equal numbers of pictures.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import Float64

from counterlens.data.masks import Mask, ReadMask, open_masks, own_masks
from counterlens.data.sets import encoded
from counterlens.errors import InputError, nearest
from counterlens.images import ImageSet, Pixels, exif_texts

_Values = Sequence[str | None]
MOST = 100
"""Values of a column, more than which name no groups."""
BANDS, PLAIN = 3, 10
FORMS = "a column of the manifest, class, folder:N, exif:FIELD, image:MEASURE or mask:MEASURE"


def column_values(images: ImageSet, name: str, data: str = "") -> list[str | None]:
    """The value of each picture; None where it has none.

    Args:
        images: the set.
        name: which column, as above.
        data: the spec of the set, where masks may lie.
    """
    kind, colon, rest = name.partition(":")
    if name in images.extra:
        values: Sequence[object] = _single(images, name)
    elif name == "class":
        values = [images.classes[k] if k >= 0 else None for k in images.labels.tolist()]
    elif colon and kind == "folder":
        values = _folders(images, rest)
    elif colon and kind == "exif":
        values = _exif(images, rest)
    elif colon and kind == "image":
        values = measured(images, rest).tolist()
    elif colon and kind == "mask":
        values = of_masks(images, rest, data).tolist()
    else:
        raise InputError(_unknown(images, name))
    return texts(values, name)


def texts(values: Sequence[object], name: str) -> list[str | None]:
    """Values as text, numbers in bands; refused where there are too many or too few to group by.

    >>> texts([1, 2, 1, None], "site")
    ['1', '2', '1', None]
    >>> sorted(set(texts(range(31), "age")))
    ['10 to 20', 'above 20', 'below 10']
    """
    plain = [None if _empty(value) else value for value in values]
    kinds = {type(value) for value in plain if value is not None}
    if len(set(plain) - {None}) > PLAIN and kinds <= {int, float, np.int64, np.float64}:
        cells = _bands(plain)
    else:
        cells = [None if value is None else str(value) for value in plain]
    count = len(set(cells) - {None})
    if count < 2:
        raise InputError(
            f"groups: {name} has {'one value' if count else 'no value'} over all images, expected "
            "two or more."
        )
    if count > MOST:
        raise InputError(
            f"groups: {name} has {count} different values, expected at most {MOST}: name a column "
            "of groups, not one of names or times."
        )
    return cells


def _empty(value: object) -> bool:
    return value is None or value == "" or (isinstance(value, float) and np.isnan(value))


def _bands(values: Sequence[object]) -> list[str | None]:
    known = np.array([float(str(value)) for value in values if value is not None])
    edges = sorted(set(np.quantile(known, np.arange(1, BANDS) / BANDS).tolist()))
    names = [f"{edge:.3g}" for edge in edges]
    words = [f"below {names[0]}"]
    words += [f"{one} to {two}" for one, two in pairwise(names)]
    words.append(f"above {names[-1]}")
    return [
        None if value is None else words[int(np.searchsorted(edges, float(str(value)), "right"))]
        for value in values
    ]


def _single(images: ImageSet, name: str) -> list[object]:
    column = images.extra[name]
    if column.ndim != 1:
        raise InputError(f"groups: {name} of {images.name} is no list of single values.")
    values: list[object] = column.tolist()
    return values


def _unknown(images: ImageSet, name: str) -> str:
    known = [key for key, column in images.extra.items() if column.ndim == 1]
    near = nearest(name, [*known, "class", "folder:1", "exif:Model", "image:brightness"])
    hint = f"Did you mean {near}?" if near else f"Expected {FORMS}."
    has = ", ".join(known) or "none"
    return f"groups: {images.name} has no column {name!r} (columns: {has}). {hint}"


def _folders(images: ImageSet, level: str) -> list[str | None]:
    if not level.isdigit() or int(level) < 1:
        raise InputError(f"groups: folder:{level}, expected folder:1, folder:2, …")
    parts = [str(name).split("/")[:-1] for name in images.ids]
    place = int(level) - 1
    values = [part[place] if len(part) > place else None for part in parts]
    if not any(values):
        deepest = max(len(part) for part in parts)
        raise InputError(
            f"groups: folder:{level}, but the pictures of {images.name} lie {deepest} folders deep."
        )
    return values


def _exif(images: ImageSet, field: str) -> list[str | None]:
    values, seen = [], set()
    for i in range(len(images)):
        fields = exif_texts(encoded(images.read, i))
        seen |= set(fields)
        values.append(fields.get(field))
    if not any(values):
        near = nearest(field, seen)
        hint = f"Did you mean {near}?" if near else f"It has: {', '.join(sorted(seen)) or 'none'}."
        raise InputError(
            f"groups: no picture of {images.name} has the EXIF field {field!r}. {hint}"
        )
    return values


def _grey(pixels: Pixels) -> Float64[np.ndarray, "_ _"]:
    grey: Float64[np.ndarray, "_ _"] = pixels.astype(np.float64).mean(2) / 255
    return grey


def _sharpness(pixels: Pixels) -> float:
    """Spread of the differences between neighbours over that of the pixels: low is blurred."""
    grey = _grey(pixels)
    spread = float(grey.std())
    steps = [float(np.diff(grey, axis=axis).std()) for axis in (0, 1) if grey.shape[axis] > 1]
    return float(np.mean(steps)) / spread if spread > 0 and steps else 0.0


MEASURES: Mapping[str, Callable[[Pixels], float]] = {
    "brightness": lambda pixels: float(_grey(pixels).mean()),
    "contrast": lambda pixels: float(_grey(pixels).std()),
    "sharpness": _sharpness,
    "colourfulness": lambda pixels: float(np.ptp(pixels.astype(np.float64), axis=2).mean()) / 255,
    "aspect": lambda pixels: pixels.shape[1] / pixels.shape[0],
    "side": lambda pixels: float(min(pixels.shape[:2])),
}


def measured(images: ImageSet, name: str) -> Float64[np.ndarray, "n"]:
    """A measure of each picture, one of MEASURES."""
    if name not in MEASURES:
        raise InputError(f"groups: image:{name}, expected one of {', '.join(MEASURES)}.")
    return np.array([MEASURES[name](images.read(i)) for i in range(len(images))])


def _aspect(mask: Mask) -> float:
    """Width over height of the smallest box that holds the object."""
    ys, xs = np.nonzero(mask)
    return float(np.ptp(xs) + 1) / float(np.ptp(ys) + 1) if len(ys) else float("nan")


def _offset(mask: Mask) -> float:
    """Distance of its centre of mass from that of the picture, in half diagonals: 0 to 1."""
    ys, xs = np.nonzero(mask)
    if not len(ys):
        return float("nan")
    middle = (np.array(mask.shape) - 1) / 2
    away = float(np.hypot(ys.mean() - middle[0], xs.mean() - middle[1]))
    return away / max(float(np.hypot(*middle)), 1.0)


def _edge(mask: Mask) -> float:
    """Share of the picture's edge that the object covers: 0 where it is seen whole."""
    ring = np.concatenate([mask[0], mask[-1], mask[1:-1, 0], mask[1:-1, -1]])
    return float(ring.mean())


MASK_MEASURES: Mapping[str, Callable[[Mask], float]] = {
    "area": lambda mask: float(mask.mean()),
    "aspect": _aspect,
    "offset": _offset,
    "edge": _edge,
}


def of_masks(images: ImageSet, text: str, data: str) -> Float64[np.ndarray, "n"]:
    """A measure of each picture's mask, one of MASK_MEASURES; NaN where it has none."""
    what, _, where = text.partition("@")
    if what not in MASK_MEASURES:
        raise InputError(
            f"groups: mask:{what}, expected one of {', '.join(MASK_MEASURES)}: mask:area or "
            "mask:area@FOLDER."
        )
    masks: ReadMask | None
    if where:
        masks = open_masks(where, data, images)
    else:
        own = own_masks(data, images)
        masks = own[1] if own else None
    if masks is None:
        raise InputError(
            f"groups: {images.name} has no masks of its own. Name a folder of masks: "
            f"mask:{what}@FOLDER."
        )
    opened = (masks(i) for i in range(len(images)))
    measure = MASK_MEASURES[what]
    return np.array([float("nan") if mask is None else measure(mask) for mask in opened])
