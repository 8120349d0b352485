"""Public data sets that come as folders: ImageNet and its relatives, cue conflict, LSUN."""

import csv
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from counterlens.data.layout import Missing, below, lines
from counterlens.data.sets import file_set, subset
from counterlens.data.sources.folders import open_folder, walk
from counterlens.errors import InputError
from counterlens.images import ImageSet, Pixels, resize
from counterlens.label_spaces import imagenet, members
from counterlens.label_spaces.imagenet import by_wnid
from counterlens.label_spaces.maps import NINE, RESTRICTED, SIXTEEN

WNID_FOLDER = re.compile(r"n\d{8}")
PLACES = ("", "ILSVRC/Data/CLS-LOC/", "Data/CLS-LOC/", "imagenet-mini/", "ILSVRC2012/")


def imagenet_split(root: Path, part: str) -> ImageSet:
    """ILSVRC-2012: a folder per WordNet id, or the flat validation folder and its list."""
    for place in [root / f"{place}{part}" for place in PLACES] + [root]:
        if place.is_dir() and any(WNID_FOLDER.fullmatch(f.name) for f in place.iterdir()):
            return by_wnid_folder(place)
    if part == "val":
        return _flat_validation(root)
    raise Missing(root / part / "n01440764")


def by_wnid_folder(folder: Path, space: str | None = None) -> ImageSet:
    """A folder per WordNet id; classes are called by id and name."""
    if not folder.is_dir() or not any(entry.is_dir() for entry in folder.iterdir()):
        raise Missing(folder / "n01440764")
    opened = open_folder(folder, name=folder.name, space=space)
    unknown = [c for c in opened.classes if c not in by_wnid() and not WNID_FOLDER.fullmatch(c)]
    if unknown or not opened.classes:
        raise InputError(
            f"{folder} has folders such as {', '.join(unknown[:3]) or '(none)'}, expected WordNet "
            "ids such as n01440764."
        )
    return replace(opened, classes=tuple(map(_titled, opened.classes)))


def wnid_set(root: Path, part: str, *, places: tuple[str, ...], space: str | None) -> ImageSet:
    """One of ImageNet's relatives, in its own folder or as the root itself."""
    return by_wnid_folder(below(root, *(place.format(part=part) for place in places)), space)


def imagenet_c(root: Path, part: str) -> ImageSet:
    """ImageNet-C: `fog/3` is one corruption at one severity, with or without its group's folder."""
    corruption, _, severity = (part or "fog/3").partition("/")
    groups = ("", "blur/", "noise/", "weather/", "digital/", "extra/")
    places = [f"{group}{corruption}/{severity}" for group in groups]
    places += [f"ImageNet-C/{place}" for place in places]
    if not part:  # whether the files are there at all comes before which of them
        below(root, *places)
    if not part or severity not in ("1", "2", "3", "4", "5"):
        raise InputError(
            f"ImageNet-C has no part {part or '(none named)'}, expected CORRUPTION/1 … "
            "CORRUPTION/5, such as fog/3."
        )
    return by_wnid_folder(below(root, *places))


def imagenet_subset(root: Path, part: str) -> ImageSet:
    """ImageNet validation images of the 200 classes of ImageNet-A, -O or -R."""
    space = {"a200": "imagenet-a", "o200": "imagenet-o", "r200": "imagenet-r"}[part]
    chosen = _only(imagenet_split(root, "val"), set(members(space)).__contains__)
    return replace(chosen, space=space)


def imagenet_minus_cifar10(root: Path, part: str) -> ImageSet:
    """ImageNet without the classes that show one of CIFAR-10's."""
    shown = {synset.wnid for synset in imagenet() if synset.cifar10}
    return _only(imagenet_split(root, part), lambda wnid: wnid not in shown)


def restricted_imagenet(root: Path, part: str) -> ImageSet:
    """Nine super-classes made of ranges of ImageNet's classes; `out` are all the others."""
    group = {
        imagenet()[i].wnid: k
        for k, (low, high) in enumerate(RESTRICTED.values())
        for i in range(low, high + 1)
    }
    split, _, outside = part.partition("-")
    base = imagenet_split(root, split)
    if outside:
        return _only(base, lambda wnid: wnid not in group)
    inside = _only(base, group.__contains__)
    to_group = np.array([group[c.split()[0]] for c in inside.classes])
    return replace(
        inside,
        labels=to_group[inside.labels],
        classes=tuple(RESTRICTED),
        space="restricted-imagenet",
        fingerprint=f"{inside.fingerprint}-restricted",
    )


