"""Join packed sets of photographs into the sets that the models of photographs are trained on.

    python tools/photo_sets.py SOURCE OUT

SOURCE has photos_imagenette_train.npz, photos_imagewoof_train.npz, photos_pets_train.npz and the
same with _test (packed sets: encoded, offsets, labels, classes). OUT gets

    photos-train.npz               all classes: ten things and scenes, ten and 37 breeds
    photos-test.npz                the test photographs of all sources, all classes
    photos-coarse-train.npz        eleven classes: nine things and scenes, dog, cat
    photos-coarse-test-NAME.npz    the test photographs of a source under the same eleven classes
    photos_out_train.npz           photographs of other things, as they are, if SOURCE has them

Photographs are copied as encoded, in one random order, so that any last part is a random part.
A photograph keeps its source's name in its id.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from counterlens.data.sources.packed import open_pack, write_encoded
from counterlens.errors import CounterlensError, InputError
from counterlens.images import ImageSet

SOURCES = ("imagenette", "imagewoof", "pets")
DOGS = frozenset({"English springer"})
"""Breeds outside the sets of breeds."""
KINDS = ("dog", "cat")
OUTSIDE = "photos_out_train.npz"


def kind(source: str, name: str) -> str | None:
    """Dog, cat, or None for what is neither.

    >>> kind("pets", "Bengal cat"), kind("imagewoof", "beagle"), kind("imagenette", "church")
    ('cat', 'dog', None)
    """
    if source == "pets":
        last = name.split()[-1]
        if last not in KINDS:
            raise InputError(f"the breed {name!r} ends in neither {' nor '.join(KINDS)}.")
        return last
    return "dog" if source == "imagewoof" or name in DOGS else None


def coarse_classes(classes: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The classes with all breeds of a kind as one: other names in their order, then the kinds."""
    names = [name for source, given in classes.items() for name in given if not kind(source, name)]
    return (*names, *KINDS)


def joined(sets: Mapping[str, ImageSet], path: Path, *, coarse: bool, seed: int = 0) -> int:
    """Write several sets as one; returns how many photographs it has."""
    given = {source: images.classes for source, images in sets.items()}
    every = [name for classes in given.values() for name in classes]
    classes = coarse_classes(given) if coarse else tuple(every)
    if len(set(classes)) != len(classes):
        twice = next(name for name in classes if classes.count(name) > 1)
        raise InputError(f"two sets have a class {twice!r}, expected different names.")
    encoded: list[bytes] = []
    labels: list[int] = []
    ids: list[str] = []
    for source, images in sets.items():
        for i, label in enumerate(images.labels):
            name = images.classes[label]
            wanted = (kind(source, name) or name) if coarse else name
            encoded.append(images.read.encoded(i))  # type: ignore[attr-defined]
            labels.append(classes.index(wanted))
            ids.append(f"{source}/{i}")
    order = np.random.default_rng(seed).permutation(len(labels))
    write_encoded(
        path,
        [encoded[i] for i in order],
        [labels[i] for i in order],
        classes,
        ids=np.array([ids[i] for i in order]),
    )
    return len(order)


def one_test(images: ImageSet, source: str, classes: Sequence[str], path: Path) -> int:
    """Write the test photographs of one source under coarse classes."""
    names = [images.classes[label] for label in images.labels]
    write_encoded(
        path,
        [images.read.encoded(i) for i in range(len(images))],  # type: ignore[attr-defined]
        [classes.index(kind(source, name) or name) for name in names],
        classes,
        ids=np.array([f"{source}/{i}" for i in range(len(images))]),
    )
    return len(images)


def make(source: Path, out: Path) -> None:
    """Write all sets."""
    out.mkdir(parents=True, exist_ok=True)
    train, test = (
        {
            name: open_pack(source / f"photos_{name}_{part}.npz", name=name)
            for name in SOURCES
        }
        for part in ("train", "test")
    )  # fmt: skip
    plans = (
        ("photos-train", train, False), ("photos-test", test, False),
        ("photos-coarse-train", train, True),
    )  # fmt: skip
    for file, sets, coarse in plans:
        print(f"{file}.npz: {joined(sets, out / f'{file}.npz', coarse=coarse)} photographs")
    classes = coarse_classes({name: images.classes for name, images in train.items()})
    if (source / OUTSIDE).is_file() and source.resolve() != out.resolve():
        shutil.copyfile(source / OUTSIDE, out / OUTSIDE)
    for name, images in test.items():
        path = out / f"photos-coarse-test-{name}.npz"
        print(f"{path.name}: {one_test(images, name, classes, path)} photographs")


def main(arguments: Sequence[str]) -> int:
    """The command."""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        make(Path(arguments[0]), Path(arguments[1]))
    except CounterlensError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
