"""Counterfactuals of units and components, on a network whose units are mean colours.

Oracle: means of the pixels on disk. The generator is tiny and random: machinery, not pictures.
"""

import numpy as np
import pytest
import torch
from torch import nn

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals.attention_masks import attention_masks
from counterlens.generators.diffusion import model as latent
from counterlens.images import read, write_png
from counterlens.types import Preprocess
from counterlens.workflows.neurons import edits as neurons_edits
from counterlens.workflows.neurons.run import neurons
from diffusion_models import TINY, tiny_model

pytest.importorskip("diffusers")
pytestmark = pytest.mark.usefixtures("one_thread")
LOUD = 100.0  # units that outweigh what is held, so that a few updates of a tiny generator are seen
SHORT = ["steps=3", "updates=3", "cuts=2"]


@pytest.fixture
def colours() -> Classifier:
    net = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 3, 1, bias=False), nn.ReLU()),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2),
    )  # fmt: skip
    with torch.no_grad():
        net[0][0].weight.copy_(LOUD * torch.eye(3)[..., None, None])
        net[3].bias.zero_()
        net[3].weight.copy_(torch.tensor([[1.0, 0.0, -1.0], [-1.0, 0.0, 1.0]]))
    side = TINY.side
    made = Classifier(net, ("cat", "dog"), preprocess=Preprocess((side, side)), name="colours")
    return made.eval().requires_grad_(False)


@pytest.fixture
def generator(tmp_path) -> str:
    latent.save(tiny_model(), tmp_path / "tiny", card={"name": "tiny random"})
    return str(tmp_path / "tiny")


@pytest.fixture
def photo(tmp_path) -> str:
    rng = torch.Generator().manual_seed(0)
    write_png(tmp_path / "photo.png", torch.rand(3, 16, 16, generator=rng))
    return str(tmp_path / "photo.png")


def mask_of(run):
    return read(run.folder / "images" / "picture-000-mask.png")[..., 0] >= 128


def test_a_unit_is_raised_and_lowered_with_the_thing_kept(colours, generator, photo, tmp_path):
    mask = np.zeros((16, 16), np.uint8)
    mask[:, :8] = 255
    write_png(tmp_path / "mask.png", mask)
    run = neurons(
        colours, unit=[1], image=[photo], method="counterfactual", generator=generator,
        changes=SHORT, mask=str(tmp_path / "mask.png"), out=tmp_path / "run", device="cpu",
        quiet=True,
    ).run  # fmt: skip
    rows = {row["how"]: row for row in run.table("neurons")}
    assert set(rows) == {"raised", "lowered"}
    for row in rows.values():
        pixels = read(run.folder / row["image"]) / 255
        assert row["activation"] == pytest.approx(LOUD * pixels[..., 1].mean(), abs=1e-3)
        original = read(run.folder / row["original"]) / 255
        assert row["start"] == pytest.approx(LOUD * original[..., 1].mean(), abs=1e-3)
        away = (pixels - original)[mask_of(run)]
        assert row["inside"] == pytest.approx(np.sqrt(np.square(away).mean()), abs=1e-3)
        answers = [colours(torch.from_numpy(x).permute(2, 0, 1)[None].float()).argmax().item()
                   for x in (pixels, original)]  # fmt: skip
        names = [colours.classes[k] == row["class"] for k in answers]
        assert [row["class_kept"], row["class_start"]] == names
        number = run.numbers[f"feature.unit-1.{row['how']}_class_kept"]
        assert row["class_start"] and number.value == float(names[0]) and number.n == 1
        assert run.numbers[f"feature.unit-1.{row['how']}_inside"].value == row["inside"]
    assert rows["raised"]["activation"] > rows["lowered"]["activation"] + 0.2
    kept = read(run.folder / "images" / "picture-000-mask.png")[..., 0]
    assert kept[:, 2].min() == 255 and kept[:, -3].max() == 0
    assert run.numbers["feature.unit-1.raised"].value == rows["raised"]["activation"]
    page = (run.folder / "report.html").read_text()
    assert "What changing a feature does" in page and run.done


def test_a_component_in_pixel_space_and_by_a_generator(colours, generator, photo, tmp_path):
    folder = tmp_path / "data"
    rng = torch.Generator().manual_seed(1)
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for i in range(4):
            x = torch.rand(3, 16, 16, generator=rng)
            x[0] *= (i + 1) / 4  # images of a class differ in red
            write_png(folder / name / f"{i}.png", x)
    given = {"npca": ["cat:0"], "image": [photo], "data": str(folder), "device": "cpu"}
    pixel = neurons(colours, **given, method="npca", out=tmp_path / "pixel", quiet=True).run
    (row,) = pixel.table("neurons")
    assert row["how"] == "feature attack" and row["activation"] > row["start"]
    drawn = neurons(
        colours, **given, method="counterfactual", generator=generator, changes=SHORT,
        out=tmp_path / "drawn", quiet=True,
    ).run  # fmt: skip
    up, down = drawn.table("neurons")
    assert up["name"] == "cat, component 0" and up["activation"] > down["activation"] + 0.1


def test_attention_masks_are_those_of_each_image_in_any_company(rng):
    model = tiny_model()
    x = torch.rand(2, 3, 16, 16, generator=rng)
    prompts, words = ["a photograph of a cat", "a photograph of a steel bridge"], ["cat", "bridge"]
    seeds = torch.tensor([5, 6])
    both = attention_masks(model, x, prompts, words, seeds=seeds, steps=4)
    one = attention_masks(model, x[1:], prompts[1:], words[1:], seeds=seeds[1:], steps=4)
    assert both.shape == (2, 1, 16, 16) and both.min() >= 0 and both.max() <= 1
    torch.testing.assert_close(both[1:], one, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"unit": [7]}, "units 0 … 2"),
        ({}, "no feature given"),
        ({"unit": [0], "mask": "nowhere.png"}, "no mask nowhere.png"),
        ({"unit": [0], "changes": ["speed=3"]}, "expected KEY=VALUE"),
        ({"npca": ["cat:0"]}, "data=SPEC"),
    ],
)
def test_what_does_not_fit_is_refused(colours, generator, photo, tmp_path, options, words):
    with pytest.raises(InputError, match=words):
        neurons(colours, image=[photo], method="counterfactual", generator=generator, **options,
                out=tmp_path / "run", device="cpu", quiet=True)  # fmt: skip


def test_running_out_of_memory_goes_on_with_less(colours, generator, photo, tmp_path, monkeypatch):
    real, tried = neurons_edits._make, []

    def failing(job, directions, rows, kept, names):
        tried.append((len(rows), kept))
        if len(rows) > 1 or kept != "blocks":
            raise torch.OutOfMemoryError("CUDA out of memory")
        real(job, directions, rows, kept, names)

    given = {"unit": [1], "method": "counterfactual", "generator": generator, "changes": SHORT,
             "device": "cpu", "quiet": True}  # fmt: skip
    other = tmp_path / "other.png"
    write_png(other, torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(1)))
    whole = neurons(colours, image=[photo, str(other)], out=tmp_path / "whole", **given).run
    monkeypatch.setattr(neurons_edits, "_make", failing)
    tight = neurons(colours, image=[photo, str(other)], out=tmp_path / "tight", **given).run
    assert tried[0][0] == 2 and tried[-3:] == [(1, 0), (1, "blocks"), (1, "blocks")]
    for a, b in zip(whole.table("neurons"), tight.table("neurons"), strict=True):
        assert a["id"] == b["id"] and a["activation"] == pytest.approx(b["activation"], abs=0.5)
