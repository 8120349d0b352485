"""Explain, neurons and reproduce end to end, on a small factory model and odd pictures."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from counterlens import images
from counterlens.cli import app
from counterlens.errors import InputError
from counterlens.runs import Run
from counterlens.workflows.explain import pixel as explain_pixel
from counterlens.workflows.explain.run import explain
from counterlens.workflows.reproduce.figures import FIGURES, figure

MODEL = """
import torch
from torch import nn
from counterlens.classifier import Classifier
from counterlens.types import Preprocess

NAMES = "airplane automobile bird cat deer dog frog horse ship truck".split()

def build(seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(128, 10),
    )
    with torch.no_grad():
        net[-1].weight *= 20
    return Classifier(net, NAMES, preprocess=Preprocess((32, 32)), name=f"small-{seed}")

def other():
    return build(1)
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "small.py").write_text(MODEL)
    return f"{tmp_path}/small.py:build"


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "photo.png"
    images.write_png(path, rng.integers(0, 256, (40, 48, 3), dtype=np.uint8))
    return path


def call(*words: object) -> Run:
    result = CliRunner().invoke(app, [str(w) for w in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return Run.open(Path(result.stdout.strip().splitlines()[-1]))


def test_a_photograph_gets_counterfactuals_a_second_opinion_and_a_report(model, photo, tmp_path):
    run = call(
        "explain", model, photo, "--target", "cats", "--target", "predicted", "--with",
        model.replace(":build", ":other"), "--steps", 8, "--radius", 1.5, "--radius", "0.5",
        "--out", tmp_path / "run", "--device", "cpu", "-q",
    )  # fmt: skip
    rows = run.table("counterfactuals")
    assert {row["radius"] for row in rows} == {0.5, 1.5}
    assert "cat" in {row["target"] for row in rows}
    original = images.read(run.folder / rows[0]["original"]).astype(float)
    for row in rows:
        seen = images.read(run.folder / row["image"]).astype(float)
        assert np.linalg.norm((seen - original).ravel() / 255) <= row["radius"]
        assert row["changed"] == int((seen != original).any(2).sum())
        assert (run.folder / row["difference"]).is_file()
        assert row["opinions"][0]["judge"] == "small-1"
        assert row["verdict"] in ("class evidence", "noise", "not reached")
    assert run.numbers["counterfactual.l2-1.5.agreed"].n == len(rows) // 2
    assert (run.folder / "images" / "figure-000.pdf").read_bytes().startswith(b"%PDF")
    page = (run.folder / "report.html").read_text()
    assert page.count('type="range"') == len({row["target"] for row in rows})
    assert not re.search(r'(src|href)="(https?:)?//', page)
    notes = [row["note"] for row in run.table("notes")]
    assert any("already the answer" in note.lower() for note in notes)


@pytest.mark.parametrize("method", ["cam", "colour", "frame"])
def test_maps_and_edits_end_to_end(method, model, photo, tmp_path):
    out = tmp_path / "run"
    words = ["explain", model, str(photo), "--method", method, "--out", str(out), "--json", "-q"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    numbers = json.loads(result.stdout)["numbers"]
    run = Run.open(out)
    rows = run.table("maps" if method == "cam" else "edits")
    assert rows and all((run.folder / row["image"]).is_file() for row in rows)
    if method == "cam":
        assert [row["method"] for row in rows] == ["grad-cam", "hires-cam"]
    else:
        flipped = any(row["flipped"] for row in rows)
        assert numbers[f"bias.{method}_flip"]["value"] == float(flipped)
        assert numbers[f"bias.{method}_flip"]["n"] == 1


def test_units_are_pictured_from_nothing_and_from_a_photograph(model, photo, tmp_path):
    run = call(
        "neurons", model, "--unit", 3, "--logit", "dog", "--image", photo, "--steps", 4,
        "--out", tmp_path / "run", "--device", "cpu", "-q",
    )  # fmt: skip
    rows = run.table("neurons")
    assert [(row["kind"], row["how"]) for row in rows] == [
        ("unit", "from nothing"), ("logit", "from nothing"), ("unit", "feature attack"),
    ]  # fmt: skip
    assert all(row["activation"] >= row["start"] for row in rows)
    assert len(rows[0]["votes"]) == 3
    assert "From nothing" in (run.folder / "report.html").read_text()


@pytest.mark.parametrize("name", FIGURES)
def test_figures_of_the_paper_are_regenerated(name, model, tmp_path):
    other = model.replace(":build", ":other")
    ood = {"ood": "noise:blobs"} if FIGURES[name][1] else {}
    made = figure(
        name, models=[model, other], data="sample:cifar10#0:60", **ood, shown=2, steps=3,
        radius=[0.5, 1.0], out=tmp_path / "run", device="cpu", quiet=True,
    )  # fmt: skip
    assert made.figures or name == "ratio-figure5"
    rows = made.run.table("counterfactuals")
    assert rows and {row["model"] for row in rows} <= {"small-0", "small-1"}
    if name in ("ratio-figure2", "ratio-figure13"):
        assert all(row["label"] != row["predicted"] for row in rows)
    if name == "ratio-figure5":
        profile = made.run.table("confidence_radius")
        assert {row["radius"] for row in profile} == {0.0, 0.5, 1.0}
        attacked = [
            r["confidence"] for r in profile if r["set"] == "small-0, true class under attack"
        ]
        assert attacked == sorted(attacked, reverse=True)


def test_an_interrupted_run_goes_on_where_it_stopped(model, tmp_path, monkeypatch):
    asked = {"target": ["cat"], "radius": [0.5], "steps": 3, "batch": 1, "device": "cpu"}
    whole = explain(model, ["sample:cifar10#0:3"], out=tmp_path / "whole", quiet=True, **asked)
    searched = []
    real = explain_pixel.counterfactuals

    def counted(*args, **kwargs):
        if len(searched) == 2:
            raise KeyboardInterrupt
        searched.append(1)
        return real(*args, **kwargs)

    monkeypatch.setattr(explain_pixel, "counterfactuals", counted)
    with pytest.raises(KeyboardInterrupt):
        explain(model, ["sample:cifar10#0:3"], out=tmp_path / "part", quiet=True, **asked)
    monkeypatch.setattr(explain_pixel, "counterfactuals", real)
    rest = explain(
        model, ["sample:cifar10#0:3"], out=tmp_path / "part", quiet=True, resume=True, **asked
    )
    assert rest.table("counterfactuals") == whole.table("counterfactuals") != []


def test_an_explanation_shows_itself_in_a_notebook(model, photo, tmp_path):
    made = explain(model, [photo], method="frame", out=tmp_path / "run", device="cpu", quiet=True)
    assert "data:image/png;base64," in made._repr_html_()
    array = images.read(photo)
    again = explain(model, [array], method="cam", out=tmp_path / "two", device="cpu", quiet=True)
    assert again.table("maps")[0]["id"] == "picture 1"


def odd_pictures(folder: Path) -> dict[str, Path]:
    rng = np.random.default_rng(1)
    rgb = Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8))
    names = ("grey.png", "alpha.png", "deep.png", "turned.jpg", "moving.gif", "dot.png")
    made = {name: folder / name for name in names}
    rgb.convert("L").save(made["grey.png"])
    rgb.convert("RGBA").save(made["alpha.png"])
    Image.fromarray(rng.integers(0, 2**16, (20, 30), dtype=np.uint16)).save(made["deep.png"])
    exif = Image.Exif()
    exif[0x0112] = 6
    rgb.save(made["turned.jpg"], exif=exif)
    rgb.save(made["moving.gif"], save_all=True, append_images=[rgb.rotate(90)])
    rgb.resize((1, 1)).save(made["dot.png"])
    return made


def test_grey_transparent_deep_turned_moving_and_tiny_pictures_are_explained(model, tmp_path):
    made = odd_pictures(tmp_path)
    done = explain(
        model, list(made.values()), target=["cat"], radius=[0.5], steps=2, out=tmp_path / "run",
        device="cpu", quiet=True,
    )  # fmt: skip
    assert [row["id"] for row in done.table("counterfactuals")] == list(made)
    notes = [row["note"] for row in done.run.table("notes")]
    assert any("dot.png has 1 × 1 pixels" in note for note in notes)


@pytest.mark.parametrize(
    ("images_", "settings", "words"),
    [
        (["photo"], {"target": ["catt"]}, "Nearest: cat"),
        (["photo"], {"target": ["99"]}, "0 … 9"),
        (["photo"], {"target": ["true"]}, "known label"),
        (["nowhere.png"], {}, "no such file"),
        (["sample:cifar10#nobody"], {}, "ids look like"),
        (["sample:cifar10#9:3"], {}, "has the pictures 0"),
        ([], {}, "no images"),
        (["photo"], {"radius": ["0"]}, "more than 0"),
        (["photo"], {"radius": ["x"]}, "8/255"),
        (["photo"], {"norm": "l3"}, "norm is"),
        (["photo"], {"method": "magic"}, "expected one of"),
        (["photo"], {"steps": 0}, "steps are 0"),
        (["photo"], {"worst": 3}, "folder of an audit"),
    ],
)
def test_bad_input_is_one_clear_line(images_, settings, words, model, photo, tmp_path):
    given = [str(photo) if one == "photo" else one for one in images_]
    with pytest.raises(InputError, match=words) as caught:
        explain(model, given, out=tmp_path / "run", device="cpu", quiet=True, **settings)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_the_surest_mistakes_of_an_audit_are_explained(model, tmp_path):
    from counterlens.data import open_set
    from counterlens.runs import store_logits

    data = open_set("sample:cifar10")
    run = Run.create(tmp_path / "audit", "audit", {"model": model, "data": "sample:cifar10"})
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(50, 10)) * np.linspace(1, 9, 50)[:, None]
    store_logits(run, "cifar10", logits, labels=data.labels[:50], ids=data.ids[:50])
    run.note(data=data.name, data_fingerprint={data.name: data.fingerprint})
    done = explain(
        str(run.folder), [], worst=2, radius=[0.5], steps=2, out=tmp_path / "run", device="cpu",
        quiet=True, trust_remote_code=True,
    )  # fmt: skip
    probs = torch.from_numpy(logits).softmax(1)
    wrong = [i for i in range(50) if probs[i].argmax() != data.labels[i]]
    worst = sorted(wrong, key=lambda i: -probs[i].max())[:2]
    rows = done.table("counterfactuals")
    assert list(dict.fromkeys(row["id"] for row in rows)) == [data.ids[i] for i in worst]


