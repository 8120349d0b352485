"""corrupted:NAME,SEVERITY@SPEC as a set."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from counterlens.data import name_of, open_set, subset
from counterlens.data.corruptions import corrupt
from counterlens.errors import InputError
from counterlens.images import write_png


def test_the_set_keeps_images_labels_ids_and_classes() -> None:
    clean = open_set("sample:cifar10", limit=6, seed=2)
    foggy = open_set("corrupted:fog,3@sample:cifar10", limit=6, seed=2)
    assert foggy.name == name_of("corrupted:fog,3@sample:cifar10") == "fog-3"
    assert list(foggy.ids) == list(clean.ids)
    assert (foggy.labels == clean.labels).all()
    assert foggy.classes == clean.classes
    assert foggy.extra.keys() == clean.extra.keys()
    assert foggy.fingerprint != clean.fingerprint
    assert any("fog of severity 3" in note for note in foggy.notes)
    expected = corrupt(clean.read(4), "fog", 3, seed=clean.ids[4])
    assert (foggy.read(4) == expected).all()
    assert (pickle.loads(pickle.dumps(foggy.read))(4) == expected).all()


def test_draws_belong_to_the_id_and_not_to_the_order() -> None:
    noisy = open_set("corrupted:gaussian_noise,2@sample:cifar10", limit=5)
    turned = subset(noisy, np.array([4, 2, 0]))
    assert (turned.read(2) == noisy.read(0)).all()
    assert (turned.read(0) == noisy.read(4)).all()
    flat = np.full((32, 32, 3), 90, dtype=np.uint8)
    one, two = (corrupt(flat, "gaussian_noise", 2, seed=i) for i in list(noisy.ids)[:2])
    assert (one != two).any()


def test_a_name_may_be_given_and_corruptions_may_be_stacked() -> None:
    spec = "bad=corrupted:contrast,2@corrupted:gaussian-noise,1@sample:cifar10"
    both = open_set(spec, limit=2)
    inner = open_set("corrupted:gaussian_noise,1@sample:cifar10", limit=2)
    assert both.name == "bad"
    assert (both.read(1) == corrupt(inner.read(1), "contrast", 2)).all()


def test_noise_can_be_corrupted_too() -> None:
    made = open_set("corrupted:pixelate,5@noise:uniform", limit=3, size=(16, 16))
    assert len(made) == 3
    assert made.read(0).shape == (16, 16, 3)


def test_a_large_photograph_is_reduced_to_a_short_side_of_256(tmp_path: Path) -> None:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3)).astype(np.uint8)
    write_png(tmp_path / "photos" / "cat" / "a.png", pixels)
    made = open_set(f"corrupted:contrast,1@{tmp_path / 'photos'}")
    assert made.read(0).shape == (256, 341, 3)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("corrupted:fgo,3@sample:cifar10", "fgo is no corruption .did you mean fog"),
        ("corrupted:fog,0@sample:cifar10", "fog has no severity 0, expected 1, 2, 3, 4 or 5"),
        ("corrupted:fog,6@sample:cifar10", "fog has no severity 6"),
        ("corrupted:fog,-1@sample:cifar10", "fog has no severity -1"),
        ("corrupted:fog@sample:cifar10", "not whole, expected corrupted:NAME,SEVERITY@SPEC"),
        ("corrupted:fog,3", "not whole, expected corrupted:NAME,SEVERITY@SPEC"),
        ("corrupted:fog,high@sample:cifar10", "not whole"),
        ("corrupted:fog,3@gone", "gone does not exist"),
        ("corrupted:", "names no set"),
    ],
)
def test_a_mistyped_spec_is_refused_in_one_line(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        open_set(spec)
    assert "\n" not in str(caught.value)
