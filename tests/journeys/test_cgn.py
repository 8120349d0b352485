"""The CGN from the command line, tiny: train, generate, show, evaluate, and what is refused.

Oracles: the files each command must leave; shards made twice; the label is the class of the mask;
an untrained network, whose masks no reader can read, must be found collapsed.
"""

import json
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from counterlens.data import open_set, write_pack
from counterlens.generators.cgn import model as cgn
from counterlens.models import load
from counterlens.models.nets.vgg import LAYERS
from journeys.command import Command

TINY = (
    "epochs=1",
    "width=4",
    "critic_width=8",
    "examined=2",
    "digit_classifier_updates=1",
    "attempts=2",
)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A few MNIST digits and a narrow VGG."""
    folder = tmp_path_factory.mktemp("small")
    for name, count in (("mnist-train", 120), ("mnist", 100)):
        digits = open_set(f"sample:{name}")
        pictures = [digits.read(i) for i in range(count)]
        labels = digits.labels[:count].tolist()
        write_pack(folder / f"{name}.npz", pictures, labels, digits.classes)
    rng = torch.Generator().manual_seed(0)
    widths = (3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2)
    state = {}
    for i, (a, b) in zip(LAYERS, pairwise(widths), strict=True):
        state[f"features.{i}.weight"] = torch.randn(b, a, 3, 3, generator=rng) / 3
        state[f"features.{i}.bias"] = torch.zeros(b)
    save_file(state, folder / "vgg.safetensors")
    mnist = f"pack:{folder / 'mnist-train.npz'},pack:{folder / 'mnist.npz'}"
    return mnist, str(folder / "vgg.safetensors")


def changes(*more: str) -> list[str]:
    return [word for one in (*TINY, *more) for word in ("--set", one)]


def test_the_whole_way_from_digits_to_classifiers(
    counterlens: Command, small: tuple[str, str]
) -> None:
    mnist, vgg = small
    common = ["--mnist", mnist, "--seeds", "0", "--quiet"]
    trained = counterlens(
        "cgn", "train", "double-coloured", "--vgg", vgg, *common, *changes(), "--out", "cgn"
    )
    assert trained.code == 0 and trained.last == "cgn", trained.err
    tries = [
        json.loads(line) for line in Path("cgn/tables/attempts.jsonl").read_text().splitlines()
    ]
    assert [row["attempt"] for row in tries] == [0, 1] and all(r["intact"] < 10 for r in tries)
    numbers = json.loads(Path("cgn/result.json").read_text())["numbers"]
    assert numbers["cgn.masks.first_try"]["value"] == tries[0]["intact"] / 10
    assert "Collapsed masks after 2 tries" in Path("cgn/tables/notes.jsonl").read_text()
    assert {"round-1-epoch-01.png", "sheet-seed-0.png"} <= {
        p.name for p in Path("cgn/images").iterdir()
    }

    _generated(counterlens)
    shown = counterlens("cgn", "show", "cgn/seed-0", "--sheets", "1", "--out", "show", "--quiet")
    assert shown.code == 0 and Path("show/images/sheet-0.png").is_file()

    gan = counterlens(
        "cgn", "train", "double-coloured", "--kind", "gan", *common, *changes(), "--out", "gan"
    )
    assert gan.code == 0, gan.err
    told = counterlens(
        "cgn",
        "evaluate",
        "double-coloured",
        "--cgn",
        "cgn",
        "--gan",
        "gan",
        "--mnist",
        mnist,
        "--count",
        "100",
        "--epochs",
        "1",
        "--seen",
        "10",
        "--tsne",
        "20",
        "--out",
        "table",
        "--quiet",
    )
    assert told.code == 0, told.err
    rows = [
        json.loads(line) for line in Path("table/tables/classifiers.jsonl").read_text().splitlines()
    ]
    arms = ["original", "gan", "cgn", "original+gan", "original+cgn"]
    assert [row["arm"] for row in rows] == arms
    assert [row["pictures"] for row in rows] == [100, 100, 100, 200, 200]
    assert all(0 <= row["flips_background"] <= 1 and 0 < row["iou"] < 1 for row in rows)
    assert {"figure-heat.png", "figure-plane.png"} <= {
        p.name for p in Path("table/images").iterdir()
    }
    page = Path("table/report.html").read_text()
    assert "original+cgn" in page and "one hot pixel in the corner" in page
    assert all(0 <= row["object_iou"] <= 2 * row["iou"] for row in rows)  # iou is a mean of two
    numbers = json.loads(Path("table/result.json").read_text())["numbers"]
    assert numbers["cgn.trivial_corner.object_iou"]["value"] < 0.05  # a digit avoids the corner
    assert numbers["cgn.trivial_corner.iou"]["value"] > 0.4  # … and the background fills half
    assert numbers["cgn.trivial_corner.iou"]["n"] == 10
    kept = load("table/classifiers/original-cgn-0", device="cpu")
    assert kept(torch.rand(2, 3, 32, 32)).shape == (2, 10)


def _generated(counterlens: Command) -> None:
    """Shards are reproducible and resumable, and carry the class of the shape."""
    made = counterlens(
        "cgn", "generate", "cgn/seed-0", "--count", "400", "--ratio", "2", "--out", "a", "--quiet"
    )
    assert made.code == 0, made.err
    one = dict(np.load("a/data/shard-00000.npz"))
    assert len(one["x"]) == 400 and len(np.unique(one["mask"])) == 200
    assert all(len(set(one["y"][one["mask"] == m])) == 1 for m in range(200))
    for part in ("object", "background"):  # permutations of each batch of a hundred
        for start in range(0, 400, 100):
            rows = slice(start, start + 100)
            assert sorted(one[part][rows]) == sorted(one["y"][rows])
    shutil.copytree("a", "b")
    for name in ("DONE", "data/card.json", "data/shard-00000.npz"):
        Path("b", name).unlink()
    again = counterlens(
        "cgn",
        "generate",
        "cgn/seed-0",
        "--count",
        "400",
        "--ratio",
        "2",
        "--out",
        "b",
        "--resume",
        "--quiet",
    )
    assert again.code == 0, again.err
    two = dict(np.load("b/data/shard-00000.npz"))
    assert all(np.array_equal(one[key], two[key]) for key in one)


def test_what_does_not_fit_is_refused_in_one_line(
    counterlens: Command, small: tuple[str, str]
) -> None:
    mnist, _ = small
    net = cgn.build("cgn", width=4)
    card = {"kind": "cgn", "options": {"width": 4}, "name": "x", "data": {"fingerprint": "other"}}
    cgn.save(Path("other/seed-0"), net, {**card, "set": "coloured", "training": {"intact": 10}})
    cases = [
        (["cgn", "train", "grey"], "no set 'grey', expected one of coloured"),
        (["cgn", "train", "coloured", "--kind", "vae"], "expected one of cgn, gan"),
        (["cgn", "train", "coloured", "--mnist", "known:mnist@nowhere"], "mnist"),
        (["cgn", "train", "coloured", "--mnist", mnist, "--vgg", "no.pth"], "--vgg FILE"),
        (["cgn", "train", "coloured", "--seeds", "a"], "expected numbers such as"),
        (["cgn", "train", "wildlife", "--mnist", mnist, "--textures", "no"], "folder of DTD"),
        (["cgn", "train", "coloured", "--mnist", mnist, "--set", "epoch=1"], "epochs"),
        (["cgn", "generate", "nothing"], "holds no generator"),
        (["cgn", "generate", "other/seed-0", "--count", "10"], "at least 100"),
        (["cgn", "show", "other/seed-0", "--sheets", "0"], "expected 1 or more"),
        (["cgn", "evaluate", "wildlife", "--cgn", "other", "--mnist", mnist], "cgn of coloured"),
        (
            ["cgn", "evaluate", "coloured", "--cgn", "other", "--mnist", mnist],
            "other coloured data",
        ),
    ]
    for arguments, text in cases:
        said = counterlens(*arguments)
        assert said.code == 2, (arguments, said.err)
        assert text in said.lines[-1], (arguments, said.err)
