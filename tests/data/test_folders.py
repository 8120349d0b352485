"""Folders, manifests, packs and specs: directories fabricated by hand, ImageFolder as the peer."""

import csv
import json
import os
import pickle
import unicodedata
import zipfile

import numpy as np
import pytest
import torch
from torchvision.datasets import ImageFolder

from counterlens import images
from counterlens.data import name_of, open_set, subset, write_pack
from counterlens.data.sources.folders import open_folder
from counterlens.errors import InputError
from counterlens.runs import write_text


def picture(value: int, shape: tuple[int, int] = (4, 5)) -> np.ndarray:
    return np.full((*shape, 3), value, np.uint8)


def put(path, value: int = 0) -> None:
    images.write_png(path, picture(value))


@pytest.fixture
def pets(tmp_path):
    """Two classes; a nested picture, and everything that people leave lying about."""
    root = tmp_path / "pets"
    for i, name in enumerate(["cat/b.png", "cat/a.png", "dog/deep/er/c.png", "dog/d.PNG"]):
        put(root / name, i)
    (root / "empty").mkdir()
    (root / ".hidden").mkdir()
    put(root / ".hidden" / "x.png")
    put(root / "cat" / "._a.png")
    put(root / "loose.png")
    write_text(root / "cat" / "notes.txt", "none")
    write_text(root / "README", "none")
    return root


def test_a_folder_gives_the_classes_and_order_of_imagefolder(pets):
    opened = open_set(str(pets))
    assert opened.name == "pets" and opened.classes == ("cat", "dog")
    assert list(opened.ids) == ["cat/a.png", "cat/b.png", "dog/d.PNG", "dog/deep/er/c.png"]
    assert opened.labels.tolist() == [0, 0, 1, 1]
    assert [int(opened.read(i)[0, 0, 0]) for i in range(4)] == [1, 0, 3, 2]
    for clutter in ("empty", ".hidden"):
        (pets / clutter).rename(pets.parent / clutter)
    (pets / "cat" / "._a.png").unlink()
    theirs = ImageFolder(str(pets))
    assert [(str(pets / i), k) for i, k in zip(opened.ids, opened.labels, strict=True)] == sorted(
        theirs.samples
    )


def test_what_was_left_out_of_a_folder_is_said(pets):
    notes = "; ".join(open_set(str(pets)).notes)
    assert "2 files that are no pictures" in notes
    assert "1 folders without pictures: empty" in notes
    assert "1 pictures beside the class folders" in notes


def test_a_flat_folder_has_no_labels(tmp_path):
    put(tmp_path / "b.png")
    put(tmp_path / "a.png")
    opened = open_set(str(tmp_path))
    assert list(opened.ids) == ["a.png", "b.png"]
    assert opened.labels.tolist() == [-1, -1] and opened.classes == ()


def test_links_are_followed_and_loops_end(pets):
    (pets / "dog" / "again").symlink_to(pets)  # holds dog, which holds again …
    (pets / "bird").symlink_to(pets / "cat")
    (pets / "broken").symlink_to(pets / "nowhere")
    opened = open_set(str(pets))
    assert opened.classes == ("bird", "cat", "dog")
    assert "dog/again/cat/a.png" in opened.ids and len(set(opened.ids)) == len(opened)


def test_names_in_any_script_and_broken_encodings_work(tmp_path):
    odd = os.fsdecode(b"caf\xe9.png")  # Latin-1, not UTF-8
    accented = unicodedata.normalize("NFD", "Zürich.png")
    for name in ("猫/写真 1.png", "собака/фото.png", f"猫/{odd}", f"собака/{accented}"):
        put(tmp_path / name)
    opened = open_set(str(tmp_path))
    assert opened.classes == ("собака", "猫") and len(opened) == 4
    json.dumps(list(opened.ids)).encode("utf-8")
    "".join(opened.ids).encode("utf-8")
    assert all(opened.read(i).shape == (4, 5, 3) for i in range(4))


