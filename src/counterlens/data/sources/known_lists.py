"""Public data sets whose labels and splits come in lists beside a folder of pictures."""

from pathlib import Path
from typing import Any

import numpy as np

from counterlens.data.layout import Missing, below, lines
from counterlens.data.sets import file_set
from counterlens.errors import InputError
from counterlens.images import ImageSet


def flowers102(root: Path, part: str) -> ImageSet:
    """Oxford Flowers: imagelabels.mat and setid.mat beside jpg/; classes 1 … 102."""
    place = below(root, "flowers-102", ".")
    labels = _mat(below(place, "imagelabels.mat"))["labels"].reshape(-1)
    key = {"train": "trnid", "val": "valid", "test": "tstid"}[part]
    numbers = _mat(below(place, "setid.mat"))[key].reshape(-1)
    files = [f"jpg/image_{number:05d}.jpg" for number in numbers]
    marks = [int(labels[number - 1]) - 1 for number in numbers]
    return file_set("flowers102", place, files, marks, [str(k) for k in range(1, 103)])


def food101(root: Path, part: str) -> ImageSet:
    """Food-101: meta/test.txt lists class/number."""
    place = below(root, "food-101", ".")
    listed = lines(place / "meta" / f"{part}.txt")
    return _by_folder("food101", place, [f"images/{name}.jpg" for name in listed])


def dtd(root: Path, part: str) -> ImageSet:
    """Describable textures: labels/test1.txt lists banded/banded_0002.jpg; split 1."""
    place = below(root, "dtd/dtd", "dtd", ".")
    listed = lines(place / "labels" / f"{part}1.txt")
    return _by_folder("dtd", place, [f"images/{name}" for name in listed])


def aircraft(root: Path, part: str) -> ImageSet:
    """FGVC-Aircraft by variant: data/images_variant_test.txt lists number and variant."""
    place = below(root, "fgvc-aircraft-2013b/data", "data", ".")
    pairs = [line.split(" ", 1) for line in lines(place / f"images_variant_{part}.txt")]
    listed = place / "variants.txt"
    classes = lines(listed) if listed.is_file() else sorted({variant for _, variant in pairs})
    number = {name: k for k, name in enumerate(classes)}
    files = [f"images/{name}.jpg" for name, _ in pairs]
    return file_set("aircraft", place, files, [number[v] for _, v in pairs], classes)


def cars(root: Path, part: str) -> ImageSet:
    """Stanford Cars as torchvision lays it out: cars_test/ and cars_test_annos_withlabels.mat."""
    place = below(root, "stanford_cars", ".")
    name = "cars_test_annos_withlabels.mat" if part == "test" else "devkit/cars_train_annos.mat"
    rows = _mat(below(place, name))["annotations"].reshape(-1)
    meta = _mat(below(place, "devkit/cars_meta.mat"))["class_names"].reshape(-1)
    classes = [str(np.asarray(c).reshape(-1)[0]) for c in meta]
    files = [f"cars_{part}/{np.asarray(row['fname']).reshape(-1)[0]}" for row in rows]
    marks = [int(np.asarray(row["class"]).reshape(-1)[0]) - 1 for row in rows]
    return file_set("cars", place, files, marks, classes)


def cub200(root: Path, part: str) -> ImageSet:
    """CUB-200-2011: images.txt, image_class_labels.txt, train_test_split.txt, classes.txt."""
    place = below(root, "CUB_200_2011", ".")
    path = dict(line.split(" ", 1) for line in lines(place / "images.txt"))
    label = dict(line.split(" ", 1) for line in lines(place / "image_class_labels.txt"))
    train = dict(line.split(" ", 1) for line in lines(place / "train_test_split.txt"))
    classes = [line.split(" ", 1)[1] for line in lines(place / "classes.txt")]
    wanted = "1" if part == "train" else "0"
    keys = [key for key in path if train.get(key) == wanted]
    marks = [int(label[key]) - 1 for key in keys]
    return file_set("cub200", place, [f"images/{path[key]}" for key in keys], marks, classes)


def places365(root: Path, part: str) -> ImageSet:
    """Places365 validation: val_256/, places365_val.txt, categories_places365.txt."""
    classes = [
        line.split()[0].removeprefix("/")[2:] for line in lines(root / "categories_places365.txt")
    ]
    pairs = [line.split() for line in lines(root / "places365_val.txt")]
    folder = below(root, "val_256", "val_large").name
    files = [f"{folder}/{name}" for name, _ in pairs]
    return file_set("places365", root, files, [int(label) for _, label in pairs], classes)


def _by_folder(name: str, place: Path, files: list[str]) -> ImageSet:
    """Pictures listed as images/CLASS/FILE."""
    folders = [file.split("/")[1] for file in files]
    classes = sorted(set(folders))
    number = {folder: k for k, folder in enumerate(classes)}
    return file_set(name, place, files, [number[folder] for folder in folders], classes)


def _mat(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    if not path.is_file():
        raise Missing(path)
    try:
        contents: dict[str, Any] = loadmat(path)
    except Exception as error:  # scipy's reader raises almost anything on a damaged file
        raise InputError(f"{path} is not a whole MATLAB file ({error}).") from None
    return contents
