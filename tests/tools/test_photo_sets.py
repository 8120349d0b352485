"""Joined sets of photographs against the sets they come from, photograph by photograph."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from counterlens.data import open_set
from counterlens.data.sources.packed import write_pack
from counterlens.errors import InputError

FILE = Path(__file__).parents[2] / "tools" / "photo_sets.py"
CLASSES = {
    "imagenette": ("tench", "English springer", "church"),
    "imagewoof": ("beagle", "dingo"),
    "pets": ("Bengal cat", "beagle dog"),
}


@pytest.fixture(scope="module")
def photo_sets():
    spec = importlib.util.spec_from_file_location("photo_sets", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def source(tmp_path):
    rng = np.random.default_rng(0)
    for name, classes in CLASSES.items():
        for part, each in (("train", 4), ("test", 2)):
            labels = np.repeat(np.arange(len(classes)), each)
            pictures = [rng.integers(0, 256, (8, 8, 3), dtype=np.uint8) for _ in labels]
            write_pack(tmp_path / f"photos_{name}_{part}.npz", pictures, labels, classes)
    return tmp_path


def test_every_photograph_is_in_the_joined_sets_once_with_its_class(photo_sets, source, tmp_path):
    out = tmp_path / "out"
    photo_sets.make(source, out)
    fine, coarse = (open_set(f"pack:{out}/photos{part}-train.npz") for part in ("", "-coarse"))
    assert fine.classes == tuple(name for names in CLASSES.values() for name in names)
    assert coarse.classes == ("tench", "church", "dog", "cat")
    sets = {name: open_set(f"pack:{source}/photos_{name}_train.npz") for name in CLASSES}
    assert len(set(fine.ids)) == len(fine) == sum(map(len, sets.values()))
    assert list(fine.ids) != sorted(fine.ids)  # in random order
    dogs = {"English springer", "beagle", "dingo", "beagle dog"}
    for row, one in enumerate(fine.ids):
        name, place = one.split("/")
        own = sets[name].classes[sets[name].labels[int(place)]]
        assert fine.classes[fine.labels[row]] == own
        assert np.array_equal(fine.read(row), sets[name].read(int(place)))
        row = coarse.ids.index(one)
        wanted = "dog" if own in dogs else "cat" if own == "Bengal cat" else own
        assert coarse.classes[coarse.labels[row]] == wanted


def test_test_photographs_keep_their_order_under_the_coarse_classes(photo_sets, source, tmp_path):
    photo_sets.make(source, tmp_path / "out")
    pets = open_set(f"pack:{tmp_path}/out/photos-coarse-test-pets.npz")
    assert [pets.classes[label] for label in pets.labels] == ["cat", "cat", "dog", "dog"]
    own = open_set(f"pack:{source}/photos_pets_test.npz")
    assert np.array_equal(pets.read(3), own.read(3))


def test_breeds_without_a_kind_and_missing_files_are_one_line(photo_sets, tmp_path, capsys):
    with pytest.raises(InputError, match="'lynx' ends in neither dog nor cat"):
        photo_sets.kind("pets", "lynx")
    assert photo_sets.main([str(tmp_path), str(tmp_path / "out")]) == 2
    assert "does not exist" in capsys.readouterr().err
