"""Repair through the command line: bad input gets one clear line, exit code 2, no folder."""

from pathlib import Path

import numpy as np
import pytest

from counterlens.images import write_png
from journeys.command import Command
from journeys.test_bad_input import refused

MODELS = """
import torch
from torch import nn
from counterlens import Classifier

class Means(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.last = last

    def forward(self, x):
        return self.last(x.mean((2, 3)))

def linear():
    return Classifier(Means(nn.Linear(3, 2)), ["cat", "dog"], size=16)

def not_linear():
    last = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    return Classifier(Means(last), ["cat", "dog"], size=16)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two manifests of noise pictures, a model with and one without a linear head, odd masks."""
    made = tmp_path_factory.mktemp("repair")
    rng = np.random.default_rng(0)
    for name, count in (("fix", 40), ("check", 30)):
        lines = ["path,label,place,kind,rare"]
        for i in range(count):
            file = f"{name}{i}.png"
            write_png(made / file, rng.integers(0, 256, (16, 16, 3), dtype=np.uint8))
            label = ("cat", "dog")[i % 2]
            place = ("snow", "sand")[i // 2 % 2]
            lines.append(f"{file},{label},{place},{label}s,{'odd' if i == 1 else 'usual'}")
            for shade, masks in ((0, "empty"), (255, "full")):
                (made / masks).mkdir(exist_ok=True)
                write_png(made / masks / file, np.full((16, 16, 3), shade, np.uint8))
        (made / f"{name}.csv").write_text("\n".join(lines) + "\n")
    copied = (made / "check.csv").read_text() + "fix4.png,cat,snow,cats,usual\n"
    (made / "copied.csv").write_text(copied)
    (made / "nets.py").write_text(MODELS)
    return made


CASES = {
    "column:kind": ({"--groups": "column:kind"}, "names the class itself"),
    "column:plaec": ({"--groups": "column:plaec"}, "did you mean place"),
    "dfr": ({"--with": "dfr"}, "dfr needs 20 images of each group"),
    "single": (
        {"--groups": "column:rare", "--with": "group-weights", "--seed": "1"},
        "needs two images of each group",
    ),
    "empty": ({"--groups": "masks:empty"}, "none of the masks of fix shows an object"),
    "full": ({"--groups": "masks:full"}, "full"),
    "copies": ({"--check": "copied.csv"}, "1 of the check images are among the fix images"),
    "head": ({"model": "nets.py:not_linear"}, "no features"),
    "pairs": ({"--pairs": "stylised:nowhere"}, "no weights for stylised pictures"),
    "run": ({"--pairs": "run:nowhere"}, "nowhere"),
    "sam": ({"--groups": "masks:sam:nowhere"}, "expected a hub id OWNER/MODEL or a folder"),
    "write": ({"--write-pairs": "3"}, "--plan"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_repaired_is_one_line(
    counterlens: Command, folder: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTERLENS_CACHE", str(folder / "cache"))
    change, saying = CASES[case]
    given = {
        "--fix": "fix.csv", "--check": "check.csv", "--groups": "column:place", "--with": "refit",
        "model": "nets.py:linear",
    } | change  # fmt: skip
    line = ["repair", str(folder / given.pop("model")), "--device", "cpu"]
    for flag, value in given.items():
        kind, colon, rest = value.rpartition(":")
        inside = (folder / rest).exists()
        line += [flag, f"{kind}{colon}{folder / rest}" if inside else value]
    refused(counterlens, *line, saying=saying)


def test_a_group_that_the_check_images_lack_is_named(counterlens: Command, folder: Path) -> None:
    few = [one for one in (folder / "check.csv").read_text().splitlines() if "dog,sand" not in one]
    (folder / "few.csv").write_text("\n".join(few) + "\n")
    said = counterlens(
        "repair", f"{folder / 'nets.py'}:linear", "--fix", str(folder / "fix.csv"), "--check",
        str(folder / "few.csv"), "--groups", "column:place", "--with", "refit", "--plan",
        "--device", "cpu", "--out", str(folder / "plan"), "--features", str(folder / "store"),
    )  # fmt: skip
    assert said.code == 0, said.err
    assert "no image of 'dog, sand'" in said.err
