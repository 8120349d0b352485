"""The temperature of an audit on sets of every size; the oracle is the loss on other images."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from counterlens.metrics import split_by_id
from counterlens.workflows.audit.run import audit
from counterlens.workflows.audit.temperature import LEAST, fit_temperature, set_apart


@pytest.mark.parametrize("n", [22, 50, 400])
def test_a_small_set_is_reported_on_whole(n: int) -> None:
    assert not set_apart([f"img{i}" for i in range(n)], np.ones(n, dtype=bool)).any()


def test_of_a_large_set_a_fifth_is_set_apart_by_id() -> None:
    ids, known = [f"img{i}" for i in range(2000)], np.arange(2000) % 2 == 0
    apart = set_apart(ids, known)
    assert (apart == split_by_id(ids, 0.2) & known).all()
    assert LEAST <= apart.sum() < 300


def calibrated(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a calibrated network that is right on most images: labels are drawn from it."""
    generator = torch.Generator().manual_seed(seed)
    z = 4 * torch.randn(n, 10, generator=generator)
    return z, torch.multinomial(z.softmax(1), 1, generator=generator).flatten()


@pytest.mark.parametrize("n", [22, 50])
def test_few_images_never_set_a_temperature_that_costs_likelihood_elsewhere(n: int) -> None:
    other, true = calibrated(4000, 99)
    for seed in range(5):
        fitted, numbers = fit_temperature(*calibrated(n, seed), f"{n} images of photos", 0)
        temperature = fitted or 1.0
        assert cross_entropy(other / temperature, true) <= cross_entropy(other, true)
        told = numbers["calibration.temperature"]
        assert told.value is None and "fitted on" not in told.protocol
        assert told.reason == (
            f"{n} images of photos, expected 100 or more to fit it on; temperature 1 is used"
        )


def test_an_audit_of_few_images_reports_on_all_and_names_no_fitted_temperature(
    tmp_path: Path,
) -> None:
    run = audit(
        "zoo:cifar10-plain-small", "sample:cifar10", limit=50, out=tmp_path / "run", device="cpu",
        quiet=True,
    )  # fmt: skip
    numbers = json.loads((run.folder / "result.json").read_text())["numbers"]
    assert numbers["accuracy.top1"]["n"] == 50
    assert numbers["calibration.temperature"]["value"] is None
    assert "temperature 1 is used" in numbers["calibration.temperature"]["reason"]
    assert not any("fitted on" in one["protocol"] for one in numbers.values())
    assert not any(key.endswith(("_scaled", "_nll")) for key in numbers if key != "calibration.nll")
    assert {row["when"] for row in run.table("reliability")} == {"before"}
