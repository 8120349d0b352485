"""Noise, textures, shipped samples and the hub: literal loops, moments, cards, a stand-in hub."""

import hashlib
import io
import math
import pickle
import sys
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from counterlens import images, zoo
from counterlens.data import from_images, open_set
from counterlens.data.sources.noise import smooth
from counterlens.errors import InputError, MissingExtra
from counterlens.label_spaces import CIFAR10
from counterlens.workflows.reproduce.cards import NOISE, UNSEEN, set_kind

KINDS = ["uniform", "gaussian", "bernoulli", "blobs", "smooth@sample:cifar10"]


def stack(spec: str, count: int = 40, **settings) -> np.ndarray:
    opened = open_set(spec, limit=count, **settings)
    return np.stack([opened.read(i) for i in range(count)])


@pytest.mark.parametrize("spec", [f"noise:{kind}" for kind in KINDS] + ["sample:textures"])
def test_made_pictures_have_the_size_asked_for_and_come_back_the_same(spec):
    opened = open_set(spec, size=(20, 30), seed=3, limit=5)
    assert len(opened) == 5 and len(set(opened.ids)) == 5
    again = pickle.loads(pickle.dumps(opened))
    for i in (4, 0, 2):
        pixels = opened.read(i)
        assert pixels.shape == (20, 30, 3) and pixels.dtype == np.uint8
        assert np.array_equal(pixels, again.read(i))
    assert not np.array_equal(opened.read(0), opened.read(1))
    assert open_set(spec, size=(20, 31), seed=3, limit=5).fingerprint != opened.fingerprint


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_change_noise_and_its_fingerprint(kind):
    one, two = (open_set(f"noise:{kind}", seed=s, limit=2) for s in (0, 1))
    assert not np.array_equal(one.read(0), two.read(0)) and one.fingerprint != two.fingerprint
    assert one.labels.tolist() == [-1, -1] and one.classes == ()
    assert len(open_set(f"noise:{kind}")) == 1000


def test_uniform_noise_has_all_values_alike_and_independent():
    x = stack("noise:uniform").astype(float)
    counts = np.bincount(x.astype(int).ravel(), minlength=256)
    n, expected = x.size, x.size / 256
    chi = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi - 255) < 5 * math.sqrt(2 * 255)
    for shifted in (np.roll(x, 1, axis=1), np.roll(x, 1, axis=2), np.roll(x, 1, axis=3)):
        assert abs(np.corrcoef(x.ravel(), shifted.ravel())[0, 1]) < 5 / math.sqrt(n)


def test_gaussian_and_bernoulli_noise_have_their_moments():
    x = stack("noise:gaussian") / 255
    low = 0.5 * math.erfc(2 / math.sqrt(2))  # share clipped at either end, two deviations out
    assert (x == 0).mean() == pytest.approx(low, abs=0.003)
    inside = x[(x > 0.3) & (x < 0.7)]
    density = math.erf(0.8 / math.sqrt(2))
    assert inside.size / x.size == pytest.approx(density, abs=0.01)
    bits = stack("noise:bernoulli")
    assert set(np.unique(bits)) == {0, 255} and (bits == 255).mean() == pytest.approx(0.5, abs=0.01)


def test_blobs_are_black_or_bright():
    x = stack("noise:blobs")
    assert set(np.unique(x[x < round(0.75 * 255)])) == {0}
    assert 0.05 < (x > 0).mean() < 0.6


def literal_blur(x: np.ndarray, sigma: float) -> np.ndarray:
    """Gaussian filter over all three axes by plain loops, reflected at the borders."""
    radius = int(4 * sigma + 0.5)
    weights = [math.exp(-0.5 * (k / sigma) ** 2) for k in range(-radius, radius + 1)]
    weights = [w / sum(weights) for w in weights]
    for axis in range(3):
        n = x.shape[axis]
        out = np.zeros_like(x)
        for i in range(n):
            for k, w in zip(range(-radius, radius + 1), weights, strict=True):
                j = (i + k) % (2 * n)  # … c b a | a b c | c b a …
                out.swapaxes(0, axis)[i] += w * x.swapaxes(0, axis)[j if j < n else 2 * n - 1 - j]
        x = out
    return x


def test_smooth_noise_equals_a_literal_reading_with_blur_across_channels():
    base = np.random.default_rng(1).uniform(0, 1, (3, 9, 8))
    ours = smooth(base, np.random.default_rng(5))
    rng = np.random.default_rng(5)
    order = rng.permutation(72)
    shuffled = np.stack([channel.ravel()[order].reshape(9, 8) for channel in base])
    blurred = literal_blur(shuffled, rng.uniform(1, 2.5))
    contrast = rng.uniform(5, 30)
    expected = 1 / (1 + np.exp(-contrast * (blurred - 0.5)))
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-12)
    assert 1 <= np.random.default_rng(5).uniform(1, 2.5) <= 2.5


def literal_smooth(picture: np.ndarray, seed: int, i: int) -> np.ndarray:
    """The paper's smoothed noise of one 8-bit image, step by step."""
    rng = np.random.default_rng([seed, i])
    channels = [(picture[..., c] / 255).ravel() for c in range(3)]
    order = rng.permutation(len(channels[0]))
    shuffled = np.stack([c[order].reshape(picture.shape[:2]) for c in channels])
    blurred = literal_blur(shuffled, rng.uniform(1, 2.5))
    lifted = 1 / (1 + np.exp(-rng.uniform(5, 30) * (blurred - 0.5)))
    return np.moveaxis(np.round(255 * lifted), 0, -1)


