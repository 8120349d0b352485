"""Edits that change the shortcut alone: a patch, or a box or background of another photograph."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from counterlens.data.masks import ReadMask
from counterlens.data.synthetic.backgrounds import (
    mask_flag,
    mixed,
    only_background_tiled,
    resized_to,
)
from counterlens.errors import InputError
from counterlens.images import SUFFIXES, ImageSet, Pixels, read
from counterlens.workflows.repair.groups import Codes, Grouped

Box = tuple[float, float, float, float]
Read = Callable[[int], Pixels]
KINDS = ("patch", "box", "masks", "stylised", "files", "run", "column")
FORMS = (
    "patch:FILE@TOP,LEFT,HEIGHT,WIDTH, box:TOP,LEFT,HEIGHT,WIDTH (shares of the picture), "
    "masks:SPEC, stylised:WEIGHTS[@STYLES], files:FOLDER, run:FOLDER or column:NAME"
)


@dataclass(frozen=True)
class Edited:
    """Versions of some pictures of a set.

    Args:
        rows: which pictures.
        read: the j-th of them, edited.
        unrelated: the j-th of them after an edit that has nothing to do with the shortcut.
        values: the group value of each edited picture.
        labels: the class of each edited picture; None where it is that of its original.
    """

    rows: Codes
    read: Read
    unrelated: Read
    values: Codes
    labels: Codes | None = None

    def labels_in(self, by: Grouped) -> Codes:
        """The class of each edited picture.

        Args:
            by: of the set.
        """
        own: Codes = by.labels[self.rows]
        return own if self.labels is None else self.labels


def parse_pairs(text: str) -> tuple[str, str]:
    """Kind and rest of `--pairs`.

    >>> parse_pairs("box:0,0,0.25,0.25")
    ('box', '0,0,0.25,0.25')
    """
    kind, colon, rest = text.partition(":")
    if kind not in KINDS or not colon or not rest:
        raise InputError(f"pairs is {text!r}, expected {FORMS}.")
    if kind in ("box", "patch"):
        parse_box(rest.rpartition("@")[2] if kind == "patch" else rest)
    return kind, rest


def parse_box(text: str) -> Box:
    """Shares of the picture.

    >>> parse_box("0.1, 0, 0.5, 0.25")
    (0.1, 0.0, 0.5, 0.25)
    """
    try:
        top, left, height, width = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"the box of pairs is {text!r}, expected {FORMS}.") from None
    inside = 0 <= top < top + height <= 1 and 0 <= left < left + width <= 1
    if not inside or height * width > 0.5:
        raise InputError(
            f"the box {text} of pairs is outside the picture or covers more than half of it: give "
            "TOP,LEFT,HEIGHT,WIDTH as shares of the picture, e.g. box:0,0,0.25,0.25."
        )
    return top, left, height, width


def donors(
    rows: Codes, by: Grouped, rng: np.random.Generator, usable: Bool[np.ndarray, "n"] | None = None
) -> Codes:
    """For each row another one of another value: of another class where there is one.

    −1 where no image has another value, nor another class.
    """
    chosen = np.full(len(rows), -1, dtype=np.int64)
    pool = rows if usable is None else rows[usable[rows]]
    for j, row in enumerate(rows.tolist()):
        value, label = by.values[pool] != by.values[row], by.labels[pool] != by.labels[row]
        for wanted in (value & label, value, label):
            if wanted.any():
                chosen[j] = rng.choice(pool[wanted])
                break
    return chosen


def patch_edit(
    images: ImageSet, rows: Codes, by: Grouped, patch: tuple[Pixels, Box], rng: np.random.Generator
) -> Edited:
    """The patch drawn; unrelated: the box opposite, from any other picture.

    A network that averages over places knows a patch wherever it is, so the patch itself drawn
    elsewhere would be no placebo.

    The value of images with the patch is the one whose images drawing it changes least. Those
    images have it already, and are no pairs.
    """
    picture, box = patch

    def patched(row: int) -> Pixels:
        return drawn(images.read(row), picture, box)

    moved = np.array([_moved(images.read(row), patched(row)) for row in rows.tolist()])
    values = by.values[rows]
    known = np.unique(values)
    with_patch = int(known[int(np.argmin([moved[values == v].mean() for v in known]))])
    without = rows[values != with_patch] if len(known) > 1 else rows
    if not len(without):
        raise InputError("every fix image has the patch of pairs already, so no pair differs.")

    other = rng.permutation(without)

    def edited(j: int) -> Pixels:
        return patched(int(without[j]))

    def unrelated(j: int) -> Pixels:
        return elsewhere(images.read(int(without[j])), images.read(int(other[j])), box)

    return Edited(without, edited, unrelated, np.full(len(without), with_patch, dtype=np.int64))


def elsewhere(pixels: Pixels, other: Pixels, box: Box) -> Pixels:
    """The box opposite from another picture; mirrored where the two boxes overlap."""
    away = opposite(box)
    return pixels[:, ::-1].copy() if away is None else boxed(pixels, other, away)


def _moved(before: Pixels, after: Pixels) -> float:
    return float(np.abs(before.astype(np.int64) - after).mean())


def drawn(pixels: Pixels, patch: Pixels, box: Box) -> Pixels:
    """A picture with a patch squashed into a box."""
    (top, bottom), (left, right) = _ends(pixels, box)
    out = pixels.copy()
    out[top:bottom, left:right] = resized_to(patch, (bottom - top, right - left))
    return out


def _ends(pixels: Pixels, box: Box) -> tuple[tuple[int, int], tuple[int, int]]:
    """Rows and columns of a box, at least one of each."""
    height, width = pixels.shape[:2]
    top, left = round(box[0] * height), round(box[1] * width)
    bottom, right = round((box[0] + box[2]) * height), round((box[1] + box[3]) * width)
    return (top, max(bottom, top + 1)), (left, max(right, left + 1))


def box_edit(
    images: ImageSet, rows: Codes, by: Grouped, box: Box, rng: np.random.Generator
) -> Edited:
    """The box from a donor; unrelated: the box opposite, from any other picture."""
    rows, donor = with_donor(rows, donors(rows, by, rng))
    other = rng.permutation(rows)

    def read(j: int) -> Pixels:
        return boxed(images.read(int(rows[j])), images.read(int(donor[j])), box)

    def unrelated(j: int) -> Pixels:
        return elsewhere(images.read(int(rows[j])), images.read(int(other[j])), box)

    return Edited(rows, read, unrelated, by.values[donor])


def boxed(pixels: Pixels, donor: Pixels, box: Box) -> Pixels:
    """A picture with a box taken from another, resized to it."""
    (top, bottom), (left, right) = _ends(pixels, box)
    out = pixels.copy()
    whole = resized_to(donor, (pixels.shape[0], pixels.shape[1]))
    out[top:bottom, left:right] = whole[top:bottom, left:right]
    return out


def opposite(box: Box) -> Box | None:
    """The box turned by half a turn about the centre; None where the two overlap.

    >>> opposite((0.0, 0.0, 0.25, 0.25)), opposite((0.25, 0.25, 0.5, 0.5))
    ((0.75, 0.75, 0.25, 0.25), None)
    """
    top, left, height, width = box
    away = (1 - top - height, 1 - left - width, height, width)
    apart = abs(away[0] - top) >= height or abs(away[1] - left) >= width
    return away if apart else None


def background_edit(
    images: ImageSet, rows: Codes, by: Grouped, masks: ReadMask, rng: np.random.Generator
) -> Edited:
    """The background from a donor; unrelated: the picture mirrored."""
    flags = usable_masks(images, masks, rows)
    rows = rows[flags[rows]]
    backs = np.zeros(len(images), dtype=bool)
    for row in rows.tolist():
        mask = masks(row)
        backs[row] = mask is not None and only_background_tiled(images.read(row), mask) is not None
    rows, donor = with_donor(rows, donors(rows, by, rng, backs))

    def read(j: int) -> Pixels:
        return swapped(images, masks, int(rows[j]), int(donor[j]))

    def unrelated(j: int) -> Pixels:
        return images.read(int(rows[j]))[:, ::-1].copy()

    return Edited(rows, read, unrelated, by.values[donor])


def swapped(images: ImageSet, masks: ReadMask, row: int, donor: int) -> Pixels:
    """The object of one picture on the background of another, whose object is tiled over."""
    mask, other = masks(row), masks(donor)
    assert mask is not None and other is not None
    behind = only_background_tiled(images.read(donor), other)
    assert behind is not None
    return mixed(images.read(row), mask, behind)


def usable_masks(
    images: ImageSet, masks: ReadMask, rows: Sequence[int] | Codes
) -> Bool[np.ndarray, "n"]:
    """Which pictures have a mask that shows an object and a background; refused where none has."""
    good = np.zeros(len(images), dtype=bool)
    reasons: dict[str, int] = {}
    for row in np.asarray(rows).tolist():
        mask = masks(row)
        shape = images.read(row).shape[:2]
        why: str = "missing" if mask is None else mask_flag(mask)
        if mask is not None and mask.shape != shape:
            why = f"of {mask.shape[0]} × {mask.shape[1]} pixels for {shape[0]} × {shape[1]}"
        good[row] = not why
        if why:
            reasons[why] = reasons.get(why, 0) + 1
    if not good.any():
        counts = ", ".join(f"{n} {why}" for why, n in reasons.items())
        raise InputError(
            f"none of the masks of {images.name} shows an object and a background ({counts}): give "
            "masks in which the object is white, one of the size of each picture."
        )
    return good


def column_edit(rows: Codes, texts: Sequence[str], by: Grouped, images: ImageSet) -> Edited:
    """Pictures of the set that share a text in a column; unrelated: the picture mirrored."""
    places: dict[str, list[int]] = {}
    for row in rows.tolist():
        if texts[row]:
            places.setdefault(texts[row], []).append(row)
    first, second = [], []
    for group in places.values():
        for k, row in enumerate(group):
            if len(group) > 1:
                first.append(row)
                second.append(group[(k + 1) % len(group)])
    if not first:
        raise InputError(
            "no two fix images share a text in the column of pairs: give the same text to images "
            "that differ in the shortcut alone."
        )
    chosen, partner = np.array(first, dtype=np.int64), np.array(second, dtype=np.int64)
    wrong = np.flatnonzero(by.labels[chosen] != by.labels[partner])
    if len(wrong):
        j = int(wrong[0])
        raise InputError(
            f"{images.ids[int(chosen[j])]} and {images.ids[int(partner[j])]} are a pair and have "
            "different labels: an edit of the shortcut alone does not change the class."
        )

    def read(j: int) -> Pixels:
        return images.read(int(partner[j]))

    def unrelated(j: int) -> Pixels:
        return images.read(int(chosen[j]))[:, ::-1].copy()

    return Edited(chosen, read, unrelated, by.values[partner])


def files_edit(images: ImageSet, rows: Codes, by: Grouped, folder: Path) -> Edited:
    """Versions made elsewhere, under the names of their pictures; unrelated: the picture mirrored.

    The value of an edited picture is the other one where there are two values, else its own.
    """
    if not folder.is_dir():
        raise InputError(f"pairs name {str(folder)!r}, expected a folder of edited pictures.")
    files = {
        str(file.relative_to(folder).with_suffix("")): file
        for file in sorted(folder.rglob("*"))
        if file.suffix.lower() in SUFFIXES
    }
    names = [str(Path(str(name)).with_suffix("")) for name in images.ids]
    found = np.array([row for row in rows.tolist() if names[row] in files], dtype=np.int64)
    if not len(found):
        raise InputError(
            f"{folder} has an edited version of none of the fix images, expected for example "
            f"{names[int(rows[0])]}.png."
        )

    def read_edited(j: int) -> Pixels:
        return read(files[names[int(found[j])]])

    def unrelated(j: int) -> Pixels:
        return images.read(int(found[j]))[:, ::-1].copy()

    return Edited(found, read_edited, unrelated, other_value(by, found))


def other_value(by: Grouped, rows: Codes) -> Codes:
    """The value of a version made elsewhere: the other one of two, its own of more."""
    own: Codes = by.values[rows]
    return 1 - own if len(by.names) == 2 else own


def with_donor(rows: Codes, donor: Codes) -> tuple[Codes, Codes]:
    """The rows that have a donor, and it; refused where none has."""
    has_donor = donor >= 0
    if not has_donor.any():
        raise InputError(
            "pairs needs images of another value or of another class to take the edit from, and "
            "the fix images have none."
        )
    return rows[has_donor], donor[has_donor]