def test_pixels_are_searched_quickly_unless_told_otherwise_and_the_notes_say_how_to_refine(
    model, photo, tmp_path, monkeypatch
):
    asked = {"target": ["cat"], "radius": [0.5], "device": "cpu", "quiet": True}
    steps = []
    real = explain_pixel.counterfactuals

    def counted(*args, **kwargs):
        steps.append(kwargs["steps"])
        return real(*args, **{**kwargs, "steps": 2})

    monkeypatch.setattr(explain_pixel, "counterfactuals", counted)
    quick = explain(model, [photo], out=tmp_path / "quick", **asked).run
    fine = explain(model, [photo], out=tmp_path / "fine", steps=500, **asked).run
    assert steps == [100, 500]
    told = [row["note"] for row in quick.table("notes")]
    assert "Quick search of 100 steps. To refine it: --steps 500." in told
    assert not any("refine" in row["note"] for row in fine.table("notes"))


def test_a_cut_folder_says_so_and_each_picture_is_progress(model, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    (tmp_path / "many").mkdir()
    for i in range(18):
        pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        images.write_png(tmp_path / "many" / f"{i}.png", pixels)
    reported = []
    monkeypatch.setattr(explain_pixel, "doing", lambda *words: reported.append(words))
    asked = {"target": ["cat"], "radius": [0.5], "steps": 1, "device": "cpu", "quiet": True}
    cut = explain(model, [f"{tmp_path}/many"], out=tmp_path / "cut", **asked)
    assert [words[1:] for words in reported] == [(i, 16) for i in range(16)]
    assert len(cut.table("counterfactuals")) == 16
    told = [row["note"] for row in cut.run.table("notes")]
    assert "16 of 18 pictures of many; more: limit=18." in told
    two = explain(model, [f"{tmp_path}/many"], out=tmp_path / "two", limit=2, **asked)
    assert not any("--limit" in row["note"] for row in two.run.table("notes"))
