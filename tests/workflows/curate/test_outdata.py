"""Outdata against a planted pool: which pictures must go is known before the command runs.

The pool is drawn from the shipped CIFAR-10 images: copies made with Pillow, pictures under the
name of a class, and textures that show nothing. Class overlaps are read off by hand.
"""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from counterlens.data import open_set, write_pack
from counterlens.errors import InputError
from counterlens.images import write_png
from counterlens.label_spaces import CIFAR10
from counterlens.label_spaces.overlap import overlaps
from counterlens.screen.copies import copies, signatures
from counterlens.screen.duplicates import nearest
from counterlens.workflows.curate.outdata import outdata
from counterlens.workflows.curate.outdata_rules import alike, by_name

INSIDE = 120


@pytest.fixture(scope="module")
def known():
    return open_set("sample:cifar10")


def enlarged(pixels, side):
    return np.asarray(Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC))


def jpeg(pixels, quality):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=quality)
    return np.asarray(Image.open(out))


def part(pixels, top, left, share):
    large = enlarged(pixels, 256)
    size = round(256 * (1 - share))
    y, x = round((256 - size) * top), round((256 - size) * left)
    return enlarged(large[y : y + size, x : x + size], 32)


def planted(pixels, kind):
    return {
        "JPEG 50": lambda: jpeg(pixels, 50),
        "larger": lambda: enlarged(pixels, 90),
        "a fifth cut off": lambda: part(pixels, 0.5, 0.5, 0.2),
        "a corner, JPEG 50": lambda: jpeg(enlarged(part(pixels, 0, 1, 0.1), 64), 50),
    }[kind]()


@pytest.mark.parametrize("kind", ["JPEG 50", "larger", "a fifth cut off", "a corner, JPEG 50"])
def test_planted_copies_are_found_and_strangers_are_not(known, kind):
    own = signatures(known.read(i) for i in range(0, 500, 5))
    other = [planted(known.read(5 * i), kind) for i in range(40)]
    other += [known.read(500 + i) for i in range(200)]  # other pictures of the same kinds
    found = {c.other: c.own for c in copies(own, signatures(other))}
    assert sum(found.get(i) == i for i in range(40)) >= 38
    assert all(i < 40 for i in found)


def test_a_larger_picture_whose_part_is_known_is_a_copy_too(known):
    whole = [known.read(i) for i in range(30)]
    own = signatures(part(pixels, 1, 0, 0.1) for pixels in whole)
    assert sum(c.own == c.other for c in copies(own, signatures(whole))) >= 28


def test_names_that_overlap_with_cifar10():
    """Read off by hand: what of these shows one of the ten classes."""
    names = {
        "n02123045 tabby, tabby cat": "cat",
        "school bus, truck": "truck",
        "sports_car": "automobile",
        "n01644900 tailed frog": "frog",
        "Aeroplanes": "airplane",
        "n02443114 polecat": None,
        "n07873807 pizza": None,
        "shipyards": None,
        "catamaran": "ship",
        "street_sign": None,
    }
    found = {o.other: CIFAR10[o.own] for o in overlaps(CIFAR10, list(names))}
    assert found == {i: k for i, k in enumerate(names.values()) if k}


def test_by_name_drops_what_is_told_and_keeps_what_is_told(known, tmp_path):
    pool = _pool(tmp_path, known, ["cat", "fire truck", "sand"], [0, 0, 1, 2])
    assert {i: r.detail for i, r in by_name(known, pool).items()} == {
        0: "cat by same name", 1: "cat by same name", 2: by_name(known, pool)[2].detail
    }  # fmt: skip
    assert by_name(known, pool)[2].detail.startswith("truck by")
    assert set(by_name(known, pool, drop=["sand"], keep=["cat"])) == {2, 3}


def _pool(folder: Path, known, classes, labels):
    write_pack(folder / "pool.npz", [known.read(i) for i in range(len(labels))], labels, classes)
    return open_set(f"pack:{folder / 'pool.npz'}")


def test_what_lies_among_the_data_goes_and_what_lies_elsewhere_stays(known, tmp_path):
    """Two clusters of the data at right angles; the pool has one inside, one far from both."""
    rng = np.random.default_rng(0)
    centres = np.eye(6, dtype=np.float32) * 10

    def near(k, n):
        return (centres[k] + rng.normal(size=(n, 6))).astype(np.float32)

    own = np.concatenate([near(0, 60), near(1, 60)])
    pool_set = _pool(tmp_path, known, ["a", "b", "c"], [0] * 20 + [1] * 20 + [2] * 20)
    mixed = np.concatenate([near(1, 4), near(3, 16)])  # a few strays in an unlike class
    found = alike(
        _fake(known, [2] * 60 + [7] * 60),
        pool_set,
        own,
        np.concatenate([near(0, 20), near(4, 20), mixed]),
    )
    assert {i for i in found if i < 20} == set(range(20))
    assert {found[i].reason for i in range(20)} == {"class looks like"}
    assert found[0].detail.startswith("bird")
    assert not {i for i in found if 20 <= i < 40 or i >= 44}
    assert {found[i].reason for i in found if i >= 40} <= {"looks like"}


