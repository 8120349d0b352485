"""Known data sets: tiny directories in each public layout; torchvision's readers as the peers."""

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat
from torchvision import datasets

from counterlens import images
from counterlens.data import open_set
from counterlens.data.sources.known import KNOWN
from counterlens.errors import InputError
from counterlens.label_spaces import CIFAR10, CIFAR100, imagenet
from counterlens.runs import write_text

RNG = np.random.default_rng(0)


def put(path, value: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(images.png_bytes(np.full((4, 6, 3), value, np.uint8)))


def same_as(theirs, ours) -> None:
    """Pixels and labels, one by one; grey pictures are spread over three channels."""
    assert len(theirs) == len(ours)
    for i in range(len(ours)):
        picture, label = theirs[i]
        pixels = np.asarray(picture.convert("RGB"))
        assert np.array_equal(ours.read(i), pixels) and ours.labels[i] == label


@pytest.fixture
def trusting(monkeypatch):
    """Let torchvision read what is not the original."""
    for kind in (datasets.CIFAR10, datasets.CIFAR100):
        monkeypatch.setattr(kind, "_check_integrity", lambda self: True)
    monkeypatch.setattr(datasets.svhn, "check_integrity", lambda *_: True)


def cifar_batch(path, key: str, classes: int, protocol: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    batch = {
        "data": RNG.integers(0, 256, (5, 3072), np.uint8),
        key: RNG.integers(0, classes, 5).tolist(),
        "filenames": ["a"] * 5,
    }
    path.write_bytes(pickle.dumps(batch, protocol))


def test_cifar10_equals_torchvisions(tmp_path, trusting, monkeypatch):
    folder = tmp_path / "cifar-10-batches-py"
    for name in ["test_batch", *(f"data_batch_{i}" for i in range(1, 6))]:
        cifar_batch(folder / name, "labels", 10)
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list(CIFAR10)}))
    monkeypatch.setattr(datasets.CIFAR10, "meta", {**datasets.CIFAR10.meta, "md5": None})
    same_as(datasets.CIFAR10(tmp_path, train=False), open_set(f"known:cifar10@{tmp_path}"))
    same_as(datasets.CIFAR10(tmp_path, train=True), open_set(f"known:cifar10/train@{tmp_path}"))
    inside = open_set(f"known:cifar10@{folder}")
    assert inside.classes == CIFAR10 and inside.ids[3] == "cifar10-test/3"


def test_cifar100_equals_torchvisions(tmp_path, trusting, monkeypatch):
    folder = tmp_path / "cifar-100-python"
    for name in ("train", "test"):
        cifar_batch(folder / name, "fine_labels", 100)
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": list(CIFAR100)}))
    monkeypatch.setattr(datasets.CIFAR100, "meta", {**datasets.CIFAR100.meta, "md5": None})
    same_as(datasets.CIFAR100(tmp_path, train=False), open_set(f"known:cifar100@{tmp_path}"))


def test_a_pickle_that_calls_anything_is_not_loaded(tmp_path):
    class Evil:
        def __reduce__(self):
            return (pytest.fail, ("the pickle ran",))

    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for data in (pickle.dumps({"data": Evil()}), b"", b"junk"):
        (folder / "test_batch").write_bytes(data)
        with pytest.raises(InputError, match="test_batch cannot be loaded safely"):
            open_set(f"known:cifar10@{tmp_path}")
    (folder / "test_batch").write_bytes(pickle.dumps({"data": [1]}))
    with pytest.raises(InputError, match="no CIFAR batch"):
        open_set(f"known:cifar10@{tmp_path}")


def test_svhn_equals_torchvisions_with_ten_read_as_zero(tmp_path, trusting):
    pixels = RNG.integers(0, 256, (32, 32, 3, 4), np.uint8)
    savemat(tmp_path / "test_32x32.mat", {"X": pixels, "y": np.array([[10], [1], [9], [10]])})
    ours = open_set(f"known:svhn@{tmp_path}")
    same_as(datasets.SVHN(tmp_path, split="test"), ours)
    assert ours.labels.tolist() == [0, 1, 9, 0]
    (tmp_path / "train_32x32.mat").write_bytes(b"MATLAB")
    with pytest.raises(InputError, match="not a whole SVHN file"):
        open_set(f"known:svhn/train@{tmp_path}")


def idx(array: np.ndarray) -> bytes:
    return (
        bytes((0, 0, 8, array.ndim))
        + struct.pack(f">{array.ndim}i", *array.shape)
        + array.tobytes()
    )


