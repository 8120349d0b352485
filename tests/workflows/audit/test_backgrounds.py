"""Backgrounds of an audit: a network that reads the background alone, and one that does not.

Oracle: what either must answer on every variant follows from which pixels it looks at.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import counterlens
from counterlens import Classifier
from counterlens.data.sets import array_set
from counterlens.errors import InputError
from counterlens.images import ImageSet
from counterlens.runs import read_json
from counterlens.workflows._shared.masks import doubt


class Reads(nn.Module):
    """Class 1 where the pixel it reads is bright."""

    def __init__(self, row: int) -> None:
        super().__init__()
        self.row = row

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value = 20 * (x[:, :, self.row, self.row].mean(1) - 0.5)
        return torch.stack([-value, value], 1)


def reads(row: int) -> Classifier:
    return Classifier(Reads(row), ("dark", "bright"), size=32)


def pictures(n: int = 60, empty: int = 0) -> ImageSet:
    rng = np.random.default_rng(0)
    y = np.arange(n) % 2
    x = np.where(y[:, None, None, None] == 1, 200, 50) + rng.integers(-20, 20, (n, 32, 32, 3))
    masks = np.zeros((n, 32, 32), dtype=np.uint8)
    masks[:, 10:22, 10:22] = 1
    masks[:empty] = 0
    made = array_set("made", x.astype(np.uint8), y, ("dark", "bright"))
    return replace(made, extra={"mask": masks})


@pytest.mark.parametrize(
    ("row", "lost", "gap"), [(2, {"mixed_rand", "only_fg"}, 1.0), (16, {"no_fg"}, 0.0)]
)
def test_the_gap_is_that_of_the_pixels_it_reads(
    row: int, lost: set[str], gap: float, tmp_path: Path
) -> None:
    result = counterlens.audit(
        reads(row), pictures(), masks="own", out=tmp_path / "run", quiet=True, anyway=True
    )
    numbers = result.numbers
    assert numbers["bias.background_gap"].value == gap
    assert "Newcombe paired" in numbers["bias.background_gap"].protocol
    for name in ("original", "mixed_same", "mixed_rand", "only_fg", "no_fg"):
        share = numbers[f"background.{name}.accuracy"]
        wanted = 1.0 if name not in lost else (0.0 if name == "mixed_rand" else 0.5)
        assert share.value == pytest.approx(wanted, abs=0.02), name
        assert share.low <= share.value <= share.high
    page = (result.folder / "report.html").read_text(encoding="utf-8")
    assert "Mixed-Rand: on a background of another class" in page
    assert any(row["group"] == "background:mixed_rand" for row in result.table("gallery"))


def test_unusable_masks_are_counted_and_left_out(tmp_path: Path) -> None:
    result = counterlens.audit(
        reads(2), pictures(80, empty=10), masks="own", out=tmp_path / "run", quiet=True, anyway=True
    )
    flags = {row["mask"]: row["images"] for row in result.table("mask_flags")}
    n = result.numbers["background.original.accuracy"].n
    assert flags["empty"] > 0 and n == flags["no doubt"]
    assert read_json(result.folder / "run.json")["settings"]["masks"] == "own"


@pytest.mark.parametrize(("masks", "text"), [("own", "masks of its own"), ("nowhere", "nowhere")])
def test_masks_that_are_not_there_are_refused_before_the_run(
    masks: str, text: str, tmp_path: Path
) -> None:
    bare = replace(pictures(), extra={})
    with pytest.raises(InputError, match=text):
        counterlens.audit(reads(2), bare, masks=masks, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_masks_are_doubted_for_a_reason() -> None:
    whole = np.zeros((20, 20), dtype=bool)
    whole[8:12, 8:12] = True
    assert doubt(whole, (20, 20)) == ""
    assert doubt(~np.zeros((20, 20), dtype=bool), (20, 20)) == "full"
    assert doubt(whole, (20, 30)).startswith("of 20 × 20 pixels")
    pieces = whole.copy()
    pieces[0:4, 0:4] = True
    assert doubt(pieces, (20, 20)) == "in pieces"
    wide = whole.copy()
    wide[:12, 10] = wide[10, :] = True
    assert doubt(wide, (20, 20)) == "touches three sides"
