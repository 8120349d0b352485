"""Coloured, Double-coloured and Wildlife MNIST.

Oracles: the rules of the papers written out again here, picture by picture; χ² by hand.
"""

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from counterlens import zoo
from counterlens.data import open_set
from counterlens.data.sources.packed import write_pack
from counterlens.data.synthetic import digit_factors as factors
from counterlens.data.synthetic.mnist_variants import WHICH, independence, variant
from counterlens.errors import InputError

DIGITS = factors.open_digits("sample:mnist")


@pytest.fixture(scope="module")
def sets():
    return {
        (which, part): variant(which, part, DIGITS) for which in WHICH for part in ("train", "test")
    }


def test_digits_grow_to_32_by_their_nearest_neighbour():
    small = np.arange(784, dtype=np.uint8).reshape(1, 28, 28)
    large = factors.enlarged(small)
    for y in range(32):
        for x in range(32):
            assert large[0, y, x] == small[0, int((y + 0.5) * 0.875), int((x + 0.5) * 0.875)]


def test_the_splits_are_those_of_the_papers(sets):
    assert len(sets["coloured", "train"]) == 3000 and len(sets["coloured", "test"]) == 1000
    for which in ("double-coloured", "wildlife"):
        train, test = sets[which, "train"], sets[which, "test"]
        assert (len(train), len(test)) == (2500, 500)
        assert test.digits.ids[0] == "mnist-train/2500"  # the last sixth of the training digits


def test_training_factors_are_determined_and_test_factors_independent(sets):
    for (which, part), split in sets.items():
        rows = independence(split)
        assert len(rows) == (1 if which == "coloured" else 3)
        for row in rows:
            if part == "train":
                assert row["chi2"] == pytest.approx(9 * len(split))
            else:
                assert row["p"] > 1e-3, (which, row)


def test_chi_squared_is_the_sum_over_the_table(sets):
    split = sets["double-coloured", "test"]
    observed = np.zeros((10, 10))
    for label, colour in zip(split.digits.labels, split.object, strict=True):
        observed[label, colour] += 1
    expected = np.outer(observed.sum(1), observed.sum(0)) / observed.sum()
    wanted = ((observed - expected) ** 2 / expected).sum()
    assert independence(split)[0]["chi2"] == pytest.approx(wanted)


def test_coloured_digits_are_grey_times_one_colour_near_the_mean(sets):
    split = sets["coloured", "train"]
    x = split.render(np.arange(200))
    grey = torch.from_numpy(split.digits.grey[:200])[:, None].float() / 255
    colour = x.flatten(2).amax(2) / grey.flatten(2).amax(2)
    torch.testing.assert_close(x, grey * colour[:, :, None, None], rtol=0, atol=1e-5)
    means = torch.tensor(factors.COLOURED)[split.labels[:200]] / 255
    inner = (means > 0.35) & (means < 0.65)  # where clipping does not bite
    assert (colour - means)[inner].std() == pytest.approx(0.02**0.5, rel=0.25)


def test_double_coloured_pictures_have_two_colours_with_faint_noise(sets):
    split = sets["double-coloured", "test"]
    x = split.render(np.arange(100))
    for i in range(100):
        front = torch.from_numpy(split.digits.grey[i] / 255 > 0.1)
        inside, outside = x[i][:, front], x[i][:, ~front]
        for part, palette, chosen in (
            (inside, factors.DOUBLE_OBJECT, split.object[i]),
            (outside, factors.DOUBLE_BACKGROUND, split.background[i]),
        ):
            assert (part == part[:, :1]).all()
            gap = part[:, 0] - torch.tensor(palette[chosen]) / 255
            assert 0 < gap.abs().max() < 0.06
    assert x.min() < 0 and x.max() > 1  # no clamp
    assert factors.DOUBLE_OBJECT[6] == factors.DOUBLE_BACKGROUND[0]
    assert factors.DOUBLE_OBJECT[0] == factors.DOUBLE_BACKGROUND[4]


def test_a_digit_on_its_own_colour_can_be_found_by_its_noise(sets):
    split = sets["double-coloured", "test"]
    same = np.asarray(factors.DOUBLE_OBJECT)[split.object]
    rows = np.flatnonzero((same == np.asarray(factors.DOUBLE_BACKGROUND)[split.background]).all(1))
    assert 0.05 < len(rows) / len(split) < 0.15
    x = split.pixels(rows).int()
    digit = torch.from_numpy(split.digits.grey[rows] / 255 > 0.1)
    differs = (x != x[:, :, :1, :1]).any(1)  # from the corner, which is background
    assert (differs == digit).flatten(1).all(1).float().mean() > 0.9


def test_wildlife_pictures_are_crops_of_the_padded_textures(sets):
    split = sets["wildlife", "test"]
    front, behind, _ = factors.open_textures(None)
    x = split.render(np.arange(20))
    for i in range(20):
        pad = ((3, 3), (3, 3), (0, 0))
        wide = [
            np.pad(table[chosen], pad, mode="reflect") / 255
            for table, chosen in ((front, split.object[i]), (behind, split.background[i]))
        ]
        (oy, ox), (by, bx) = split.object_place[i], split.background_place[i]
        crops = wide[0][oy : oy + 32, ox : ox + 32], wide[1][by : by + 32, bx : bx + 32]
        mask = (split.digits.grey[i] / 255 > 0.1)[..., None]
        wanted = np.where(mask, *crops).transpose(2, 0, 1)
        np.testing.assert_allclose(x[i].numpy(), wanted, atol=1e-6)
    assert split.object_place.max() <= 124