@pytest.mark.parametrize(
    ("name", "kind"), [("mnist", datasets.MNIST), ("fashion-mnist", datasets.FashionMNIST)]
)
def test_idx_files_equal_torchvisions_gzipped_or_not(tmp_path, name, kind):
    folder = tmp_path / kind.__name__ / "raw"
    folder.mkdir(parents=True)
    for stem in ("t10k", "train"):
        for part, array in (
            ("images-idx3", RNG.integers(0, 256, (3, 28, 28), np.uint8)),
            ("labels-idx1", np.array([7, 0, 9], np.uint8)),
        ):
            (folder / f"{stem}-{part}-ubyte").write_bytes(idx(array))
    ours = open_set(f"known:{name}@{tmp_path}")
    same_as(kind(tmp_path, train=False), ours)
    if name == "fashion-mnist":
        assert ours.classes == tuple(kind.classes)
    for path in list(folder.iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    zipped = open_set(f"known:{name}@{folder}")
    assert zipped.fingerprint == ours.fingerprint
    packed = folder / "t10k-images-idx3-ubyte.gz"
    packed.write_bytes(packed.read_bytes()[:40])
    with pytest.raises(InputError, match="not a whole gzip file"):
        open_set(f"known:{name}@{tmp_path}")
    packed.write_bytes(gzip.compress(b"\0\0\x08\x03"))
    with pytest.raises(InputError, match="not a whole idx file"):
        open_set(f"known:{name}@{tmp_path}")


def test_mnist_is_also_read_from_its_npz(tmp_path):
    x = RNG.integers(0, 256, (2, 28, 28), np.uint8)
    np.savez(tmp_path / "mnist.npz", x_test=x, y_test=np.array([3, 4], np.uint8))
    ours = open_set(f"known:mnist@{tmp_path}")
    assert np.array_equal(ours.read(1), np.repeat(x[1][..., None], 3, 2))
    with pytest.raises(InputError, match="no x_train"):
        open_set(f"known:mnist/train@{tmp_path}")


def test_cifar10_1_and_the_corruptions_of_cifar10_c(tmp_path):
    x = RNG.integers(0, 256, (10, 32, 32, 3), np.uint8)
    np.save(tmp_path / "cifar10.1_v6_data.npy", x)
    np.save(tmp_path / "cifar10.1_v6_labels.npy", np.arange(10))
    ours = open_set(f"known:cifar10.1@{tmp_path}")
    assert np.array_equal(ours.read(7), x[7]) and ours.labels[7] == 7 and len(ours) == 10
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "fog.npy", x)  # two images at each of five severities
    np.save(folder / "labels.npy", np.array([3, 4] * 5))
    third = open_set(f"known:cifar10-c/fog/3@{tmp_path}")
    assert np.array_equal(third.read(1), x[5]) and third.labels.tolist() == [3, 4]
    assert list(third.ids) == ["fog-3/0", "fog-3/1"] and third.name == "cifar10-c-fog-3"
    every = open_set(f"known:cifar10-c/fog@{tmp_path}")
    assert every.extra["severity"].tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert every.fingerprint != third.fingerprint
    again = pickle.loads(pickle.dumps(third))
    assert np.array_equal(again.read(0), x[4])
    for part in ("rain", "fog/6", ""):
        with pytest.raises(InputError, match=r"expected CORRUPTION or .* of fog"):
            open_set(f"known:cifar10-c/{part}@{tmp_path}")


@pytest.mark.parametrize(
    ("pixels", "labels", "complaint"),
    [
        (np.zeros((2, 8, 8, 4), np.uint8), [0, 1], r"shape \(2, 8, 8, 4\), expected uint8"),
        (np.zeros((2, 8, 8, 3)), [0, 1], "holds float64 pixels"),
        (np.zeros((2, 8, 8, 3), np.uint8), [0], "2 pictures but 1 labels"),
        (np.zeros((2, 8, 8, 3), np.uint8), [0, 10], r"labels 0 … 10, expected 0 … 9"),
    ],
)
def test_arrays_of_a_wrong_kind_are_refused(tmp_path, pixels, labels, complaint):
    np.save(tmp_path / "cifar10.1_v6_data.npy", pixels)
    np.save(tmp_path / "cifar10.1_v6_labels.npy", np.array(labels))
    with pytest.raises(InputError, match=complaint):
        open_set(f"known:cifar10.1@{tmp_path}")


