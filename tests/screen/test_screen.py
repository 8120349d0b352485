"""Screening against planted truth: Pillow makes the copies and the codec, numpy loops the pairs.

The copies are made from the shipped CIFAR-10 images by Pillow, which the hashes do not use;
Hamming distances are counted bit by bit; the AUROC of one feature is known in closed form.
"""

import io
import math

import numpy as np
import pytest
from PIL import Image

from counterlens.data import open_set
from counterlens.errors import InputError
from counterlens.images import Pixels
from counterlens.screen import lowlevel
from counterlens.screen.duplicates import nearest
from counterlens.screen.hashes import dhash, near, phash

MOST_BITS = 8


@pytest.fixture(scope="module")
def pictures() -> list[Pixels]:
    images = open_set("sample:cifar10", limit=300)
    return [images.read(i) for i in range(len(images))]


def resized(pixels: Pixels, side: int) -> Pixels:
    return np.asarray(Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC))


def jpeg(pixels: Pixels, quality: int) -> Pixels:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=quality)
    return np.asarray(Image.open(out))


def cropped(pixels: Pixels, share: float) -> Pixels:
    """A crop of a sharper original: the picture is blown up first, as larger files are."""
    large = resized(pixels, 256)
    cut = round(256 * share / 2)
    return resized(large[cut : 256 - cut, cut : 256 - cut], 32)


COPIES = {
    "twice the size": lambda p: resized(p, 64),
    "five times the size": lambda p: resized(p, 160),
    "a little smaller": lambda p: resized(p, 28),
    "JPEG 50": lambda p: jpeg(resized(p, 64), 50),
    "brighter": lambda p: np.clip(p * 0.9 + 20, 0, 255).astype(np.uint8),
    "two per cent cut off": lambda p: cropped(p, 0.02),
}


@pytest.mark.parametrize("hashed", [phash, dhash])
@pytest.mark.parametrize("kind", COPIES)
def test_copies_are_near_and_other_pictures_are_not(pictures, kind, hashed):
    own = [hashed(p) for p in pictures]
    pairs = near(own, [hashed(COPIES[kind](p)) for p in pictures], MOST_BITS)
    result = {i for i, j, _ in pairs if i == j}
    others = [(i, j) for i, j, _ in pairs if i != j]
    assert len(result) >= 0.9 * len(pictures)
    assert len(others) <= 1e-4 * len(pictures) ** 2


def test_a_mirrored_picture_is_another_picture(pictures):
    own = [phash(p) for p in pictures]
    pairs = near(own, [phash(p[:, ::-1]) for p in pictures], MOST_BITS)
    assert sum(i == j for i, j, _ in pairs) <= 0.03 * len(pictures)


def test_a_hash_sees_grey_and_colour_alike_and_flat_pictures_as_nothing():
    grey = np.random.default_rng(0).integers(0, 256, (40, 50, 1), dtype=np.uint8)
    assert phash(grey) == phash(np.repeat(grey, 3, axis=2))
    assert phash(np.full((7, 9, 3), 200, np.uint8)) == dhash(np.full((7, 9, 3), 3, np.uint8)) == 0


def test_a_cosine_wave_sets_the_bit_of_its_frequency():
    """A plane wave along the rows: one coefficient stands out, so its bit alone is above 0."""
    wave = np.cos(math.pi * (np.arange(32) + 0.5) / 32)  # frequency u = 1, v = 0
    pixels = np.rint(127 + 100 * np.repeat(wave[:, None, None], 32, 1)).astype(np.uint8)
    flipped = np.rint(127 - 100 * np.repeat(wave[:, None, None], 32, 1)).astype(np.uint8)
    assert phash(pixels) & 2 and not phash(flipped) & 2  # order: (0, 1), then (1, 0)


@pytest.mark.parametrize("bits", [0, 3, 8, 13, 20])
def test_near_finds_exactly_the_pairs_that_a_loop_over_bits_finds(bits, monkeypatch):
    monkeypatch.setattr("counterlens.screen.hashes._LEAST_SEARCHED", 0)
    monkeypatch.setattr("counterlens.screen.hashes._CELLS", 50)  # many small blocks
    rng = np.random.default_rng(bits)
    a = [int(x) for x in rng.integers(0, 2**64, 40, dtype=np.uint64)]
    b = [x ^ sum(1 << int(i) for i in rng.choice(64, rng.integers(0, 22), False)) for x in a]
    expected = [
        (i, j, bin(x ^ y).count("1"))
        for i, x in enumerate(a)
        for j, y in enumerate(b)
        if bin(x ^ y).count("1") <= bits
    ]
    assert near(a, b, bits) == expected


