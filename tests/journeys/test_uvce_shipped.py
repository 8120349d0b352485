"""A cat becomes a dog with the shipped generator and the shipped plain classifier, on a CPU.

Oracles: the picture itself (PSNR), a robust classifier that took no part, the background.
"""

import pytest
import torch

from counterlens import zoo
from counterlens.images import read
from counterlens.models import load
from counterlens.workflows.explain.run import explain

pytestmark = pytest.mark.slow


def test_a_cat_becomes_a_dog_and_its_background_stays(tmp_path):
    if not zoo.generators():
        pytest.skip("no generator is shipped in this build")
    pytest.importorskip("diffusers")
    made = explain(
        "zoo:cifar10-plain-small", ["sample:cifar10#0"], target=["dog"], method="diffusion",
        out=tmp_path / "run", device="cpu", quiet=True,
    ).run  # fmt: skip
    (row,) = made.table("uvce")
    assert row["predicted"] == "cat" and row["answer"] == "dog" and row["after"] > 0.8
    assert row["psnr"] >= 30
    assert 0.1 < row["mask_share"] < 0.8
    assert row["background"] < row["background_prompt_only"]
    z = torch.from_numpy(read(made.folder / row["image"])).permute(2, 0, 1)[None] / 255
    x = torch.from_numpy(read(made.folder / row["original"])).permute(2, 0, 1)[None] / 255
    robust = load("zoo:cifar10-ratio-0.25", device="cpu")
    dog = robust.classes.index("dog")
    with torch.no_grad():
        assert robust(z).softmax(1)[0, dog] > robust(x).softmax(1)[0, dog] + 0.2