def test_what_is_read_may_be_painted_on_without_harm(tmp_path):
    np.save(tmp_path / "cifar10.1_v6_data.npy", np.zeros((1, 8, 8, 3), np.uint8))
    np.save(tmp_path / "cifar10.1_v6_labels.npy", np.array([0]))
    for spec in (f"known:cifar10.1@{tmp_path}", "sample:cifar10"):
        opened = open_set(spec)
        before = opened.read(0).copy()
        opened.read(0)[:] = 77
        assert np.array_equal(opened.read(0), before)


WNIDS = [imagenet()[i].wnid for i in (0, 30, 207, 281, 404, 999)]  # tench, bullfrog, retriever …


@pytest.fixture
def ilsvrc(tmp_path):
    """Two validation images of six classes."""
    for k, wnid in enumerate(WNIDS):
        for i in range(2):
            put(tmp_path / "val" / wnid / f"ILSVRC2012_val_{2 * k + i:08d}.png", 2 * k + i)
    return tmp_path


def test_imagenet_is_read_by_wordnet_id(ilsvrc):
    ours = open_set(f"known:imagenet@{ilsvrc}")
    same_as(datasets.ImageFolder(str(ilsvrc / "val")), ours)
    assert ours.classes[:2] == ("n01440764 tench", "n01641577 bullfrog")
    deeper = ilsvrc / "deeper" / "ILSVRC" / "Data" / "CLS-LOC"
    deeper.mkdir(parents=True)
    (ilsvrc / "val").rename(deeper / "val")
    assert open_set(f"known:imagenet@{ilsvrc / 'deeper'}").fingerprint == ours.fingerprint
    assert open_set(f"known:imagenet@{deeper / 'val'}").fingerprint == ours.fingerprint


def test_the_flat_validation_folder_is_read_with_its_lists(tmp_path):
    for i in range(3):
        put(tmp_path / "val" / f"ILSVRC2012_val_0000000{i}.JPEG", i)
    with pytest.raises(InputError, match=r"known:imagenet: .* is missing"):
        open_set(f"known:imagenet@{tmp_path}")
    write_text(
        tmp_path / "LOC_val_solution.csv",
        "ImageId,PredictionString\n"
        "ILSVRC2012_val_00000001,n01443537 1 2 3 4\nILSVRC2012_val_00000000,n15075141 1 2 3 4\n",
    )
    kaggle = open_set(f"known:imagenet@{tmp_path}")
    assert kaggle.labels.tolist() == [999, 1] and len(kaggle.classes) == 1000
    write_text(
        tmp_path / "val.txt",
        "\n".join(f"ILSVRC2012_val_0000000{i}.JPEG {k}" for i, k in enumerate([5, 0, 999])),
    )
    assert open_set(f"known:imagenet@{tmp_path}").labels.tolist() == [5, 0, 999]
    write_text(tmp_path / "val.txt", "ILSVRC2012_val_00000000.JPEG tench\n")
    with pytest.raises(InputError, match="not as expected"):
        open_set(f"known:imagenet@{tmp_path}")


def test_imagenet_without_what_cifar10_shows(ilsvrc):
    ours = open_set(f"known:imagenet-minus-cifar10@{ilsvrc}")
    assert [c.split()[0] for c in ours.classes] == [WNIDS[0], WNIDS[5]]
    assert ours.labels.tolist() == [0, 0, 1, 1]
    assert [int(ours.read(i)[0, 0, 0]) for i in range(4)] == [0, 1, 10, 11]


def test_restricted_imagenet_has_nine_classes_and_an_outside(ilsvrc):
    ours = open_set(f"known:restricted-imagenet@{ilsvrc}")
    assert ours.classes[:3] == ("dog", "cat", "frog") and ours.space == "restricted-imagenet"
    assert [ours.classes[k] for k in ours.labels] == ["frog", "frog", "dog", "dog", "cat", "cat"]
    out = open_set(f"known:restricted-imagenet/val-out@{ilsvrc}")
    assert len(out) == 6 and not set(out.ids) & set(ours.ids)


def test_the_200_class_parts_of_imagenet_keep_only_their_classes(ilsvrc):
    a200 = {
        w for i, w in enumerate(WNIDS) if "A" in imagenet()[(0, 30, 207, 281, 404, 999)[i]].subsets
    }
    ours = open_set(f"known:imagenet-200/a200@{ilsvrc}")
    assert {c.split()[0] for c in ours.classes} == a200 and ours.space == "imagenet-a"