def test_near_searches_large_sets_without_comparing_all_pairs(monkeypatch):
    compared = []
    count = np.bitwise_count
    monkeypatch.setattr(np, "bitwise_count", lambda x: (compared.append(len(x)), count(x))[1])
    rng = np.random.default_rng(0)
    a = rng.integers(0, 2**64, 20_000, dtype=np.uint64)
    b = rng.integers(0, 2**64, 20_000, dtype=np.uint64)
    b[::1000] = a[::1000] ^ np.uint64(0b1101)
    assert [(i, j) for i, j, _ in near(a, b, 8)] == [(i, i) for i in range(0, 20_000, 1000)]
    assert sum(compared) < 0.02 * len(a) * len(b)


def test_near_of_nothing_is_nothing_and_nonsense_is_refused():
    assert near([], [1], 3) == []
    with pytest.raises(InputError, match="most_bits is -1"):
        near([1], [1], -1)
    with pytest.raises(InputError, match="64-bit"):
        near([-1], [1], 1)


def test_embeddings_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="equal length"):
        nearest(np.ones((2, 3)), np.ones((2, 4)))
    with pytest.raises(InputError, match="NaN"):
        nearest(np.full((1, 2), np.nan), np.ones((1, 2)))


def features(pictures: list[Pixels]) -> np.ndarray:
    return np.stack([lowlevel.features(p) for p in pictures])


def test_a_random_split_is_not_told_apart(pictures):
    known = features(pictures)
    number = lowlevel.auroc(known[::2], known[1::2], 0)
    assert number.low <= 0.5 <= number.high
    assert 0.4 < number.value < 0.6


@pytest.mark.parametrize(
    ("change", "group"),
    [
        (lambda p: jpeg(p, 60), "codec"),
        (lambda p: (p * 0.7 + 60).astype(np.uint8), "colour"),
        (lambda p: resized(resized(p, 16), 32), "edges"),
    ],
    ids=["another codec", "faded", "blurred"],
)
def test_pictures_of_another_origin_are_told_apart_and_the_group_says_how(pictures, change, group):
    known, unknown = features(pictures[::2]), features([change(p) for p in pictures[1::2]])
    assert lowlevel.auroc(known, unknown, 0).value > 0.95
    part = lowlevel.GROUPS[group]
    assert lowlevel.auroc(known[:, part], unknown[:, part], 0).value > 0.9


def test_the_auroc_of_one_gaussian_feature_is_the_closed_form():
    """Two unit Gaussians a distance d apart: AUROC = Φ(d / √2)."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(1, 1, (4000, 1)), rng.normal(0, 1, (4000, 1))
    number = lowlevel.auroc(a, b, 0)
    truth = 0.5 * (1 + math.erf(1 / math.sqrt(2) / math.sqrt(2)))
    assert number.low < truth < number.high
    assert number.high - number.low < 0.025


def test_features_have_names_and_are_finite_for_any_picture():
    rng = np.random.default_rng(0)
    for pixels in (
        np.zeros((8, 8, 3), np.uint8),
        np.full((33, 17, 1), 255, np.uint8),
        rng.integers(0, 256, (64, 40, 3), dtype=np.uint8),
    ):
        vector = lowlevel.features(pixels)
        assert vector.shape == (len(lowlevel.NAMES),)
        assert np.isfinite(vector).all()
    assert sum(len(lowlevel.NAMES[s]) for s in lowlevel.GROUPS.values()) == len(lowlevel.NAMES)


def test_features_measure_what_their_names_say():
    """Read off by hand: a red picture with a step every eight pixels."""
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[..., 0] = 40 * (np.arange(32) // 8)[None, :] + 20
    named = dict(zip(lowlevel.NAMES, lowlevel.features(pixels), strict=True))
    assert named["mean of R"] == pytest.approx(80 / 255)
    assert named["mean saturation"] == 1 and named["mean of G"] == 0
    assert named["share of R in bin 0"] == 0.25 and named["share of R in bin 4"] == 0.25
    assert named["blockiness across"] > 4 and named["blockiness down"] == 0
    assert named["share of gradients at turn 0"] == pytest.approx(1)
    assert named["zero coefficients on the grid"] == pytest.approx(63 / 64)


def test_telling_names_the_feature_that_was_moved():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 200, len(lowlevel.NAMES)))
    b[:, lowlevel.NAMES.index("noise level")] += 3
    (name, gap), *_ = lowlevel.most_different(a, b)
    assert name == "noise level" and gap > 1


def test_too_few_pictures_give_no_number_but_a_reason():
    number = lowlevel.auroc(np.zeros((3, 2)), np.zeros((50, 2)), 0)
    assert number.value is None and "only 3 pictures" in number.reason
