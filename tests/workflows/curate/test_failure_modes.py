"""Probes for failure modes, against networks that fail in one known way each."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from counterlens.classifier import Classifier
from counterlens.data.sets import array_set
from counterlens.types import Preprocess
from counterlens.workflows.curate.failure_modes import ProbeResult, _shuffle, probe


class Colour(nn.Module):
    """Sees colours alone, wherever they are."""

    def forward(self, x: Tensor) -> Tensor:
        return 20 * x.mean((2, 3))


class Corner(nn.Module):
    """A convolution whose evidence for the first class is brightness at the border."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1, bias=False)
        self.head = nn.Linear(2, 3, bias=False)
        nn.init.constant_(self.conv.weight, 1.0)
        nn.init.constant_(self.head.weight, 0.0)
        with torch.no_grad():
            self.head.weight[0] = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv(x)).mean((2, 3)))


class Pixel(nn.Module):
    """Hangs on single diagonals: a shift by one changes everything."""

    def forward(self, x: Tensor) -> Tensor:
        diagonal = (torch.arange(32)[:, None] + torch.arange(32)) % 3
        return 50 * torch.stack([(x * (diagonal == k)).mean((1, 2, 3)) for k in range(3)], 1)


def classifier(net: nn.Module) -> Classifier:
    return Classifier(net.eval(), ("a", "b", "c"), preprocess=Preprocess((32, 32))).eval()


def images(*pixels: np.ndarray):
    return array_set("x", np.stack(pixels), [0] * len(pixels), ("a", "b", "c"))


def flat(red: int) -> np.ndarray:
    pixels = np.full((32, 32, 3), 40, np.uint8)
    pixels[..., 0] = red
    return pixels


def test_colour_alone_is_texture_and_over_generalisation() -> None:
    (found,) = probe(classifier(Colour()), images(flat(200)), [0])
    assert found.shuffled == 1 and found.moved == 0 and found.confidence > 0.99
    assert found.tags == ("texture", "over-generalisation")


def test_an_answer_that_hangs_on_single_pixels_is_fickle() -> None:
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[(np.arange(32)[:, None] + np.arange(32)) % 3 == 0] = 255
    (found,) = probe(classifier(Pixel()), images(pixels), [0])
    assert found.moved >= 0.5 and "fickleness" in found.tags
    assert "over-generalisation" not in found.tags


@pytest.mark.parametrize(("where", "expected"), [("border", True), ("centre", False)])
def test_evidence_at_the_border_is_background(where, expected) -> None:
    pixels = np.zeros((32, 32, 3), np.uint8)
    if where == "border":
        pixels[:4] = 255
    else:
        pixels[12:20, 12:20] = 255
    (found,) = probe(classifier(Corner()), images(pixels), [0])
    assert found.border is not None and ("background" in found.tags) == expected


def test_shuffled_patches_are_the_same_patches() -> None:
    x = torch.arange(32 * 32.0).reshape(1, 1, 32, 32) / 1024
    y = _shuffle(0).edit(x)
    assert y.shape == x.shape and not torch.equal(x, y)
    assert torch.equal(y.flatten().sort().values, x.flatten().sort().values)
    odd = torch.rand(2, 3, 30, 33)
    assert _shuffle(1).edit(odd).shape == odd.shape


def test_no_map_means_no_word_on_the_background() -> None:
    assert "background" not in ProbeResult(0.2, 0.1, None, 0.9).tags
