"""Public data sets by name, in the layouts in which people have them: `known:NAME[/PART]@ROOT`.

Nothing is downloaded. A new set is one line in KNOWN and, where its layout is new, one reader.
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from counterlens.data.layout import Missing
from counterlens.data.sources import known_arrays, known_folders, known_lists
from counterlens.data.sources.known_folders import relative
from counterlens.errors import InputError
from counterlens.images import ImageSet
from counterlens.runs import user_path


@dataclass(frozen=True)
class KnownSet:
    """How a public data set is read.

    Args:
        read: (root, part) → set; raises Missing where the layout does not fit.
        layout: what lies below the root, for the user.
        parts: splits or variants, the default first; empty where the reader knows them itself.
    """

    read: Callable[[Path, str], ImageSet]
    layout: str
    parts: tuple[str, ...] = ("test", "train")


VAL = ("val", "train")
NINE_VARIANTS = (
    *("original", "mixed_same", "mixed_rand", "mixed_next"),
    *("only_fg", "no_fg", "only_bg_b", "only_bg_t", "fg"),
)
WNIDS = "a folder per WordNet id (n01440764/…)"
ILSVRC = f"val/ with {WNIDS}, or flat with val.txt or LOC_val_solution.csv beside it"

KNOWN: dict[str, KnownSet] = {
    "cifar10": KnownSet(known_arrays.cifar10, "cifar-10-batches-py/test_batch"),
    "cifar100": KnownSet(known_arrays.cifar100, "cifar-100-python/test"),
    "cifar10.1": KnownSet(
        known_arrays.cifar10_1,
        "cifar10.1_v6_data.npy and cifar10.1_v6_labels.npy",
        ("v6", "v4"),
    ),
    "cifar10-c": KnownSet(known_arrays.cifar10_c, "CIFAR-10-C/fog.npy … and labels.npy", ()),
    "cifar100-c": KnownSet(known_arrays.cifar100_c, "CIFAR-100-C/fog.npy … and labels.npy", ()),
    "svhn": KnownSet(known_arrays.svhn, "test_32x32.mat", ("test", "train", "extra")),
    "mnist": KnownSet(known_arrays.mnist, "MNIST/raw/t10k-images-idx3-ubyte[.gz], or mnist.npz"),
    "fashion-mnist": KnownSet(
        known_arrays.fashion_mnist, "FashionMNIST/raw/t10k-images-idx3-ubyte[.gz]"
    ),
    "imagenet": KnownSet(known_folders.imagenet_split, ILSVRC, VAL),
    "imagenet-200": KnownSet(known_folders.imagenet_subset, ILSVRC, ("a200", "o200", "r200")),
    "imagenet-minus-cifar10": KnownSet(known_folders.imagenet_minus_cifar10, ILSVRC, VAL),
    "restricted-imagenet": KnownSet(
        known_folders.restricted_imagenet, ILSVRC, (*VAL, "val-out", "train-out")
    ),
    "imagenet-mini": KnownSet(known_folders.imagenet_split, f"val/ with {WNIDS}", VAL),
    "imagenet-a": KnownSet(relative("imagenet-a", space="imagenet-a"), WNIDS, ("test",)),
    "imagenet-o": KnownSet(relative("imagenet-o", space="imagenet-o"), WNIDS, ("test",)),
    "imagenet-r": KnownSet(relative("imagenet-r", space="imagenet-r"), WNIDS, ("test",)),
    "imagenet-c": KnownSet(
        known_folders.imagenet_c,
        f"fog/3/ or weather/fog/3/ … with {WNIDS}, named as imagenet-c/fog/3",
        (),
    ),
    "imagenet-sketch": KnownSet(relative("sketch", "imagenet-sketch"), WNIDS, ("test",)),
    "stylized-imagenet": KnownSet(relative("{part}"), f"val/ with {WNIDS}", VAL),
    "stylized-imagenet-16": KnownSet(
        known_folders.sixteen_folders, "a folder per category: airplane … truck", ("test",)
    ),
    "imagenet-9": KnownSet(
        known_folders.imagenet9, "bg_challenge/VARIANT/val/00_dog … 08_fish", NINE_VARIANTS
    ),
    "cue-conflict": KnownSet(
        known_folders.cue_conflict,
        "a folder per shape: cat/cat7-elephant1.png",
        ("test",),
    ),
    "lsun-classroom": KnownSet(
        known_folders.lsun_classroom, "classroom_val/ with picture files", ("val", "32")
    ),
    "flowers102": KnownSet(
        known_lists.flowers102,
        "flowers-102/ with jpg/, imagelabels.mat and setid.mat",
        ("test", "val", "train"),
    ),
    "food101": KnownSet(known_lists.food101, "food-101/ with images/ and meta/test.txt"),
    "aircraft": KnownSet(
        known_lists.aircraft,
        "fgvc-aircraft-2013b/data/ with images/ and images_variant_test.txt",
        ("test", "train", "val", "trainval"),
    ),
    "cars": KnownSet(
        known_lists.cars,
        "stanford_cars/ with cars_test/, cars_test_annos_withlabels.mat and devkit/cars_meta.mat",
    ),
    "cub200": KnownSet(known_lists.cub200, "CUB_200_2011/ with images/ and images.txt"),
    "dtd": KnownSet(
        known_lists.dtd, "dtd/ with images/ and labels/test1.txt", ("test", "val", "train")
    ),
    "places365": KnownSet(
        known_lists.places365,
        "val_256/, places365_val.txt and categories_places365.txt",
        ("val",),
    ),
}


def open_known(text: str, *, name: str) -> ImageSet:
    """`NAME[/PART]@ROOT`: a public data set below the folder ROOT."""
    words, _, where = text.partition("@")
    which, _, part = words.partition("/")
    if which not in KNOWN:
        near = difflib.get_close_matches(which.lower(), KNOWN, 3, 0.4)
        hint = f"near names: {', '.join(near)}" if near else f"known: {', '.join(KNOWN)}"
        raise InputError(f"known:{which} is not a known data set; {hint}.")
    known = KNOWN[which]
    if not where:
        raise InputError(
            f"known:{words} names no folder: type known:{words}@ROOT, {_layout(known)}"
        )
    if known.parts:
        part = part or known.parts[0]
        if part not in known.parts:
            raise InputError(
                f"known:{which} has no part {part}, expected one of {', '.join(known.parts)}."
            )
    root = user_path(where)
    if not root.exists():
        raise InputError(f"{root} does not exist: type known:{words}@ROOT, {_layout(known)}")
    try:
        return replace(known.read(root, part), name=name)
    except Missing as missing:
        raise InputError(
            f"known:{words}: {missing.path} is missing. Give known:{words}@ROOT, {_layout(known)}"
        ) from None
    except (KeyError, IndexError, ValueError) as odd:  # a list or table with other contents
        raise InputError(
            f"known:{words}: the lists below {root} are not as expected ({odd!r:.80}), "
            f"{_layout(known)}"
        ) from None


def _layout(known: KnownSet) -> str:
    return f"where ROOT holds {known.layout}."