def test_a_mask_belongs_to_its_own_picture(sets):
    for which in WHICH:
        split = sets[which, "test"]
        changed = split.render(np.arange(50), object=(split.object[:50] + 1) % 10)
        moved = (changed - split.render(np.arange(50))).abs().amax(1) > 1e-4
        masks = split.masks[:50]
        assert not (moved & ~(torch.from_numpy(split.digits.grey[:50]) > 0)).any()
        assert (moved & masks).sum() > 0.95 * masks.sum()


def test_the_same_seed_gives_the_same_pictures_and_another_one_others():
    one, two, other = (variant("wildlife", "test", DIGITS, seed=s) for s in (3, 3, 4))
    assert torch.equal(one.pixels(), two.pixels()) and one.fingerprint == two.fingerprint
    assert not torch.equal(one.pixels(), other.pixels())
    assert one.fingerprint != other.fingerprint


def idx(path: Path, values: np.ndarray) -> None:
    head = struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}i", *values.shape)
    path.write_bytes(gzip.compress(head + values.tobytes()))


def test_full_mnist_is_read_from_its_own_files_and_a_cut_one_is_refused(tmp_path, rng):
    for stem in ("train", "t10k"):
        idx(tmp_path / f"{stem}-images-idx3-ubyte.gz", np.zeros((12, 28, 28), np.uint8))
        idx(tmp_path / f"{stem}-labels-idx1-ubyte.gz", np.arange(12, dtype=np.uint8) % 10)
    train, test = factors.open_digits(f"known:mnist@{tmp_path}")
    assert len(train) == len(test) == 12
    cut = tmp_path / "t10k-images-idx3-ubyte.gz"
    cut.write_bytes(cut.read_bytes()[:-9])
    with pytest.raises(InputError, match="not a whole gzip"):
        factors.open_digits(f"known:mnist@{tmp_path}")
    cut.unlink()
    with pytest.raises(InputError, match="t10k-images"):
        factors.open_digits(f"known:mnist@{tmp_path}")


def test_what_is_no_mnist_is_refused(tmp_path):
    with pytest.raises(InputError, match="two splits"):
        factors.open_digits("sample:cifar10")
    with pytest.raises(InputError, match="28 × 28"):
        factors.open_digits("sample:cifar10,sample:cifar10")
    pack = tmp_path / "odd.npz"
    write_pack(pack, [np.zeros((28, 28, 3), np.uint8)] * 2, [0, -1], tuple("0123456789"))
    with pytest.raises(InputError, match="labelled MNIST"):
        factors.open_digits(f"pack:{pack},pack:{pack}")
    with pytest.raises(InputError, match="wildlife"):
        variant("striped", "train", DIGITS)


def test_textures_are_taken_from_packs_and_folders_or_refused(tmp_path):
    pictures = [np.full((40, 60, 3), 10 * i, np.uint8) for i in range(20)]
    roles = np.array(["object"] * 10 + ["background"] * 10)
    pack = tmp_path / "textures.npz"
    write_pack(pack, pictures, [i % 10 for i in range(20)], [""], role=roles)
    front, behind, _ = factors.open_textures(f"pack:{pack}")
    assert front.shape == (10, 150, 150, 3) and (front[3] == 30).all() and (behind[3] == 130).all()
    write_pack(pack, pictures[:19], [i % 10 for i in range(19)], [""], role=roles[:19])
    with pytest.raises(InputError, match="0 background textures of 9"):
        factors.open_textures(f"pack:{pack}")
    with pytest.raises(InputError, match="folder of DTD"):
        factors.open_textures(str(tmp_path))
    with pytest.raises(InputError, match="do not exist"):
        factors.open_textures("pack:absent.npz")


def test_the_shipped_digits_are_those_of_the_data_set(shared_data):
    real = np.load(shared_data / "mnist.npz")
    assert np.array_equal(DIGITS[0].grey, factors.enlarged(real["x_train"][:3000]))
    assert np.array_equal(DIGITS[1].labels, real["y_test"][:1000])


@pytest.mark.parametrize(("name", "count"), [("mnist-train", 3000), ("mnist", 1000)])
def test_the_shipped_digits_are_what_their_cards_say(name, count):
    opened, card = open_set(f"sample:{name}"), zoo.sample_card(name)
    assert len(opened) == card["images"] == count
    counts = np.bincount(opened.labels, minlength=10).tolist()
    assert counts == list(card["per_class"].values())
    assert hashlib.sha256(zoo.sample(name).read_bytes()).hexdigest() == card["sha256"]
    pixels = np.stack([opened.read(i)[..., 0] for i in range(count)])
    assert hashlib.sha256(pixels).hexdigest() == card["pixels_sha256"]
