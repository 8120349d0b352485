"""The mean of checkpoints, against the mean of their tensors computed by hand in float64."""

import sys
from pathlib import Path

import pytest
import torch

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.models.nets import resnets as nets
from counterlens.models.sources import checkpoint
from counterlens.types import Preprocess

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from average_weights import averaged

WIDTHS = [4, 4, 4, 4]


def made(folder: Path, seed: int, widths: list[int] = WIDTHS) -> Path:
    torch.manual_seed(seed)
    architecture = {"kind": "resnet18", "widths": widths}
    net = nets.build(architecture, 3)
    net(torch.rand(8, 3, 16, 16))  # statistics of batch norm that differ
    model = Classifier(
        net.eval(), ("a", "b", "c"), preprocess=Preprocess((16, 16)), name=f"m{seed}"
    )
    facts = {"architecture": architecture, "temperature": 0.5, "recipe": {"seed": seed}}
    return checkpoint.save(folder, model, facts)


def test_every_tensor_is_the_weighted_mean_and_the_card_names_the_parts(tmp_path):
    folders = [made(tmp_path / str(i), i) for i in range(2)]
    mean = checkpoint.load(averaged(folders, [1, 3], "mean", tmp_path / "mean"))
    states = [checkpoint.load(folder).net.state_dict() for folder in folders]
    seen = 0
    for key, value in mean.net.state_dict().items():
        if value.is_floating_point():
            by_hand = 0.25 * states[0][key].double() + 0.75 * states[1][key].double()
            torch.testing.assert_close(value.double(), by_hand.half().double(), rtol=0, atol=2e-3)
            seen += "running" in key
    assert seen and mean.name == "mean" and mean.card["temperature"] == 1.0
    assert [(p["name"], p["share"]) for p in mean.card["average_of"]] == [
        ("m0", 0.25),
        ("m1", 0.75),
    ]
    assert "recipe" not in mean.card  # it is made by no recipe, its parts are
    x = torch.rand(2, 3, 16, 16)
    assert not torch.allclose(mean(x), checkpoint.load(folders[0])(x), atol=1e-3)


def test_models_of_other_layers_and_shares_that_do_not_fit_are_refused(tmp_path):
    one, other = made(tmp_path / "0", 0), made(tmp_path / "1", 1, [4, 4, 4, 8])
    with pytest.raises(InputError, match="differ in architecture"):
        averaged([one, other], [1, 1], "mean", tmp_path / "mean")
    with pytest.raises(InputError, match="got 2 models and 1 shares"):
        averaged([one, one], [1], "mean", tmp_path / "mean")
    assert not (tmp_path / "mean").exists()