def test_the_fingerprint_follows_names_sizes_and_labels_but_not_times(pets):
    before = open_set(str(pets)).fingerprint
    os.utime(pets / "cat" / "a.png", (1, 1))
    assert open_set(str(pets)).fingerprint == before
    images.write_png(
        pets / "cat" / "a.png", np.random.default_rng(0).integers(0, 9, (9, 9, 3), np.uint8)
    )
    changed = open_set(str(pets)).fingerprint
    (pets / "cat").rename(pets / "cow")
    assert len({before, changed, open_set(str(pets)).fingerprint}) == 3


def test_sets_pickle_and_read_in_worker_processes(pets, tmp_path):
    write_pack(tmp_path / "p.npz", [picture(i) for i in range(4)], [0, 1, 0, 1], ["a", "b"])
    for spec in (str(pets), f"pack:{tmp_path / 'p.npz'}"):
        opened = open_set(spec)
        again = pickle.loads(pickle.dumps(opened))
        loader = torch.utils.data.DataLoader(
            range(4), batch_size=None, num_workers=2, collate_fn=Reader(again.read)
        )
        for i, pixels in enumerate(loader):
            assert np.array_equal(np.asarray(pixels), opened.read(i))


class Reader:
    def __init__(self, read):
        self.read = read

    def __call__(self, i):
        return torch.from_numpy(np.array(self.read(i)))


def test_a_limit_draws_without_replacement_in_order_and_by_seed(pets):
    every = open_set(str(pets))
    few = open_set(str(pets), limit=3, seed=1)
    assert len(few) == 3 and sorted(few.ids) == list(few.ids) and set(few.ids) < set(every.ids)
    assert few.ids == open_set(str(pets), limit=3, seed=1).ids
    assert len({open_set(str(pets), limit=2, seed=s).ids for s in range(20)}) > 1
    assert open_set(str(pets), limit=99).ids == every.ids
    for i, name in enumerate(few.ids):
        k = list(every.ids).index(name)
        assert few.labels[i] == every.labels[k]
        assert np.array_equal(few.read(i), every.read(k))
    assert few.fingerprint != every.fingerprint
    with pytest.raises(InputError, match="limit of 0"):
        open_set(str(pets), limit=0)


def test_subsets_of_subsets_read_the_right_pictures(tmp_path):
    write_pack(tmp_path / "p.npz", [picture(i) for i in range(9)], [0] * 9, ["a"])
    base = open_set(f"pack:{tmp_path / 'p.npz'}")
    twice = subset(subset(base, [8, 6, 4, 2]), [3, 0])
    assert [int(twice.read(i)[0, 0, 0]) for i in range(2)] == [2, 8]
    assert list(twice.ids) == ["p/2", "p/8"]


def test_packs_keep_pixels_labels_ids_and_further_columns(tmp_path):
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (5, 7, 3), np.uint8) for _ in range(3)]
    write_pack(
        tmp_path / "one.npz",
        pictures,
        [1, 0, -1],
        ["猫", "dog"],
        ids=np.array(["x", "y", "x"]),
        texture_labels=np.array([0, 1, 0]),
    )
    opened = open_set(f"pack:{tmp_path / 'one.npz'}")
    assert list(opened.ids) == ["x", "y", "x~2"] and opened.classes == ("猫", "dog")
    assert opened.labels.tolist() == [1, 0, -1] and opened.space == "cue-conflict"
    assert opened.extra["texture_labels"].tolist() == [0, 1, 0]
    assert all(np.array_equal(opened.read(i), p) for i, p in enumerate(pictures))
    again = tmp_path / "again.npz"
    write_pack(again, pictures, [1, 0, -1], ["猫", "dog"], ids=np.array(["x", "y", "x"]))
    assert open_set(f"pack:{again}").fingerprint != opened.fingerprint


def test_compressed_packs_and_packs_written_anew_are_read_right(tmp_path):
    path = tmp_path / "p.npz"
    write_pack(path, [picture(1)], [0], ["a"])
    assert open_set(f"pack:{path}").read(0)[0, 0, 0] == 1
    write_pack(path, [picture(7, (9, 9))], [0], ["a"])
    assert open_set(f"pack:{path}").read(0)[0, 0, 0] == 7
    with np.load(path) as arrays:
        np.savez_compressed(tmp_path / "small.npz", **arrays)
        np.savez(tmp_path / "plain.npz", **arrays)
    for name in ("small", "plain"):
        assert open_set(f"pack:{tmp_path / name}.npz").read(0)[0, 0, 0] == 7