@pytest.mark.parametrize(
    ("name", "folder", "space"),
    [
        ("imagenet-a", "imagenet-a", "imagenet-a"),
        ("imagenet-o", "imagenet-o", "imagenet-o"),
        ("imagenet-r", "imagenet-r", "imagenet-r"),
        ("imagenet-sketch", "sketch", None),
        ("stylized-imagenet", "val", None),
        ("imagenet-mini", "imagenet-mini/val", None),
    ],
)
def test_imagenets_relatives_are_read_by_wordnet_id(tmp_path, name, folder, space):
    for wnid in ("n01498041", "n01531178"):
        put(tmp_path / folder / wnid / "x.png")
    write_text(tmp_path / folder / "README.txt", "some words")
    ours = open_set(f"known:{name}@{tmp_path}")
    assert ours.classes == ("n01498041 stingray", "n01531178 goldfinch")
    assert ours.space == space and len(ours) == 2
    put(tmp_path / folder / "cats" / "x.png")
    with pytest.raises(InputError, match=r"cats|is missing"):
        open_set(f"known:{name}@{tmp_path / folder / 'cats'}")


def test_imagenet9_variants_share_nine_classes(tmp_path):
    for name in ("00_dog", "02_wheeled vehicle", "08_fish"):
        put(tmp_path / "bg_challenge" / "mixed_rand" / "val" / name / "x.png")
    ours = open_set(f"known:imagenet-9/mixed_rand@{tmp_path}")
    assert [ours.classes[k] for k in ours.labels] == ["dog", "vehicle", "fish"]
    assert ours.space == "imagenet-9" and ours.name == "imagenet-9-mixed_rand"
    with pytest.raises(InputError, match=r"original is missing"):
        open_set(f"known:imagenet-9@{tmp_path}")
    with pytest.raises(InputError, match="no part blurred, expected one of original, mixed_same"):
        open_set(f"known:imagenet-9/blurred@{tmp_path}")


def test_cue_conflict_has_shape_and_texture(tmp_path):
    put(tmp_path / "cat" / "cat7-elephant1.png")
    put(tmp_path / "airplane" / "airplane1-airplane10.png")
    ours = open_set(f"known:cue-conflict@{tmp_path}")
    assert [ours.classes[k] for k in ours.labels] == ["airplane", "cat"]
    assert [ours.classes[k] for k in ours.extra["texture_labels"]] == ["airplane", "elephant"]
    assert ours.space == "cue-conflict"
    put(tmp_path / "cat" / "cat7.png")
    with pytest.raises(InputError, match=r"cat7\.png names no texture"):
        open_set(f"known:cue-conflict@{tmp_path}")


def test_lsun_classrooms_may_be_squashed_as_in_the_paper(tmp_path):
    wide = RNG.integers(0, 256, (40, 90, 3), np.uint8)
    images.write_png(tmp_path / "classroom_val" / "a.png", wide)
    assert open_set(f"known:lsun-classroom@{tmp_path}").read(0).shape == (40, 90, 3)
    small = open_set(f"known:lsun-classroom/32@{tmp_path}").read(0)
    from PIL import Image

    theirs = Image.fromarray(wide).resize((32, 32), Image.Resampling.BILINEAR)
    assert np.array_equal(small, np.asarray(theirs))
    put(tmp_path / "db" / "data.mdb")
    with pytest.raises(InputError, match="LMDB"):
        open_set(f"known:lsun-classroom@{tmp_path / 'db'}")


def test_stylised_pictures_of_sixteen_categories(tmp_path):
    put(tmp_path / "boat" / "a.png")
    assert open_set(f"known:stylized-imagenet-16@{tmp_path}").space == "stylized-imagenet-16"


def test_flowers_equal_torchvisions(tmp_path, monkeypatch):
    root = tmp_path / "flowers-102"
    for i in range(1, 5):
        put(root / "jpg" / f"image_{i:05d}.jpg", i)
    savemat(root / "imagelabels.mat", {"labels": np.array([[77, 1, 102, 5]])})
    savemat(root / "setid.mat", {"trnid": [[1]], "valid": [[2]], "tstid": [[3, 4]]})
    monkeypatch.setattr(datasets.Flowers102, "_check_integrity", lambda self: True)
    same_as(datasets.Flowers102(tmp_path, "test"), open_set(f"known:flowers102@{tmp_path}"))
    (root / "setid.mat").unlink()
    with pytest.raises(InputError, match=r"setid\.mat is missing.*ROOT holds flowers-102/"):
        open_set(f"known:flowers102@{tmp_path}")


