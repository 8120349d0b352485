"""Groups, slices and OOD scores that an audit cannot give, through the command line."""

from pathlib import Path

import pytest

from journeys.command import Command
from journeys.test_bad_input import MODEL, folder_of, refused

NO_POOLED_LAYER = """\
import torch

class Convolution(torch.nn.Module):
    input_size = (32, 32)
    classes = ["cat", "dog"]

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv2d(3, 20, 3)

    def forward(self, x):
        return self.layer(x).mean((2, 3))[:, :2]

def make():
    return Convolution()
"""


def manifest() -> None:
    """Four pictures of noise: a column of two values, one of a value each, an empty one."""
    folder_of(Path("data"), "cat", "dog")
    files = [f"data/{name}/{i}.png" for name in ("cat", "dog") for i in (0, 1)]
    rows = [f"{f},{f.split('/')[1]},{'ab'[i % 2]},p{i}," for i, f in enumerate(files)]
    Path("shots.csv").write_text("\n".join(["path,label,site,person,empty", *rows]) + "\n")


@pytest.mark.parametrize(
    ("groups", "saying"),
    [
        ("sit", "no column 'sit' (columns: site, person, empty). Did you mean site?"),
        ("site,weather", "no column 'weather' (columns: site, person, empty). Expected a column"),
        ("empty", "empty has no value over all images, expected two or more"),
        ("site,,person", "expected each column once, none empty"),
        ("folder:7", "folder:7, but the pictures of shots lie 2 folders deep"),
        ("exif:Model", "no picture of shots has the EXIF field 'Model'"),
        ("image:brightnes", "image:brightnes, expected one of brightness, contrast"),
        ("mask:area", "shots has no masks of its own. Name a folder of masks: mask:area@FOLDER"),
        ("slices:nowhere", "nowhere is not a run folder"),
    ],
)
def test_columns_that_are_not_there(counterlens: Command, groups: str, saying: str) -> None:
    manifest()
    refused(counterlens, "audit", MODEL, "shots.csv", "--groups", groups, saying=saying)


def test_a_gate_on_a_value_that_no_image_has(counterlens: Command) -> None:
    manifest()
    asked = ("--groups", "site", "--require", "groups.site.c.accuracy>=0.5")
    refused(counterlens, "audit", MODEL, "shots.csv", *asked, saying="site has no value 'c'")


def test_groups_of_one_image_are_listed_and_never_judged(counterlens: Command) -> None:
    """A gate on the worst of them cannot pass: nothing was measured."""
    manifest()
    said = counterlens(
        *("audit", MODEL, "shots.csv", "--groups", "person", "--anyway", "--out", "run"),
        *("--require", "groups.worst.accuracy.low>=0.0"),
    )
    assert said.code == 1 and "Traceback" not in said.err
    assert "no group is large enough to be judged: the largest has 1 image" in said.err
    assert "0 are large enough to be judged: a group needs" in Path("run/report.html").read_text()


@pytest.mark.parametrize(
    ("asked", "saying"),
    [
        (("--slices",), "used instead: --slice-encoder zoo:cifar10-clip"),
        (
            ("--ood", "noise:uniform", "--ood-score", "msp,knn"),
            "So knn cannot be computed: ask for --ood-score msp,max_logit,energy,entropy,odin",
        ),
    ],
)
def test_features_of_a_model_without_a_last_linear_layer(
    counterlens: Command, asked: tuple[str, ...], saying: str
) -> None:
    manifest()
    Path("net.py").write_text(NO_POOLED_LAYER)
    refused(counterlens, "audit", "net.py:make", "shots.csv", *asked, saying=saying)


def test_unknown_images_of_known_classes(counterlens: Command) -> None:
    """Two of the four pictures show a class that the model knows."""
    manifest()
    folder_of(Path("outside"), "cat", "spanner")
    asked = ("--ood", "outside")
    saying = "outside holds 2 of 4 images of classes that the model knows ('cat')"
    refused(counterlens, "audit", MODEL, "shots.csv", *asked, saying=saying)


def test_a_slice_that_is_not_there(counterlens: Command) -> None:
    mine = ("curate", "adversarial", "slices:nowhere#1", "--filter", MODEL)
    refused(counterlens, *mine, saying="nowhere is not a run folder")