def test_smooth_noise_of_an_audit_is_made_from_the_audited_images():
    """The paper's set starts from permuted test images, not from uniform noise."""
    base = open_set("sample:cifar10", limit=3, seed=2)
    noise = open_set(from_images("noise:smooth", "sample:cifar10"), limit=3, seed=2)
    assert noise.name == "smooth" and len(noise) == 3
    for i in range(3):
        off = np.abs(noise.read(i).astype(int) - literal_smooth(base.read(i), 2, i))
        assert off.max() <= 1 and off.mean() < 0.001  # one where a half is rounded
    assert noise.notes == ("made by code from images of cifar10, permuted",)
    assert from_images("mine=noise:smooth", "a=pack:t.npz") == "mine=noise:smooth@a=pack:t.npz"
    assert from_images("noise:smooth@photos/", "data/") == "noise:smooth@photos/"


def test_smooth_noise_without_images_is_refused():
    with pytest.raises(InputError, match="made from images: expected noise:smooth@SPEC"):
        open_set("noise:smooth")


def test_smooth_noise_is_told_as_noise_whatever_images_it_is_made_from():
    assert set_kind("smooth", "noise:smooth@test=pack:t.npz", ()) == NOISE
    assert set_kind("x", "x=pack:noise:.npz", ()) == UNSEEN


def test_grey_noise_has_equal_channels():
    for kind in KINDS:
        pixels = open_set(f"noise:{kind}", limit=1, channels=1).read(0)
        assert (pixels == pixels[..., :1]).all() and len(np.unique(pixels)) > 1


def test_textures_are_of_eight_kinds_and_show_structure():
    opened = open_set("sample:textures", size=(32, 32))
    assert len(opened) == 400 and np.bincount(opened.labels).tolist() == [50] * 8
    for i in range(80):
        assert opened.read(i).std() > 5
    assert open_set("sample:textures", size=(224, 224)).read(5).shape == (224, 224, 3)


@pytest.mark.parametrize(("name", "count"), [("cifar10", 1000), ("cifar10-calibration", 2000)])
def test_shipped_packs_are_what_their_cards_say(name, count):
    opened, card = open_set(f"sample:{name}"), zoo.sample_card(name)
    assert len(opened) == card["images"] == count and opened.classes == CIFAR10
    counts = np.bincount(opened.labels, minlength=10).tolist()
    assert counts == list(card["per_class"].values())
    assert hashlib.sha256(zoo.sample(name).read_bytes()).hexdigest() == card["sha256"]
    pixels = np.stack([opened.read(i) for i in range(count)])
    assert pixels.shape[1:] == (32, 32, 3)
    assert hashlib.sha256(pixels.data).hexdigest() == card["pixels_sha256"]
    rows = [int(i.split("/")[1]) for i in opened.ids]
    assert rows == sorted(set(rows)) and [rows[0], rows[-1]] == [
        card["first_index"],
        card["last_index"],
    ]


def test_the_calibration_images_are_the_last_training_images():
    opened = open_set("sample:cifar10-calibration")
    assert list(opened.ids) == [f"cifar10-train/{i}" for i in range(48_000, 50_000)]
    assert np.bincount(open_set("sample:cifar10").labels).tolist() == [100] * 10


class FakeTable:
    """As much of a `datasets.Dataset` as we use."""

    _fingerprint = "abc"

    def __init__(self, rows, features):
        self.rows, self.features = rows, features

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, key):
        return [row[key] for row in self.rows] if isinstance(key, str) else self.rows[key]

    def cast_column(self, name, kind):
        assert kind.decode is False
        return self

    def select_columns(self, names):
        return FakeTable([{n: row[n] for n in names} for row in self.rows], self.features)


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the datasets package with one table."""
    module = ModuleType("datasets")

    class FakeImage:
        def __init__(self, decode=True):
            self.decode = decode

    class FakeClassLabel:
        names = ("cat", "dog")

    out = io.BytesIO()
    Image.new("RGB", (3, 2), (9, 8, 7)).save(out, "PNG")
    rows = [
        {"text": "x", "img": {"bytes": out.getvalue(), "path": None}, "label": k} for k in (1, 0)
    ]
    features = {"text": "string", "img": FakeImage(), "label": FakeClassLabel()}
    requests = []

    def load_dataset(path, config, *, split):
        requests.append((path, config, split))
        if path == "org/gone":
            raise FileNotFoundError("no such data set\nand a long story")
        chosen = features if path != "org/words" else {"text": "string"}
        return FakeTable(rows, chosen)

    module.Image, module.ClassLabel, module.load_dataset = FakeImage, FakeClassLabel, load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return requests


def test_a_hub_set_has_pictures_labels_and_classes(hub):
    opened = open_set("hf:org/pets/small#test")
    assert hub == [("org/pets", "small", "test")] and opened.name == "small"
    assert opened.classes == ("cat", "dog") and opened.labels.tolist() == [1, 0]
    assert opened.read(1)[1, 2].tolist() == [9, 8, 7]
    open_set("hf:cifar10#train")
    assert hub[-1] == ("cifar10", None, "train")


def test_a_hub_set_that_does_not_fit_is_refused_in_one_line(hub):
    with pytest.raises(InputError, match="names no split"):
        open_set("hf:org/pets")
    with pytest.raises(InputError, match="cannot be opened: no such data set") as caught:
        open_set("hf:org/gone#test")
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="no column of pictures"):
        open_set("hf:org/words#test")


def test_without_the_datasets_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match="pip install datasets"):
        open_set("hf:org/pets#test")


def test_shared_packs_open(shared_data):
    for path in sorted(shared_data.glob("*.npz")):
        if path.stem in ("mnist", "wildlife_textures"):
            continue
        opened = open_set(f"pack:{path}", limit=3)
        assert all(
            images.prepare(opened.read(i), images.Preprocess((32, 32))).shape == (3, 32, 32)
            for i in range(3)
        )