def test_food_equals_torchvisions(tmp_path):
    root = tmp_path / "food-101"
    for name in ("pho/1", "pho/2", "apple_pie/3"):
        put(root / "images" / f"{name}.jpg")
    write_text(root / "meta" / "test.json", '{"apple_pie": ["apple_pie/3"], "pho": ["pho/2"]}')
    write_text(root / "meta" / "test.txt", "apple_pie/3\npho/2\n")
    same_as(datasets.Food101(tmp_path, "test"), open_set(f"known:food101@{tmp_path}"))


def test_textures_equal_torchvisions(tmp_path):
    root = tmp_path / "dtd" / "dtd"
    for name in ("banded/banded_0002.jpg", "dotted/dotted_0001.jpg"):
        put(root / "images" / name)
    write_text(root / "labels" / "test1.txt", "banded/banded_0002.jpg\ndotted/dotted_0001.jpg\n")
    same_as(datasets.DTD(tmp_path, "test"), open_set(f"known:dtd@{tmp_path}"))


def test_aircraft_equal_torchvisions(tmp_path):
    root = tmp_path / "fgvc-aircraft-2013b" / "data"
    for name in ("0034309", "1514522"):
        put(root / "images" / f"{name}.jpg")
    write_text(root / "variants.txt", "707-320\nA300B4\nFokker 100\n")
    write_text(root / "images_variant_test.txt", "1514522 Fokker 100\n0034309 707-320\n")
    ours = open_set(f"known:aircraft@{tmp_path}")
    same_as(datasets.FGVCAircraft(tmp_path, "test", "variant"), ours)
    assert ours.classes == ("707-320", "A300B4", "Fokker 100")


def test_cars_equal_torchvisions(tmp_path):
    root = tmp_path / "stanford_cars"
    for name in ("00001.jpg", "00002.jpg"):
        put(root / "cars_test" / name)
    kind = [("fname", object), ("class", object)]
    rows = np.array([("00001.jpg", 2), ("00002.jpg", 1)], dtype=kind)
    savemat(root / "cars_test_annos_withlabels.mat", {"annotations": rows})
    names = np.array(["AM General Hummer SUV 2000", "Acura RL Sedan 2012"], dtype=object)
    (root / "devkit").mkdir()
    savemat(root / "devkit" / "cars_meta.mat", {"class_names": names})
    ours = open_set(f"known:cars@{tmp_path}")
    same_as(datasets.StanfordCars(tmp_path, "test"), ours)
    assert ours.classes == tuple(names)


def test_birds_follow_their_four_lists(tmp_path):
    root = tmp_path / "CUB_200_2011"
    for name in ("001.Albatross/a.jpg", "002.Auk/b.jpg", "002.Auk/c.jpg"):
        put(root / "images" / name)
    write_text(root / "images.txt", "1 001.Albatross/a.jpg\n2 002.Auk/b.jpg\n3 002.Auk/c.jpg\n")
    write_text(root / "image_class_labels.txt", "1 1\n2 2\n3 2\n")
    write_text(root / "train_test_split.txt", "1 0\n2 1\n3 0\n")
    write_text(root / "classes.txt", "1 001.Albatross\n2 002.Auk\n")
    ours = open_set(f"known:cub200@{tmp_path}")
    assert list(ours.ids) == ["images/001.Albatross/a.jpg", "images/002.Auk/c.jpg"]
    assert ours.labels.tolist() == [0, 1] and ours.classes == ("001.Albatross", "002.Auk")


def test_places_follow_their_two_lists(tmp_path):
    put(tmp_path / "val_256" / "Places365_val_00000001.jpg")
    write_text(
        tmp_path / "categories_places365.txt", "/a/airfield 0\n/a/apartment_building/outdoor 1\n"
    )
    write_text(tmp_path / "places365_val.txt", "Places365_val_00000001.jpg 1\n")
    ours = open_set(f"known:places365@{tmp_path}")
    assert ours.classes == ("airfield", "apartment_building/outdoor")
    assert ours.labels.tolist() == [1]


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_root_without_the_layout_says_what_is_expected(tmp_path, name):
    with pytest.raises(InputError, match=r"is missing.*ROOT holds") as caught:
        open_set(f"known:{name}@{tmp_path}")
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="ROOT holds"):
        open_set(f"known:{name}")
    with pytest.raises(InputError, match=r"does not exist.*ROOT holds"):
        open_set(f"known:{name}@{tmp_path / 'gone'}")


def test_the_page_on_data_lists_every_known_set_with_its_layout():
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "bring-your-data.md").read_text()
    for name, known in KNOWN.items():
        assert f"| `{name}` |" in page and f"| {known.layout} |" in page
        assert all(f"`{part}`" in page for part in known.parts)