def test_parts_of_a_pack_are_joined_in_order(tmp_path):
    for folder, first in (("a", 0), ("b", 3)):
        (tmp_path / folder).mkdir()
        values = [picture(first + i) for i in range(3)]
        write_pack(tmp_path / folder / "part.npz", values, [0, 1, 1], ["x", "y"])
    opened = open_set(f"pack:{tmp_path}/a/part.npz+{tmp_path}/b/part.npz")
    assert [int(opened.read(i)[0, 0, 0]) for i in range(6)] == list(range(6))
    assert opened.labels.tolist() == [0, 1, 1, 0, 1, 1] and len(set(opened.ids)) == 6
    assert opened.name == "part"
    write_pack(tmp_path / "c.npz", [picture(0)], [0], ["z"])
    with pytest.raises(InputError, match="differ in their classes"):
        open_set(f"pack:{tmp_path}/a/part.npz+{tmp_path}/c.npz")


def test_manifests_name_pictures_labels_and_further_columns(tmp_path):
    put(tmp_path / "p" / "1.png", 1)
    put(tmp_path / "p" / "2.png", 2)
    rows = [("p/1.png", "10", "left"), ("p/2.png", "2", "right"), ("p/1.png", "", "left")]
    with (tmp_path / "m.csv").open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([("path", "label", "side"), *rows])
    text = "\n".join(
        json.dumps({"path": path, "label": label or None, "side": side})
        for path, label, side in rows
    )
    write_text(tmp_path / "m.jsonl", text + "\n\n")
    for name in ("m.csv", "m.jsonl"):
        opened = open_set(str(tmp_path / name))
        assert opened.classes == ("2", "10") and opened.labels.tolist() == [1, 0, -1]
        assert list(opened.ids) == ["p/1.png", "p/2.png", "p/1.png~2"]
        assert opened.extra["side"].tolist() == ["left", "right", "left"]
        assert int(opened.read(1)[0, 0, 0]) == 2 and opened.name == "m"


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.csv", "file,label\nx.png,cat\n", r"no path in row 1 \(columns: file, label\)"),
        ("a.csv", "path,label\nx.png\n", "line 2: expected 2 cells"),
        ("a.csv", "path,label\n", "lists no pictures"),
        ("a.csv", "path,label\ngone.png,cat\n", r"gone\.png"),
        ("a.jsonl", '{"path": "x.png"\n', "line 1: not JSON"),
        ("a.jsonl", '["x.png"]\n', "line 1: expected"),
    ],
)
def test_a_wrong_manifest_is_refused_in_one_line(tmp_path, name, text, complaint):
    write_text(tmp_path / name, text)
    with pytest.raises(InputError, match=complaint) as caught:
        open_set(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_a_manifest_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"path\n\xff\xfe\xff.png\n")
    with pytest.raises(InputError, match="not UTF-8"):
        open_set(str(tmp_path / "a.csv"))


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("no/such/folder", "no/such/folder does not exist"),
        ("pack:gone.npz", r"gone\.npz does not exist"),
        ("sample:cifar99", "sample:cifar99 is not shipped.*sample:cifar10"),
        ("noise:pink", "noise:pink is not known.*noise:uniform"),
        ("noise:uniform@sample:cifar10", "is not known"),
        ("noise:smooth@gone", "gone does not exist"),
        ("known:cifar-10@here", "near names: cifar10"),
        ("zoo:cifar10", "unknown word zoo:"),
        ("pack:", "names no set"),
        ("hf:pets", "hf:pets"),
    ],
)
def test_a_spec_that_does_not_exist_is_refused_in_one_line(spec, complaint):
    from counterlens.errors import CounterlensError

    with pytest.raises(CounterlensError, match=complaint) as caught:
        open_set(spec)
    assert "\n" not in str(caught.value)


