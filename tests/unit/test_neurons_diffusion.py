"""Units drawn by a generator, against a network whose units are the mean colours of an image.

Oracle: means of pixels. The generator is tiny and random: machinery, not pictures.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.generators import latent
from counterlens.images import read, write_png
from counterlens.types import Preprocess
from counterlens.workflows import neurons as workflow
from counterlens.workflows.neurons import neurons
from diffusion_models import TINY, tiny_model

pytest.importorskip("diffusers")


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def colours() -> Classifier:
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    with torch.no_grad():
        net[2].weight.copy_(torch.tensor([[1.0, 0.0, -1.0], [-1.0, 0.0, 1.0]]))
    side = TINY.side
    found = Classifier(net, ("cat", "dog"), preprocess=Preprocess((side, side)), name="colours")
    return found.eval().requires_grad_(False)


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    for name, colour in (("cat", (0.6, 0.2, 0.1)), ("dog", (0.1, 0.2, 0.5))):
        (folder / name).mkdir(parents=True)
        for i in range(2):
            x = torch.tensor(colour).view(3, 1, 1).expand(3, 16, 16) + 0.1 * i
            write_png(folder / name / f"{i}.png", x.contiguous())
    return folder


def test_three_arms_of_a_unit_and_what_they_reach(colours, data, tmp_path, monkeypatch):
    short = replace(workflow.COUNTERFACTUAL, steps=3, updates=4, cuts=2)
    monkeypatch.setattr(workflow, "COUNTERFACTUAL", short)
    folder = tmp_path / "tiny"
    latent.save(tiny_model(), folder, card={"name": "tiny random"})
    run = neurons(
        colours, unit=[0, 2], method="diffusion", generator=str(folder), data=str(data), count=2,
        out=tmp_path / "run", device="cpu", quiet=True,
    ).run  # fmt: skip
    rows = run.table("neurons")
    real = {row["unit"]: row for row in rows if row["how"] == "best real image"}
    assert real[0]["activation"] == pytest.approx(0.7, abs=0.003) and real[0]["word"] == "cat"
    assert real[2]["activation"] == pytest.approx(0.6, abs=0.003) and real[2]["word"] == "dog"
    made = [row for row in rows if row["how"] == "optimised"]
    assert len(made) == 4
    for row in made:
        pixels = read(run.folder / row["image"]) / 255
        assert row["activation"] == pytest.approx(pixels[..., row["unit"]].mean(), abs=1e-5)
        assert row["activation"] > row["start"]
    cross = run.table("cross_activation")
    means = [r["activation"] for r in made if r["unit"] == 0]
    assert cross[0]["unit 0"] == pytest.approx(sum(means) / 2, abs=1e-5)
    assert run.numbers["neurons.beats_prompt"].n == 2 and run.done
    assert (run.folder / "report.html").is_file()


def test_what_does_not_fit_is_refused(colours, tmp_path):
    with pytest.raises(InputError, match="expected pixel or diffusion"):
        neurons(colours, unit=[0], method="magic", out=tmp_path / "a")
    with pytest.raises(InputError, match="takes --unit"):
        neurons(colours, logit=["cat"], method="diffusion", out=tmp_path / "b")
