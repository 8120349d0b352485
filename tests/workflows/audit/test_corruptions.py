"""Corruptions of an audit against the classifier called by hand; mCE in closed form."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from counterlens.data import open_set
from counterlens.data.corruptions import COMMON, SEVERITIES, corrupt
from counterlens.errors import InputError
from counterlens.images import write_png
from counterlens.models import load
from counterlens.workflows.audit.corruptions import (
    ALEXNET,
    ALEXNET_CLEAN,
    mce_numbers,
    parse_severities,
)
from counterlens.workflows.audit.run import audit

MODEL, DATA = "zoo:cifar10-plain-small", "sample:cifar10"
GIVEN = {"limit": 24, "quiet": True, "workers": 0}


def test_each_cell_is_the_accuracy_on_the_corrupted_images(tmp_path):
    found = audit(
        MODEL,
        DATA,
        corruptions="contrast,occlusion",
        severities="1,5",
        out=tmp_path / "run",
        **GIVEN,
    )
    model, images = load(MODEL), open_set(DATA, limit=24, seed=0)
    rows = found.table("corruptions")
    assert [(row["corruption"], row["severity"]) for row in rows] == [
        *(("contrast", 1), ("contrast", 5), ("occlusion", 1), ("occlusion", 5)),
    ]
    shares = []
    for row in rows:
        x = np.stack(
            [
                corrupt(images.read(i), row["corruption"], row["severity"], seed=images.ids[i])
                for i in range(24)
            ]
        )
        with torch.no_grad():
            logits = model(torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255)
        share = float((logits.argmax(1).numpy() == images.labels).mean())
        shares.append(share)
        assert row["accuracy"] == pytest.approx(share) and row["n"] == 24
        assert row["low"] <= share <= row["high"]
    mean = found.numbers["corruption.contrast.accuracy"]
    assert mean.value == pytest.approx((shares[0] + shares[1]) / 2)
    assert "corruption.common.accuracy" not in found.numbers
    text = found.report.read_text(encoding="utf-8")
    assert "Accuracy by severity" in text and "Lowest under" in text


def settings(**given):
    return SimpleNamespace(corruption_files=None, seed=0, **given)


def test_a_model_with_the_errors_of_alexnet_has_an_mce_of_one():
    """10,000 images of which the share of ALEXNET is wrong at every severity."""
    n = 10_000
    clean = np.arange(n) >= round(ALEXNET_CLEAN * n)
    hits = {
        name: [np.arange(n) >= round(error * n) for _ in SEVERITIES]
        for name, error in ALEXNET.items()
    }
    numbers = mce_numbers(hits, SEVERITIES, clean, "made here", settings())
    mce, relative = (numbers[f"corruption.common.{k}"] for k in ("mce", "relative_mce"))
    assert mce.value == pytest.approx(1, abs=1e-9) and mce.low < 1 < mce.high
    assert relative.value == pytest.approx(1, abs=1e-9)
    assert "not the JPEG files of ImageNet-C" in mce.protocol


def test_the_errors_of_alexnet_belong_to_the_fifteen():
    """Their mean is the 78.9 % that an unnormalised mCE of AlexNet is."""
    assert list(ALEXNET) == list(COMMON)
    assert np.mean(list(ALEXNET.values())) == pytest.approx(0.78899, abs=1e-4)


def test_mce_needs_all_fifteen_at_all_severities():
    hits = {"fog": [np.ones(4, dtype=bool)]}
    numbers = mce_numbers(hits, (1,), np.ones(4, dtype=bool), "made here", settings())
    assert numbers["corruption.common.mce"].value is None
    assert "gaussian_noise is missing" in (numbers["corruption.common.mce"].reason or "")


def test_published_arrays_are_read_in_place_of_corrupting(tmp_path):
    """CIFAR-10-C's layout made of clean images: the accuracy is the clean one."""
    images = open_set(DATA, limit=6, seed=0)
    pixels = np.stack([images.read(i) for i in range(6)])
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "fog.npy", np.concatenate([pixels] * 5))
    np.save(folder / "labels.npy", np.concatenate([images.labels] * 5).astype(np.uint8))
    found = audit(
        MODEL,
        DATA,
        corruptions="fog",
        severities="2",
        corruption_files=f"cifar10-c@{tmp_path}",
        out=tmp_path / "run",
        **GIVEN,
    )
    model = load(MODEL)
    with torch.no_grad():
        answers = model(torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255).argmax(1)
    (row,) = found.table("corruptions")
    assert row["n"] == 6
    assert row["accuracy"] == pytest.approx(float((answers.numpy() == images.labels).mean()))
    assert "read from cifar10-c" in found.numbers["corruption.fog.accuracy"].protocol


def test_folders_of_imagenet_c_open_with_and_without_their_group(tmp_path):
    for place in ("fog/3", "weather/snow/1"):
        folder = tmp_path / place / "n01440764"
        folder.mkdir(parents=True)
        write_png(folder / "a.png", np.zeros((8, 8, 3), dtype=np.uint8))
    for part in ("fog/3", "snow/1"):
        opened = open_set(f"known:imagenet-c/{part}@{tmp_path}")
        assert len(opened) == 1 and "tench" in opened.classes[0]
    with pytest.raises(InputError, match="such as fog/3"):
        open_set(f"known:imagenet-c/fog@{tmp_path}")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"corruptions": "fogg"}, "did you mean fog"),
        ({"corruptions": "fog", "severities": "6"}, "expected some of 1, 2, 3, 4, 5"),
        ({"corruption_files": "cifar10-c@x"}, "is given without corruptions"),
        ({"corruptions": "fog", "corruption_files": "mnist-c@x"}, "expected NAME@ROOT"),
        ({"corruptions": "fog", "corruption_files": "cifar10-c@/no"}, "/no does not exist"),
    ],
)
def test_what_cannot_work_is_one_line(tmp_path, more, says):
    with pytest.raises(InputError, match=says):
        audit(MODEL, DATA, out=tmp_path / "run", **GIVEN, **more)
    assert not (tmp_path / "run").exists()


def test_severities_are_read_in_order():
    assert parse_severities("5,1,1") == (1, 5)
