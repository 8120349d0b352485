"""DVCE and --evaluate through the command line, with a tiny random generator: machinery alone.

Oracles: distances and answers computed again from the PNG files.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from counterlens import images
from counterlens.cli import app
from counterlens.explanations.counterfactuals import dvce
from counterlens.generators.diffusion import model as latent
from counterlens.models import load
from counterlens.runs import Run
from diffusion_models import tiny_model

pytest.importorskip("diffusers")
pytestmark = pytest.mark.usefixtures("one_thread")

MODEL = """
import torch
from torch import nn
from counterlens.classifier import Classifier
from counterlens.types import Preprocess

NAMES = "airplane automobile bird cat deer dog frog horse ship truck".split()

def build(seed=0, side=16):
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(128, 10),
    )
    with torch.no_grad():
        net[-1].weight *= 20
    return Classifier(net, NAMES, preprocess=Preprocess((side, side)), name=f"small-{seed}")

def other():
    return build(1, 32)

def grey():
    net = nn.Sequential(nn.Flatten(), nn.Linear(256, 10))
    return Classifier(net, NAMES, (0.5,), (0.5,), preprocess=Preprocess((16, 16)), name="grey")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("quality")
    (folder / "small.py").write_text(MODEL)
    latent.save(tiny_model(), folder / "tiny", card={"name": "tiny random"})
    return folder


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(dvce, "PAPER", dvce.DvceSettings(steps=8, start=3, cuts=2))


def call(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(w) for w in words], catch_exceptions=False)
    return result.exit_code, result.stdout.strip().splitlines()[-1] if result.stdout else ""


def test_dvce_explains_a_picture_with_a_helper_and_a_second_opinion(folder, tmp_path):
    model = f"{folder}/small.py:build"
    code, last = call(
        "explain", model, "sample:cifar10#0:2", "--method", "dvce", "--generator", folder / "tiny",
        "--robust", f"{folder}/small.py:other", "--with", f"{folder}/small.py:other", "--target",
        "cat", "--steps", 6, "--out", tmp_path / "run", "--device", "cpu", "-q",
    )  # fmt: skip
    assert code == 0
    run = Run.open(Path(last))
    rows = run.table("counterfactuals")
    assert [row["method"] for row in rows] == ["dvce", "dvce"]
    net = load(model, device="cpu")
    for row in rows:
        x, z = (images.read(run.folder / row[key]) / 255 for key in ("original", "image"))
        assert row["distance"] == pytest.approx(np.linalg.norm((z - x).ravel()), rel=1e-6)
        said = net(torch.from_numpy(z).permute(2, 0, 1)[None].float()).softmax(1)[0]
        assert row["after"] == pytest.approx(said[net.classes.index("cat")].item(), abs=1e-4)
        assert row["answer"] == net.classes[int(said.argmax())]
        assert row["opinions"][0]["judge"] == "small-1"
    assert run.numbers["counterfactual.dvce.reached"].n == 2
    assert run.manifest["helper"] == "small-1"
    assert "towards cat" in (run.folder / "report.html").read_text()


def test_methods_are_compared_from_the_command_line(folder, tmp_path):
    code, last = call(
        "explain", f"{folder}/small.py:build", "sample:cifar10#0:80", "--evaluate", "--arm",
        "pixel", "--arm", "dvce", "--generator", folder / "tiny", "--with",
        f"{folder}/small.py:other", "--targets", 2, "--steps", 2, "--batch", 32,
        "--out", tmp_path / "run", "--device", "cpu", "-q",
    )  # fmt: skip
    assert code == 0
    run = Run.open(Path(last))
    assert {row["method"] for row in run.table("quality")} == {"pixel", "dvce"}
    assert "quality_gap.dvce-less-pixel.agreed" in run.numbers
    notes = " ".join(row["note"] for row in run.table("notes"))
    assert "answered wrong and left out" in notes


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--evaluate", "--arm", "magic"], "arm is 'magic', expected one of pixel"),
        (["--evaluate", "--radius", "1", "--radius", "2"], "got 2 budgets"),
        (["--evaluate", "--targets", "0"], "targets 0"),
        (["--evaluate", "--arm", "pixel", "--lpips", "nowhere.ckpt"], "not at nowhere.ckpt"),
        (["--method", "dvce", "--generator", "nowhere/at/all"], "no generator"),
        (["--worst", "3"], "folder of an audit"),
        (["--train", "sample:cifar10"], "folder of an audit"),
    ],
)
def test_bad_input_is_one_line(words, told, folder, tmp_path, monkeypatch, capsys):
    from counterlens.cli import main

    model = [f"{folder}/small.py:build", "sample:cifar10#0:4"]
    line = ["counterlens", "explain", *model, *words, "--device", "cpu", "--out", "made", "-q"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", line)
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err.strip().splitlines()
    assert ended.value.code == 2
    assert told in said[-1]
    assert not (tmp_path / "made").exists()


def test_a_grey_model_cannot_be_explained_by_a_colour_generator(folder, tmp_path):
    from counterlens.errors import InputError

    with pytest.raises(InputError, match="grey"):
        call("explain", f"{folder}/small.py:grey", "sample:cifar10#0", "--method", "dvce",
             "--generator", folder / "tiny", "--out", tmp_path / "run", "--device", "cpu",
             "-q")  # fmt: skip
