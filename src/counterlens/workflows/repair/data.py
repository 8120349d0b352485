"""The images of a repair: two sets in the classes of the model, three splits that do not touch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from counterlens.data.masks import ReadMask
from counterlens.data.sets import subset
from counterlens.data.synthetic.backgrounds import only_foreground
from counterlens.errors import InputError
from counterlens.images import ImageSet, Pixels
from counterlens.label_spaces.matching import pair_classes
from counterlens.progress import within
from counterlens.workflows._shared.masks import masks_by
from counterlens.workflows.repair import groups as grouping
from counterlens.workflows.repair.edits.made import donors, swapped, usable_masks
from counterlens.workflows.repair.groups import Codes, Grouped

OWN, OTHER, NONE = "own background", "other background", "no background"


@dataclass(frozen=True)
class Opened:
    """The two sets before they are grouped.

    Args:
        specs: what the sets were called by.
        sets: fix and check images, each of a class of the model.
        labels: as the model numbers them.
        fit, choose: rows of the fix images.
        classes: of the model.
        seed: of draws.
    """

    specs: tuple[str, str]
    sets: tuple[ImageSet, ImageSet]
    labels: tuple[Codes, Codes]
    fit: Codes
    choose: Codes
    classes: tuple[str, ...]
    seed: int


@dataclass(frozen=True)
class Data:
    """The two sets with their groups.

    Args:
        fix, check: the images.
        fix_by, check_by: their classes and values.
        fit, choose: rows of the fix images.
        partners: for each fix image a text that versions of one picture share; None: no versions.
        notes: what a reader should know of the groups.
    """

    fix: ImageSet
    check: ImageSet
    fix_by: Grouped
    check_by: Grouped
    fit: Codes
    choose: Codes
    partners: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


def open_sets(
    classes: Sequence[str],
    specs: tuple[str, str],
    sets: tuple[ImageSet, ImageSet],
    *,
    pair_column: str | None,
    seed: int,
) -> Opened:
    """Relabel and split; refuse what would make the proof worthless.

    Args:
        pair_column: column of the fix images whose text versions of one picture share: they stay
            in one half.
    """
    first, second = (_relabelled(classes, images) for images in sets)
    known, labels = (first[0], second[0]), (first[1], second[1])
    with within("looking for images in both sets"):
        hashes = grouping.content_hashes(known[0]), grouping.content_hashes(known[1])
        prints = grouping.prints_of(known[0]), grouping.prints_of(known[1])
        grouping.refuse_shared(known, hashes, prints)
        texts = [""] * len(known[0])
        if pair_column:
            texts = grouping.column_texts(known[0], pair_column)
        keys = [text or key for text, key in zip(texts, hashes[0], strict=True)]
        fit, choose = grouping.split(keys, prints[0], seed)
    for rows, purpose in ((fit, "fit"), (choose, "choose")):
        if not len(rows):
            raise InputError(
                f"{known[0].name} leaves no image to {purpose} on: give more to fix on."
            )
    return Opened(specs, known, labels, fit, choose, tuple(classes), seed)


def _relabelled(classes: Sequence[str], images: ImageSet) -> tuple[ImageSet, Codes]:
    """The images of the model's classes, and their labels as it numbers them."""
    places = [place for place, _ in pair_classes(classes, images.classes)]
    codes = np.array([*places, -1], dtype=np.int64)[images.labels]
    rows = np.flatnonzero(codes >= 0)
    if not len(rows):
        raise InputError(f"{images.name} has no labelled image of a class of the model.")
    return subset(images, rows), codes[rows]


def on_backgrounds(opened: Opened, spec: str) -> Data:
    """Every image three times: on its own background, on another's, and on none."""
    rng = np.random.default_rng([opened.seed, 11])
    fix = _versions(opened, 0, (opened.fit, opened.choose), spec, rng)
    check = _versions(opened, 1, (np.arange(len(opened.sets[1])),), spec, rng)
    names = (OWN, OTHER, NONE)
    fix_by, check_by = (
        Grouped(part.labels, part.values, opened.classes, names) for part in (fix, check)
    )
    half = np.array(fix.part)
    note = (
        f"Backgrounds come from masks ({spec}): an object is pasted on the background of an image "
        "of another class of the same split, or on black."
    )
    return Data(
        fix.images, check.images, fix_by, check_by, np.flatnonzero(half == 0),
        np.flatnonzero(half == 1), fix.photos, (note,),
    )  # fmt: skip


@dataclass(frozen=True)
class _Versions:
    images: ImageSet
    labels: Codes
    values: Codes
    part: tuple[int, ...]
    photos: tuple[str, ...]


def _versions(
    opened: Opened, which: int, parts: Sequence[Codes], spec: str, rng: np.random.Generator
) -> _Versions:
    """Three versions of the usable images of each part; backgrounds stay within the part."""
    images, labels = opened.sets[which], opened.labels[which]
    masks = masks_by(spec, opened.specs[which], images)
    plain = Grouped(labels, np.zeros_like(labels), opened.classes, ("all",))
    readers: list[Callable[[], Pixels]] = []
    rows: list[int] = []
    values: list[int] = []
    place: list[int] = []
    for number, part in enumerate(parts):
        usable = part[usable_masks(images, masks, part)[part]]
        donor = donors(usable, plain, rng)
        for row, other in zip(usable.tolist(), donor.tolist(), strict=True):
            versions: list[Callable[[], Pixels]] = [partial(images.read, row)]
            if other >= 0:
                versions.append(partial(swapped, images, masks, row, other))
            versions.append(partial(_on_black, images, masks, row))
            codes = [0, 1, 2] if other >= 0 else [0, 2]
            readers += versions
            values += codes
            rows += [row] * len(codes)
            place += [number] * len(codes)
    names = ("own", "other", "none")
    taken = subset(images, rows)
    ids = tuple(f"{images.ids[r]}#{names[v]}" for r, v in zip(rows, values, strict=True))
    composed = replace(taken, ids=ids, read=lambda i: readers[i]())
    photos = tuple("" if v == 2 else str(images.ids[r]) for r, v in zip(rows, values, strict=True))
    return _Versions(composed, labels[rows], np.array(values), tuple(place), photos)


def _on_black(images: ImageSet, masks: ReadMask, row: int) -> Pixels:
    mask = masks(row)
    assert mask is not None
    return only_foreground(images.read(row), mask)
