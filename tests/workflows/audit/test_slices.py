"""Slices of an audit: a real model that fails on noise, found, named and used as a column."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from counterlens import Classifier
from counterlens.data import open_set
from counterlens.errors import InputError
from counterlens.workflows._shared.result import Result
from counterlens.workflows.audit.run import audit
from counterlens.workflows.audit.slices import slices_of


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """zoo:cifar10-plain-small on 400 images; a fifth has so much noise that it errs more."""
    images = open_set("sample:cifar10", limit=400)
    pixels = np.stack([images.read(i) for i in range(400)])
    noise = np.random.default_rng(0).normal(0, 60, pixels[::5].shape)
    pixels[::5] = (pixels[::5] + noise).clip(0, 255).astype(np.uint8)
    out = tmp_path_factory.mktemp("slices") / "run"
    return audit(
        "zoo:cifar10-plain-small", (pixels, images.labels), slices=True, quiet=True, out=out,
        anyway=True, require="slices.confirmed<=0",
    )  # fmt: skip


def test_the_noisy_images_are_a_confirmed_slice(result: Result) -> None:
    first = result.table("slices")[0]
    assert first["confirmed"] and "sharp" in first["name"]
    rows = result.table("slice_images")
    noisy = [i % 5 == 0 for i, row in enumerate(rows) if row["slice"].startswith("1:")]
    assert np.mean(noisy) > 0.6
    assert not result.table("gates")[0]["passed"]
    assert "confirmed" in result.report.read_text()
    assert result.images("slice:1")


def test_verdicts_counts_and_intervals_agree(result: Result) -> None:
    rows = result.table("slices")
    for row in rows:
        assert row["confirmed"] == (row["low"] is not None and row["low"] > 0)
    assert result.numbers["slices.confirmed"].value == sum(row["confirmed"] for row in rows)
    for row in rows:
        number = result.numbers.get(f"slices.{row['slice']}.excess")
        assert number is None or (number.low, number.high) == (row["low"], row["high"])


def test_the_slices_of_a_run_are_a_column(result: Result, tmp_path: Path) -> None:
    images = open_set("sample:cifar10", limit=20)
    with pytest.raises(InputError, match="none of the images"):
        slices_of(f"slices:{result.folder}", images)
    ids = [row["image"] for row in result.table("slice_images")]
    own = replace(images, ids=ids[:20])
    assert set(slices_of(f"slices:{result.folder}", own)) <= {
        "no slice", *(row["slice"] for row in result.table("slice_images")),
    }  # fmt: skip


class Pooled(torch.nn.Module):
    """No last linear layer: logits are pooled from a convolution of another width."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 20, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).mean((2, 3))[:, :10]


def test_bad_slices_are_one_line() -> None:
    model = Classifier(Pooled(), open_set("sample:cifar10").classes, size=32)
    with pytest.raises(InputError, match=r"slices: Pooled has no linear layer.*slice_encoder="):
        audit(model, "sample:cifar10", slices=True, limit=20, quiet=True)
    with pytest.raises(InputError, match="is given without slices"):
        audit(model, "sample:cifar10", slice_encoder="zoo:cifar10-clip", limit=20, quiet=True)
    with pytest.raises(InputError, match="expected an image–text pair"):
        audit(model, "sample:cifar10", slices=True, slice_encoder="zoo:cifar10-plain-small")
