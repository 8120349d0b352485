"""Columns to group by, against values written into manifests, paths, EXIF and pixels by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from counterlens.data import open_set, write_pack
from counterlens.data.columns import MASK_MEASURES, column_values, texts
from counterlens.errors import InputError


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Four grey pictures, two folders deep, with EXIF; one has no camera."""
    for k, (folder, grey) in enumerate(
        [("cat/home", 30), ("cat/street", 90), ("dog/home", 150), ("dog/street", 210)]
    ):
        path = tmp_path / "photos" / folder / f"{k}.jpg"
        path.parent.mkdir(parents=True)
        exif = Image.Exif()
        if k < 3:
            exif[0x0110] = "old camera" if k < 2 else "new camera"
        exif.get_ifd(0x8769)[0x8827] = 100 * (k + 1)
        Image.new("RGB", (8, 4), (grey, grey, grey)).save(path, exif=exif)
    return tmp_path / "photos"


def test_folders_class_exif_and_pixels_give_columns(photos: Path) -> None:
    images = open_set(str(photos))
    assert column_values(images, "class") == ["cat", "cat", "dog", "dog"]
    assert column_values(images, "folder:2") == ["home", "street", "home", "street"]
    assert column_values(images, "exif:Model") == ["old camera"] * 2 + ["new camera", None]
    assert column_values(images, "exif:ISOSpeedRatings") == ["100", "200", "300", "400"]
    bright = [float(str(value)) for value in column_values(images, "image:brightness")]
    assert bright == pytest.approx([grey / 255 for grey in (30, 90, 150, 210)], abs=0.01)


def test_a_column_of_a_manifest_keeps_its_words_and_its_gaps(photos: Path) -> None:
    files = sorted(str(path.relative_to(photos)) for path in photos.rglob("*.jpg"))
    lines = [
        f"{file},{label},{site}"
        for file, label, site in zip(files, "ccdd", ["A", "", "B", "A"], strict=True)
    ]
    (photos / "list.csv").write_text("path,label,site\n" + "\n".join(lines))
    images = open_set(str(photos / "list.csv"))
    assert column_values(images, "site") == ["A", None, "B", "A"]


def test_masks_of_a_pack_give_areas(tmp_path: Path) -> None:
    masks = np.zeros((4, 10, 10), bool)
    for k in range(4):
        masks[k, : 2 * k] = True
    pictures = [np.zeros((10, 10, 3), np.uint8)] * 4
    write_pack(tmp_path / "p.npz", pictures, [0, 1, 0, 1], ["a", "b"])
    images = open_set(f"pack:{tmp_path / 'p.npz'}")
    images = replace(images, extra={"mask": masks})
    assert column_values(images, "mask:area") == ["0.0", "0.2", "0.4", "0.6"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("sitte", "Did you mean site"),
        ("folder:7", "3 folders deep|2 folders deep|1 folders deep|0 folders deep"),
        ("folder:x", "expected folder:1"),
        ("exif:Modell", "Did you mean Model"),
        ("image:beauty", "expected one of brightness"),
        ("mask:area", "no masks of its own"),
        ("mask:size", "expected one of area"),
        ("path", "has no column"),
    ],
)
def test_what_is_no_column_is_refused_with_what_there_is(
    photos: Path, name: str, told: str
) -> None:
    images = open_set(str(photos))
    images = replace(images, extra={"site": np.array(list("ABAB"), dtype=object)})
    with pytest.raises(InputError, match=told):
        column_values(images, name)


def test_one_value_and_too_many_values_are_refused_and_numbers_become_bands() -> None:
    with pytest.raises(InputError, match="one value over all"):
        texts(["A"] * 5, "site")
    with pytest.raises(InputError, match="no value over all"):
        texts(["", None], "site")
    with pytest.raises(InputError, match="101 different values"):
        texts([f"x{i}" for i in range(101)], "site")
    ages = texts([float(i) for i in range(99)], "age")
    assert [ages.count(name) for name in sorted({str(a) for a in ages})] == [33, 33, 33]
    assert texts([1.5, float("nan"), 2.5], "age") == ["1.5", None, "2.5"]


def test_the_pose_of_an_object_by_its_mask():
    """By hand: a box of 2 × 4 in the upper left corner of 8 × 8 pixels."""
    mask = np.zeros((8, 8), dtype=bool)
    mask[:2, :4] = True
    found = {name: measure(mask) for name, measure in MASK_MEASURES.items()}
    assert found["area"] == 8 / 64
    assert found["aspect"] == 2.0
    assert found["offset"] == pytest.approx(np.hypot(3, 2) / np.hypot(3.5, 3.5))
    assert found["edge"] == 5 / 28  # four above, two at the left, one of them in the corner
    empty = np.zeros((8, 8), dtype=bool)
    assert np.isnan(MASK_MEASURES["aspect"](empty)) and np.isnan(MASK_MEASURES["offset"](empty))