def test_empty_folders_and_files_of_other_kinds_are_refused(tmp_path):
    with pytest.raises(InputError, match="holds no pictures"):
        open_set(str(tmp_path))
    write_text(tmp_path / "only.txt", "x")
    with pytest.raises(InputError, match=r"holds no pictures \(1 other files\)"):
        open_set(str(tmp_path))
    with pytest.raises(InputError, match="is a file"):
        open_set(str(tmp_path / "only.txt"))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x", "x")
    with pytest.raises(InputError, match="Unpack it first"):
        open_set(str(tmp_path / "a.zip"))
    write_pack(tmp_path / "p.npz", [picture(0)], [0], ["a"])
    with pytest.raises(InputError, match="type pack:"):
        open_set(str(tmp_path / "p.npz"))
    with pytest.raises(InputError, match="is not a folder"):
        open_folder(tmp_path / "only.txt", name="x")


@pytest.mark.parametrize("share", [0.0, 0.2, 0.9, 0.999])
def test_a_truncated_pack_is_refused_by_name(tmp_path, share):
    path = tmp_path / "cut.npz"
    write_pack(path, [picture(i) for i in range(20)], [0] * 20, ["a"])
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(InputError, match=r"cut\.npz is not a whole \.npz file") as caught:
        open_set(f"pack:{path}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"offsets": np.array([0, 5])}, "offsets do not fit"),
        ({"offsets": np.array([0, 9, 5])}, "offsets do not fit"),
        ({"labels": np.array([0, 3])}, r"labels 0 … 3, expected 0 … 0"),
        ({"labels": None}, "it has no labels"),
        ({"encoded": None}, "it has no encoded"),
        ({"encoded": np.zeros(3)}, "expected uint8 bytes"),
        ({"classes": np.array([{}], object)}, "not a whole"),
    ],
)
def test_a_damaged_pack_is_refused(tmp_path, change, complaint):
    write_pack(tmp_path / "good.npz", [picture(i) for i in range(2)], [0, 0], ["a"])
    with np.load(tmp_path / "good.npz") as arrays:
        contents = {**arrays, **change}
    path = tmp_path / "bad.npz"
    np.savez(path, **{key: value for key, value in contents.items() if value is not None})
    with pytest.raises(InputError, match=complaint):
        open_set(f"pack:{path}")


def test_one_array_is_no_pack(tmp_path):
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(InputError, match="it is one array"):
        open_set(f"pack:{tmp_path / 'a.npz'}")


def test_a_corrupt_picture_inside_a_pack_is_named(tmp_path):
    write_pack(tmp_path / "p.npz", [picture(i) for i in range(2)], [0, 0], ["a"])
    with np.load(tmp_path / "p.npz") as arrays:
        contents = dict(arrays)
    contents["encoded"] = contents["encoded"].copy()
    contents["encoded"][contents["offsets"][1] :] = 0
    np.savez(tmp_path / "q.npz", **contents)
    opened = open_set(f"pack:{tmp_path / 'q.npz'}")
    opened.read(0)
    with pytest.raises(InputError, match=r"q\.npz, picture 1"):
        opened.read(1)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("street=pack:a/b.npz", "street"),
        ("pack:a/b.c.npz", "b.c"),
        ("pack:a/x.npz+b/y.npz", "x"),
        ("sample:cifar10-calibration", "cifar10-calibration"),
        ("noise:smooth@sample:cifar10", "smooth"),
        ("known:cifar10-c/fog/3@root", "cifar10-c-fog-3"),
        ("known:svhn@/data/x=y", "svhn"),
        ("hf:org/pets#test", "pets"),
        ("data/val/", "val"),
        ("lists/m.csv", "m"),
        ("C=sample:cifar10", "C"),
    ],
)
def test_a_set_is_named_as_given_or_by_its_last_word(spec, name):
    assert name_of(spec) == name


def test_a_folder_with_an_equals_sign_is_still_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "lr=1" / "cat" / "a.png")
    assert open_set("lr=1").name == "lr=1"
    assert open_set("mine=lr=1").name == "mine"
    (tmp_path / "a:b").mkdir()
    put(tmp_path / "a:b" / "cat" / "a.png")
    assert len(open_set("a:b")) == 1
