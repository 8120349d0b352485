"""Figure 13's measure. Oracle: classifiers whose gradient is known by hand.

The generator is tiny and random: with it only the machinery is tested.
"""

import numpy as np
import pytest
import torch
from torch import nn

from counterlens.ball import row_seeds
from counterlens.classifier import Classifier
from counterlens.data import write_pack
from counterlens.explanations.gradients import ARMS, gradients, magnitude
from counterlens.generators.diffusion import model as latent
from counterlens.generators.diffusion.optimise import ChainSettings, Term
from counterlens.images import png_bytes
from counterlens.models.sources import checkpoint
from counterlens.objectives import entry
from counterlens.types import Preprocess
from counterlens.workflows.reproduce import digin_figure13 as gradient_figure
from counterlens.workflows.reproduce.digin_figure13 import figure13
from diffusion_models import TINY, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")


def term(weight: torch.Tensor) -> Term:
    """A linear score of the pixels: its gradient is the weight."""
    return Term(entry(lambda x: (x * weight).sum((1, 2, 3))[:, None], torch.tensor([0])), 16)


def test_without_augmentation_the_share_is_that_of_the_weights(rng):
    weight = torch.randn(3, 16, 16, generator=rng)
    mask = torch.zeros(1, 16, 16, dtype=torch.bool)
    mask[:, 4:12, 4:12] = True
    made = gradients(term(weight), torch.rand(1, 3, 16, 16, generator=rng), mask,
                     ChainSettings(cuts=0), seeds=row_seeds(1, 0))  # fmt: skip
    torch.testing.assert_close(made.values[0], weight)
    mass = weight.abs().sum(0)
    assert made.inside.item() == pytest.approx((mass[4:12, 4:12].sum() / mass.sum()).item())
    torch.testing.assert_close(magnitude(made.values)[0], mass)


def test_cut_outs_average_noise_of_alternating_sign_away_and_keep_what_is_smooth():
    board = (torch.arange(16)[:, None] + torch.arange(16)) % 2 * 2.0 - 1
    weight = board.expand(3, -1, -1).clone()
    weight[:, 5:11, 5:11] = 1.0  # the thing: one sign; all else: a chessboard
    mask = torch.zeros(1, 16, 16, dtype=torch.bool)
    mask[:, 5:11, 5:11] = True
    shares = []
    for name in ("no augmentation", "cut-outs"):
        made = gradients(term(weight), torch.full((1, 3, 16, 16), 0.5), mask, ARMS[name],
                         seeds=row_seeds(1, 0))  # fmt: skip
        shares.append(made.inside.item())
    assert shares[0] == pytest.approx(36 / 256)
    assert shares[1] > 1.5 * shares[0]


@pytest.fixture
def model(tmp_path):
    """A shipped kind of network with random weights."""
    from counterlens.models.nets.resnets import build

    torch.manual_seed(0)
    architecture = {"kind": "resnet18", "widths": [4, 4, 4, 4]}
    net = build(architecture, 2)
    seen = {"size": [16, 16], "crop": None, "interpolation": "bilinear"}
    card = {"name": "random", "architecture": architecture, "classes": ["cat", "dog"],
            "mean": [0.5] * 3, "std": [0.25] * 3, "preprocess": seen}  # fmt: skip
    checkpoint.save(tmp_path / "model", net, card)
    return str(tmp_path / "model")


def test_a_set_with_masks_gives_the_figure(model, tmp_path):
    generator = np.random.default_rng(0)
    pictures = [generator.integers(0, 256, (16, 16, 3), dtype=np.uint8) for _ in range(3)]
    trimap = np.full((16, 16), 2, np.uint8)
    trimap[4:12, 4:12] = 1
    encoded = [png_bytes(np.repeat(trimap[..., None], 3, axis=2))] * 2
    encoded.append(png_bytes(np.full((16, 16, 3), 2, np.uint8)))  # nothing is marked there
    write_pack(
        tmp_path / "things.npz", pictures, [0, 1, 0], ["cat", "dog"],
        mask_png=np.frombuffer(b"".join(encoded), np.uint8),
        mask_offsets=np.cumsum([0, *map(len, encoded)]),
    )  # fmt: skip
    run = figure13(model=model, data=f"pack:{tmp_path / 'things.npz'}", shown=3,
                   out=tmp_path / "run", device="cpu", quiet=True).run  # fmt: skip
    rows = run.table("gradients")
    assert {row["id"] for row in rows} == {"things/0", "things/1"} and len(rows) == 6
    assert {row["class"] for row in rows if row["id"] == "things/1"} == {"dog"}
    assert all(row["area"] == 0.25 and 0 < row["inside"] < 1 for row in rows)
    mean = np.mean([row["inside"] for row in rows if row["arm"] == "cut-outs"])
    number = run.numbers["gradient.cut-outs.inside"]
    assert number.value == pytest.approx(mean) and number.n == 2
    gain = run.numbers["gradient.cut-outs_and_noise.gain"]
    plain = np.mean([row["inside"] for row in rows if row["arm"] == "no augmentation"])
    noisy = np.mean([row["inside"] for row in rows if row["arm"] == "cut-outs and noise"])
    assert gain.value == pytest.approx(noisy - plain)
    assert (run.folder / "images" / "figure-000.png").is_file() and run.done


def test_without_masks_a_generator_draws_pictures_and_masks(model, tmp_path, monkeypatch):
    pytest.importorskip("diffusers")
    monkeypatch.setattr(gradient_figure, "COUNTERFACTUAL", ChainSettings(steps=4))
    latent.save(tiny_model(TINY), tmp_path / "tiny", card={"name": "tiny random"})
    run = figure13(model=model, data="sample:cifar10", generator=str(tmp_path / "tiny"), shown=3,
                   out=tmp_path / "run", device="cpu", quiet=True).run  # fmt: skip
    rows = run.table("gradients")
    assert [row["class"] for row in rows[::3]] == ["cat", "dog", "cat"]
    assert all(0 < row["area"] <= 1 for row in rows)


def test_a_classifier_without_a_gradient_gives_no_number(tmp_path):
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    with torch.no_grad():
        net[2].weight.zero_()
    flat = Classifier(net, ("a", "b"), preprocess=Preprocess((16, 16)), name="flat").eval()
    flat.requires_grad_(False)
    things = gradient_figure.ObjectImages(
        ("one",), torch.rand(1, 3, 16, 16), torch.ones(1, 16, 16, dtype=torch.bool), (0,)
    )
    made = gradient_figure._arm(flat, things, "no augmentation", 0, lambda line: None)
    numbers = gradient_figure._numbers(things, {"no augmentation": made})
    assert numbers["gradient.no_augmentation.inside"].value is None
