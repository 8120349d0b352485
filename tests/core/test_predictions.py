"""predict against the classifier called by hand on the same pictures, and with made-up trouble."""

import io
import pickle
import sys

import numpy as np
import pytest
import torch
from torch import nn

from counterlens import images as pictures
from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.images import ImageSet, prepare
from counterlens.predictions import _lines, predict
from counterlens.types import Preprocess


class Read:
    """Random pictures of several sizes, made from their number; some may be broken."""

    def __init__(self, broken: tuple[int, ...] = (), size: int | None = None) -> None:
        self.broken, self.size = broken, size

    def __call__(self, i: int) -> np.ndarray:
        if i in self.broken:
            raise InputError(f"picture {i} is no whole picture\n(cut off).")
        rng = np.random.default_rng(i)
        shape = (self.size, self.size) if self.size else (8 + i % 5, 8 + i % 3)
        return rng.integers(0, 256, (*shape, 3), dtype=np.uint8)


class ReadPixels:
    """Pictures that lie in one array."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels

    def __call__(self, i: int) -> np.ndarray:
        raise AssertionError("an array that fits is sliced, not read picture by picture")


class Net(nn.Module):
    """A small network that can run out of memory, overflow, and count its calls."""

    def __init__(self, most: int = 10**9, classes: int = 3) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, classes, 3)
        self.drop = nn.Dropout(0.5)
        self.most, self.seen = most, []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert 0 <= x.min() <= x.max() <= 1
        assert x.is_contiguous(memory_format=torch.channels_last)
        self.seen.append(len(x))
        if len(x) > self.most:
            raise torch.OutOfMemoryError("out of memory")
        return self.drop(self.layer(x).mean((2, 3)))


@pytest.fixture
def classifier() -> Classifier:
    torch.manual_seed(0)
    fit = Preprocess(size=(8, 8), crop=1.0, interpolation="bilinear")
    return Classifier(Net(), ["a", "b", "c"], preprocess=fit).eval()


def _set(n: int, read=None, name: str = "made") -> ImageSet:
    labels = np.arange(n, dtype=np.int64) % 3 - 1
    return ImageSet(name, [f"id{i}" for i in range(n)], labels, ("a", "b"), read or Read())


def _by_hand(classifier: Classifier, images: ImageSet, rows: range | list[int]) -> torch.Tensor:
    stack = [prepare(images.read(i), classifier.preprocess) for i in rows]
    x = torch.from_numpy(np.stack(stack)).float() / 255
    with torch.no_grad():
        return classifier(x.contiguous(memory_format=torch.channels_last))


@pytest.mark.parametrize("batch", [1, 4, 10, "auto"])
def test_logits_are_those_of_the_classifier_in_the_order_of_the_set(classifier, batch):
    images = _set(10)
    found = predict(classifier, images, batch=batch, workers=0, progress=False)
    expected = _by_hand(classifier, images, range(10))
    torch.testing.assert_close(found.logits, expected, rtol=0, atol=1e-6)
    assert found.labels.tolist() == images.labels.tolist()
    assert found.ids == tuple(images.ids)
    assert found.logits.dtype == torch.float32
    assert not found.logits.requires_grad


def test_worker_processes_change_nothing(classifier):
    images = _set(11)
    alone = predict(classifier, images, batch=2, workers=0, progress=False)
    helped = predict(classifier, images, batch=2, workers=2, progress=False)
    assert torch.equal(alone.logits, helped.logits)
    assert alone.ids == helped.ids


def test_an_array_that_fits_is_sliced(classifier):
    pixels = np.stack([Read(size=8)(i) for i in range(9)])
    found = predict(classifier, _set(9, ReadPixels(pixels)), batch=4, progress=False)
    expected = _by_hand(classifier, _set(9, Read(size=8)), range(9))
    torch.testing.assert_close(found.logits, expected, rtol=0, atol=1e-6)


def test_a_step_that_does_not_fit_is_halved_until_it_does(classifier):
    classifier.net.most = 3
    images = _set(20)
    found = predict(classifier, images, batch=16, workers=0, progress=False)
    assert classifier.net.seen[:4] == [16, 8, 4, 2]  # three failures, then what fits
    assert max(classifier.net.seen[3:]) == 2
    classifier.net.most = 20
    torch.testing.assert_close(found.logits, _by_hand(classifier, images, range(20)))


def test_when_one_picture_does_not_fit_the_error_says_so(classifier):
    classifier.net.most = 0
    with pytest.raises(InputError, match=r"one picture of \(8, 8\) does not fit"):
        predict(classifier, _set(4), batch=4, workers=0, progress=False)


def test_other_runtime_errors_are_not_taken_for_lack_of_memory(classifier):
    classifier.net.layer = nn.Conv2d(1, 3, 3)
    with pytest.raises(RuntimeError, match="channels"):
        predict(classifier, _set(4), batch=4, workers=0, progress=False)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_picture_stops_the_pass_with_one_line_that_names_it(classifier, workers):
    images = _set(9, Read(broken=(7,)))
    with pytest.raises(InputError) as raised:
        predict(classifier, images, batch=2, workers=workers, progress=False)
    assert str(raised.value) == "id7: picture 7 is no whole picture (cut off)."


@pytest.mark.parametrize("batch", [1, 3, 16])
def test_broken_pictures_can_be_left_out(classifier, batch, tmp_path):
    images = _set(9, Read(broken=(0, 4, 8)))
    kept = [1, 2, 3, 5, 6, 7]
    for out in (None, tmp_path / "logits.npy"):
        found = predict(
            classifier, images, batch=batch, workers=0, progress=False, skip_broken=True, out=out
        )
        assert found.ids == tuple(f"id{i}" for i in kept)
        assert found.labels.tolist() == images.labels[kept].tolist()
        assert [name for name, _ in found.broken] == ["id0", "id4", "id8"]
        expected = _by_hand(classifier, images, kept)
        torch.testing.assert_close(found.logits, expected, rtol=0, atol=1e-6)
    assert np.load(out).shape == (6, 3)


def test_a_set_of_broken_pictures_only_is_refused(classifier):
    images = _set(2, Read(broken=(0, 1)))
    with pytest.raises(InputError, match="none of the 2 pictures"):
        predict(classifier, images, workers=0, progress=False, skip_broken=True)


def test_a_really_corrupt_file_is_named(classifier, tmp_path):
    good = io.BytesIO(pictures.png_bytes(Read(size=8)(0))).getvalue()
    (tmp_path / "cut.png").write_bytes(good[: len(good) // 2])

    def read(i: int) -> np.ndarray:
        return pictures.read(tmp_path / "cut.png")

    with pytest.raises(InputError, match=r"cut\.png") as raised:
        predict(classifier, _set(1, read), workers=0, progress=False)
    assert "\n" not in str(raised.value)


def test_logits_asked_for_as_a_file_are_mapped_from_it(classifier, tmp_path):
    images, out = _set(10), tmp_path / "deep" / "logits.npy"
    found = predict(classifier, images, workers=0, progress=False, out=out)
    assert torch.equal(found.logits, torch.from_numpy(np.load(out)))
    torch.testing.assert_close(found.logits, _by_hand(classifier, images, range(10)))
    assert [p.name for p in out.parent.iterdir()] == ["logits.npy"]


def test_a_failed_pass_leaves_no_file_and_keeps_the_old_one(classifier, tmp_path):
    out = tmp_path / "logits.npy"
    np.save(out, np.zeros(3))
    with pytest.raises(InputError):
        predict(classifier, _set(4, Read(broken=(3,))), workers=0, progress=False, out=out)
    assert [p.name for p in tmp_path.iterdir()] == ["logits.npy"]
    assert np.load(out).tolist() == [0, 0, 0]


def test_large_logits_live_in_a_file_of_their_own(classifier, monkeypatch):
    monkeypatch.setattr("counterlens.predictions.LARGE", 10)
    images = _set(10)
    found = predict(classifier, images, workers=0, progress=False)
    torch.testing.assert_close(found.logits, _by_hand(classifier, images, range(10)))


def test_the_classifier_is_left_in_the_mode_it_came_in(classifier):
    classifier.train()
    classifier.net.layer.eval()
    first = predict(classifier, _set(5), workers=0, progress=False)
    again = predict(classifier, _set(5), workers=0, progress=False)
    assert torch.equal(first.logits, again.logits)  # dropout was off
    assert classifier.training
    assert classifier.net.drop.training
    assert not classifier.net.layer.training
    assert all(p.grad is None for p in classifier.parameters())


@pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_classifier_that_was_moved_here_can_still_be_differentiated(classifier, where):
    modes, move = [], classifier.to

    def moved(*args, **kwargs):
        modes.append(torch.is_inference_mode_enabled())  # what it makes could have no gradient
        return move(*args, **kwargs)

    classifier.to = moved
    predict(classifier.to(where), _set(4), workers=0, progress=False)
    assert modes and not any(modes)
    x = torch.rand(2, 3, 8, 8, device=where).to(memory_format=torch.channels_last).requires_grad_()
    classifier(x).sum().backward()
    assert x.grad is not None and x.grad.abs().sum() > 0


def test_rows_that_are_not_finite_are_counted(classifier):
    with torch.no_grad():
        classifier.net.layer.weight.fill_(0)
        classifier.net.layer.bias.copy_(torch.tensor([0.0, torch.inf, 0.0]))
    assert predict(classifier, _set(5), workers=0, progress=False).nonfinite == 5


def test_logits_that_do_not_fit_the_class_names_are_refused(classifier):
    classifier.classes = ("a", "b")
    with pytest.raises(InputError, match="3 logits for its 2 class names"):
        predict(classifier, _set(2), workers=0, progress=False)


def test_an_empty_set_is_refused(classifier):
    with pytest.raises(InputError, match="made holds no pictures"):
        predict(classifier, _set(0), progress=False)


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"workers": -1}])
def test_senseless_settings_are_refused(classifier, wrong):
    with pytest.raises(InputError, match="expected"):
        predict(classifier, _set(2), progress=False, **wrong)


def test_progress_lines_tell_share_rate_and_time_left_and_grow_rare(capsys):
    now = [0.0]
    show = _lines("cifar10", 1000, lambda: now[0])
    for now[0], done in [(1.0, 50), (11.0, 550), (21.5, 600), (32.0, 960), (50.0, 999)]:
        show(done)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "cifar10: 550 of 1,000 (55%), 50 images/s, 9 s left",
        "cifar10: 960 of 1,000 (96%), 30 images/s, 1 s left",
    ]


def test_the_bar_goes_to_standard_error(classifier, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    predict(classifier, _set(5), workers=0, progress=True)
    assert capsys.readouterr().out == ""


def test_batches_travel_to_spawned_workers(classifier):
    from counterlens.predictions import _Batches

    source = _Batches(_set(5), classifier.preprocess, 3, 2)
    again = pickle.loads(pickle.dumps(source))
    assert torch.equal(again[1].pixels, source[1].pixels)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shape", [(8, 8), (9, 30), (40, 11), (64, 64), (5, 5)])
def test_the_short_cut_of_a_set_gives_the_same_pixels_as_the_long_way(tmp_path, channels, shape):
    from counterlens.data.sets import ReadFiles, subset
    from counterlens.data.sources.packed import open_packs, write_pack

    whole = [np.random.default_rng(i).integers(0, 256, (*shape, 3), np.uint8) for i in range(3)]
    for i, pixels in enumerate(whole):
        pictures.write_png(tmp_path / f"{i}.png", pixels)
    write_pack(tmp_path / "a.npz", whole[:2], [0, 0], ["x"])
    write_pack(tmp_path / "b.npz", whole[2:], [0], ["x"])
    joined = open_packs(f"{tmp_path / 'a.npz'}+{tmp_path / 'b.npz'}", name="ab")
    reads = [
        (ReadFiles(tmp_path, ("0.png", "1.png", "2.png")), [0, 1, 2]),
        (joined.read, [0, 1, 2]),
        (subset(joined, [2, 0]).read, [2, 0]),
    ]
    for fit in (Preprocess((8, 8), 0.875, "bicubic"), Preprocess((8, 8), None, "bilinear")):
        for read, rows in reads:
            assert hasattr(read, "prepared")
            for i, row in enumerate(rows):
                short = pictures.prepared(read, i, fit, channels=channels)
                assert np.array_equal(short, prepare(whole[row], fit, channels=channels))
