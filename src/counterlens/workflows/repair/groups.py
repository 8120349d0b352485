"""Groups of images, class by a value of each image, and the splits that must not touch."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
from jaxtyping import Bool, Int64

from counterlens.errors import InputError
from counterlens.images import ImageSet
from counterlens.screen.copies import Signatures, copies, signatures
from counterlens.workflows.repair.hashing import content_hash

Codes = Int64[np.ndarray, "n"]
MOST_VALUES = 20
LEAST = 20  # images of a group that balanced draws need, or mistakes that reweighting needs


@dataclass(frozen=True)
class Grouped:
    """Images by class and by a value.

    Args:
        labels: index into `classes` (those of the model).
        values: index into `names`.
        classes: class names.
        names: the values.
    """

    labels: Codes
    values: Codes
    classes: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def groups(self) -> Codes:
        """One number for each pair of class and value."""
        codes: Codes = self.labels * len(self.names) + self.values
        return codes

    def group_name(self, group: int) -> str:
        """Class and value, e.g. "cat, snow"."""
        label, value = divmod(group, len(self.names))
        return f"{self.classes[label]}, {self.names[value]}"

    def sizes(self) -> dict[int, int]:
        """How many images each group has, empty ones left out."""
        codes, counts = np.unique(self.groups, return_counts=True)
        return {int(group): int(n) for group, n in zip(codes, counts, strict=True)}

    def take(self, rows: Codes) -> "Grouped":
        """Some of the images."""
        return Grouped(self.labels[rows], self.values[rows], self.classes, self.names)


def column_texts(images: ImageSet, name: str) -> list[str]:
    """The column as text; one that the set does not have is refused with the nearest names."""
    if name not in images.extra:
        known = sorted(images.extra)
        near = get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "name a column of the manifest."
        has = ", ".join(known) if known else "none"
        raise InputError(f"{images.name} has no column {name!r} (columns: {has}): {hint}")
    column = images.extra[name]
    if column.ndim != 1:
        raise InputError(f"column {name!r} of {images.name} is no list of single values.")
    return [str(value) for value in column]


def grouped_pair(
    labels: tuple[Codes, Codes],
    texts: tuple[Sequence[str], Sequence[str]],
    classes: tuple[str, ...],
    source: str,
) -> tuple[Grouped, Grouped]:
    """The fix and the check images by class and value, with the values of both."""
    names = tuple(sorted({*texts[0], *texts[1]}))
    if not 2 <= len(names) <= MOST_VALUES:
        raise InputError(
            f"{source} has {len(names)} different values, expected 2 to {MOST_VALUES}: give one "
            "that names groups."
        )
    place = {name: i for i, name in enumerate(names)}
    fix, check = (
        Grouped(known, np.array([place[t] for t in text], dtype=np.int64), classes, names)
        for known, text in zip(labels, texts, strict=True)
    )
    if _one_to_one(fix) and _one_to_one(check):
        raise InputError(
            f"{source} names the class itself in both sets: each value belongs to one class and "
            "each class to one value. Give groups that differ within a class."
        )
    return fix, check


def _one_to_one(images: Grouped) -> bool:
    pairs = set(zip(images.labels.tolist(), images.values.tolist(), strict=True))
    return len(pairs) == len({p[0] for p in pairs}) == len({p[1] for p in pairs})


def refuse_small(images: Grouped, classes: int) -> None:
    """Balanced draws need every class, every group of it, and enough of each."""
    missing = sorted(set(range(classes)) - set(images.labels.tolist()))
    if missing:
        raise InputError(
            f"dfr needs fix images of every class of the model, and {images.classes[missing[0]]} "
            "has none: add such images to fix on, or leave dfr out."
        )
    sizes = images.sizes()
    for label in np.unique(images.labels):
        if len(np.unique(images.values[images.labels == label])) < 2:
            raise InputError(
                f"dfr needs images of {images.classes[label]} with two values, and the fix images "
                "have one: there is no minority to balance. Add such images to fix on, or leave "
                "dfr out."
            )
    small = {group: n for group, n in sizes.items() if n < LEAST}
    if small:
        group, n = min(small.items(), key=lambda item: item[1])
        raise InputError(
            f"dfr needs {LEAST} images of each group to fit on, and {images.group_name(group)!r} "
            f"has {n}: add such images to fix on, or leave dfr out."
        )


def refuse_single(images: Grouped) -> None:
    """One image cannot weigh as much as a whole group."""
    for group, n in images.sizes().items():
        if n == 1:
            raise InputError(
                f"group-weights needs two images of each group to fit on, and "
                f"{images.group_name(group)!r} has one: add such images to fix on, or leave "
                "group-weights out."
            )


FEW_TO_PROVE = 5


def unproved(fix: Grouped, check: Grouped) -> list[str]:
    """What the check images cannot show: groups to fit on of which they have few or none."""
    sizes, out = check.sizes(), []
    for group in fix.sizes():
        n = sizes.get(group, 0)
        if n < FEW_TO_PROVE:
            count = f"{n} image{'s' * (n > 1)}" if n else "no image"
            out.append(
                f"The check set has {count} of {fix.group_name(group)!r}: what happens to that "
                "group is not proved."
            )
    return out


def content_hashes(images: ImageSet) -> list[str]:
    """SHA-256 of the decoded pixels of each image."""
    return [content_hash(images.read(i)) for i in range(len(images))]


def prints_of(images: ImageSet) -> Signatures:
    """What near duplicates are known by."""
    return signatures(images.read(i) for i in range(len(images)))


def refuse_shared(
    sets: tuple[ImageSet, ImageSet],
    hashes: tuple[list[str], list[str]],
    prints: tuple[Signatures, Signatures],
    names: tuple[str, str] = ("fix", "check"),
) -> None:
    """Refuse images of the second set that are, or nearly are, images of the first."""
    where = {key: i for i, key in enumerate(hashes[0])}
    same = [(where[key], j) for j, key in enumerate(hashes[1]) if key in where]
    near = [(copy.own, copy.other) for copy in copies(*prints)]
    if same or near:
        i, j = (same or near)[0]
        count, kind = len({j for _, j in same + near}), "" if same else "nearly "
        raise InputError(
            f"{count} of the {names[1]} images are among the {names[0]} images: "
            f"{sets[1].ids[j]} is {kind}{sets[0].ids[i]}. A proof needs other images: remove them "
            "from one of the two."
        )


def split(keys: Sequence[str], prints: Signatures, seed: int) -> tuple[Codes, Codes]:
    """Rows that fit and rows that choose, by key; near copies of the first leave.

    Args:
        keys: content hashes, or any text that images which must stay together share.
        prints: of the images.
        seed: of the draw.
    """
    drawn = [hashlib.sha256(f"{seed} {text}".encode()).digest()[0] % 2 for text in keys]
    chooses: Bool[np.ndarray, "n"] = np.array(drawn, dtype=bool)
    fit, choose = np.flatnonzero(~chooses), np.flatnonzero(chooses)
    near = copies(_rows(prints, fit), _rows(prints, choose))
    rest = np.setdiff1d(np.arange(len(choose)), [copy.other for copy in near])
    return fit, choose[rest.astype(np.int64)]


def _rows(prints: Signatures, rows: Codes) -> Signatures:
    return Signatures(prints.cosine[rows], prints.gradient[rows], prints.grey[rows])