def imagenet9(root: Path, part: str) -> ImageSet:
    """The background challenge: folders such as 02_wheeled vehicle in each variant."""
    place = below(root, f"bg_challenge/{part}", part)
    opened = open_folder(below(place, "val", "."), name=part)
    numbers = [re.match(r"0?([0-8])[_ ]", name) for name in opened.classes]
    if not all(numbers):
        raise InputError(
            f"{place} has folders {', '.join(opened.classes[:3])}, expected 00_dog … 08_fish."
        )
    of = np.array([int(number[1]) for number in numbers if number])
    return replace(opened, labels=of[opened.labels], classes=NINE, space="imagenet-9")


def cue_conflict(root: Path, part: str) -> ImageSet:
    """Shape in the folder's name, texture in the file's: cat/cat7-elephant1.png."""
    place = below(root, "style-transfer-preprocessed-512", "stimuli/style-transfer", ".")
    files = [f for shape in SIXTEEN if (place / shape).is_dir() for f in walk(place, shape)]
    if not files:
        raise Missing(place / "airplane")
    textures = []
    for file in files:
        texture = re.search(r"-([a-z]+)\d*\.\w+$", file)
        if not texture or texture[1] not in SIXTEEN:
            raise InputError(f"{place / file} names no texture, expected e.g. cat7-elephant1.png.")
        textures.append(SIXTEEN.index(texture[1]))
    shapes = [SIXTEEN.index(file.split("/")[0]) for file in files]
    opened = file_set("cue-conflict", place, files, shapes, SIXTEEN, space="cue-conflict")
    return replace(opened, extra={"texture_labels": np.array(textures)})


def sixteen_folders(root: Path, part: str) -> ImageSet:
    """Stylised pictures in a folder per category of the 16-class set."""
    if not any((root / category).is_dir() for category in SIXTEEN):
        raise Missing(root / "airplane")
    return open_folder(root, name=part, space="stylized-imagenet-16")


def lsun_classroom(root: Path, part: str) -> ImageSet:
    """LSUN classrooms as picture files; part 32 squashes them as the RATIO paper does."""
    place = below(root, "classroom_val", "classroom", ".")
    if (place / "data.mdb").exists() or (root / "classroom_val_lmdb").exists():
        raise InputError(f"{root} holds an LMDB database. Export it to picture files first.")
    files = walk(place)
    if not files:
        raise Missing(place / "classroom_val")
    opened = file_set("lsun-classroom", place, files, [0] * len(files), ["classroom"])
    if part != "32":
        return opened
    return replace(opened, read=Squashed(opened.read, (32, 32)))


@dataclass(frozen=True)
class Squashed:
    """Picture i of another set, resized without keeping its aspect."""

    base: Callable[[int], Pixels]
    size: tuple[int, int]

    def __call__(self, i: int) -> Pixels:
        return resize(self.base(i), self.size, "bilinear")


def _flat_validation(root: Path) -> ImageSet:
    """ILSVRC2012_val_00000001.JPEG …, with val.txt (name, label) or Kaggle's solution file."""
    place = below(root, *(f"{p}val" for p in PLACES if (root / f"{p}val").is_dir()), ".")
    by_file: dict[str, int] = {}
    listed = [root / "val.txt", place / "val.txt", root / "LOC_val_solution.csv"]
    source = next((path for path in listed if path.is_file()), None)
    if source is None:
        raise Missing(root / "val" / "n01440764")
    if source.suffix == ".txt":
        pairs: Iterable[tuple[str, ...]] = (tuple(line.split()[:2]) for line in lines(source))
        by_file = {Path(name).name: int(label) for name, label in pairs}
    else:
        with source.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                by_file[f"{row['ImageId']}.JPEG"] = by_wnid()[row["PredictionString"].split()[0]]
    files = [name for name in sorted(by_file) if (place / name).is_file()]
    if not files:
        raise Missing(place / "ILSVRC2012_val_00000001.JPEG")
    names = [_titled(synset.wnid) for synset in imagenet()]
    return file_set("imagenet", place, files, [by_file[name] for name in files], names)


def _only(base: ImageSet, keep: Callable[[str], bool]) -> ImageSet:
    """The set with the classes that `keep` accepts."""
    chosen = [k for k, name in enumerate(base.classes) if keep(name.split()[0])]
    place = np.full(len(base.classes) + 1, -1)
    place[chosen] = np.arange(len(chosen))
    rows = np.flatnonzero(place[base.labels] >= 0)
    if not len(rows):
        raise InputError("none of the classes of this set are in the folder.")
    part = subset(base, rows)
    return replace(part, labels=place[part.labels], classes=tuple(base.classes[k] for k in chosen))


def _titled(wnid: str) -> str:
    label = by_wnid().get(wnid)
    return wnid if label is None else f"{wnid} {imagenet()[label].names[0]}"


def relative(*places: str, space: str | None = None) -> Callable[[Path, str], ImageSet]:
    """A reader for one of ImageNet's relatives."""
    return partial(wnid_set, places=(*places, "."), space=space)