def _fake(known, labels):
    from counterlens.data import subset

    rows = [int(np.flatnonzero(known.labels == k)[0]) + i % 50 for i, k in enumerate(labels)]
    return subset(known, rows)


def test_nearest_is_what_a_plain_loop_finds(monkeypatch):
    monkeypatch.setattr("counterlens.screen.duplicates._BLOCK", 5)
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(13, 3)), rng.normal(size=(17, 3))

    def unit(rows):
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    expected = unit(a) @ unit(b).T
    place, cosine = nearest(a, b)
    assert place.tolist() == expected.argmax(1).tolist()
    np.testing.assert_allclose(cosine, expected.max(1), atol=1e-6)
    own = unit(a) @ unit(a).T - 3 * np.eye(13)
    assert nearest(a, a, apart=True)[0].tolist() == own.argmax(1).tolist()


@pytest.fixture(scope="module")
def cleaned(known, tmp_path_factory):
    """A folder pool: 10 copies, 10 cats by name, 60 textures; screened against CIFAR-10."""
    folder = tmp_path_factory.mktemp("outdata")
    textures = open_set("sample:textures")
    inside = [int(i) for i in range(0, 1000, 1000 // INSIDE)][:INSIDE]
    write_pack(
        folder / "in.npz", [known.read(i) for i in inside], known.labels[inside].tolist(), CIFAR10
    )
    pool = folder / "pool"
    for i in range(10):
        write_png(pool / "things" / f"copy{i}.png", jpeg(known.read(inside[7 * i]), 60))
        write_png(pool / "tabby_cats" / f"cat{i}.png", textures.read(60 + i % 4))
    for i in range(60):
        write_png(pool / "things" / f"texture{i}.png", enlarged(textures.read(i), 32))
    return outdata(f"pack:{folder / 'in.npz'}", str(pool), out=folder / "run", quiet=True)


def test_copies_and_named_classes_go_and_textures_stay(cleaned):
    rows = cleaned.table("removed")
    copied = {Path(r["id"]).name for r in rows if r["reason"] == "copy"}
    named = {Path(r["id"]).name for r in rows if r["reason"] == "class name"}
    assert copied == {f"copy{i}.png" for i in range(10)}
    assert named == {f"cat{i}.png" for i in range(10)}
    assert sum("texture" in r["id"] for r in rows) <= 3


def test_what_stays_is_a_set_that_can_be_opened(cleaned):
    kept = open_set(cleaned.manifest["kept"])
    assert len(kept) == 80 - len(cleaned.table("removed"))
    assert kept.read(0).shape == (32, 32, 3)
    assert not any("copy" in i or "cat" in i for i in kept.ids)


def test_textures_give_themselves_away_and_the_page_says_so(cleaned):
    number = cleaned.numbers["outdata.all.auroc"]
    assert number.value > 0.95 and number.low < number.value <= number.high
    page = (cleaned.folder / "report.html").read_text()
    assert (
        "Removed pictures and why" in page and "Do low-level statistics separate the pool?" in page
    )
    assert cleaned.numbers["outdata.kept"].n == 80


def test_a_packed_pool_keeps_its_encoded_bytes(known, tmp_path):
    pool = _pool(tmp_path, known, ["cat", "sand"], [0, 0, *[1] * 30])
    write_pack(tmp_path / "in.npz", [known.read(900 + i) for i in range(40)], [0, 1] * 20, CIFAR10)
    run = outdata(
        f"pack:{tmp_path / 'in.npz'}",
        f"pack:{tmp_path / 'pool.npz'}",
        model="none",
        out=tmp_path / "run",
        quiet=True,
    )
    kept = open_set(run.manifest["kept"])
    assert list(kept.ids) == list(pool.ids[2:])
    assert all((kept.read(i) == pool.read(i + 2)).all() for i in range(30))
    assert run.table("notes")  # features were left out, and the run says so


def test_bad_input_is_one_clear_line(known, tmp_path):
    _pool(tmp_path, known, ["cat", "sand"], [0, 1])
    spec = f"pack:{tmp_path / 'pool.npz'}"
    with pytest.raises(InputError, match="no class 'grit'"):
        outdata("sample:cifar10", spec, drop=["grit"], out=tmp_path / "a", quiet=True)
    with pytest.raises(InputError, match="between 0 and 1"):
        outdata("sample:cifar10", spec, typical=1.5, out=tmp_path / "b", quiet=True)
    assert not (tmp_path / "a").exists()
