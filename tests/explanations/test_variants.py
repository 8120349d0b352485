"""Colour edits against the standard library's colorsys, frames against shifted arrays, flips
against a classifier whose answer is known in closed form."""

import colorsys

import numpy as np
import pytest
import torch
from torch import nn

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.explanations.edits.colour import colour_variants, grey, hue, saturation, swap
from counterlens.explanations.edits.frame import frame_variants, shift, zoom
from counterlens.explanations.edits.sweeps import edit_numbers
from counterlens.explanations.edits.variants import EditVariant, Flips, flip_numbers, flips
from counterlens.images import ImageSet
from counterlens.types import Preprocess


class Reddest(nn.Module):
    """Answers with the index of the channel that is brightest on average."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 50 * x.mean((2, 3))


@pytest.fixture
def reddest() -> Classifier:
    return Classifier(Reddest(), ["red", "green", "blue"], preprocess=Preprocess((8, 8)))


@pytest.mark.parametrize("degrees", [0, 30, 120, 200, 359])
def test_hue_equals_colorsys(rng, degrees):
    x = torch.rand(1, 3, 6, 6, generator=rng, dtype=torch.float64)
    x[..., 0, 0] = 0
    x[..., 0, 1] = 0.5
    expected = torch.empty_like(x)
    for i in range(6):
        for j in range(6):
            h, s, v = colorsys.rgb_to_hsv(*x[0, :, i, j].tolist())
            turned = colorsys.hsv_to_rgb((h + degrees / 360) % 1, s, v)
            expected[0, :, i, j] = torch.tensor(turned, dtype=torch.float64)
    torch.testing.assert_close(hue(x, degrees), expected, rtol=0, atol=1e-9)


def test_saturation_equals_colorsys(rng):
    x = torch.rand(1, 3, 4, 4, generator=rng, dtype=torch.float64)
    for factor in (0.0, 0.5, 2.0):
        seen = saturation(x, factor)
        for i in range(4):
            for j in range(4):
                h, s, v = colorsys.rgb_to_hsv(*x[0, :, i, j].tolist())
                expected = colorsys.hsv_to_rgb(h, min(1.0, s * factor), v)
                assert seen[0, :, i, j].tolist() == pytest.approx(expected, abs=1e-9)


def test_grey_has_three_equal_channels_and_keeps_grey_images(rng):
    x = torch.rand(2, 3, 4, 4, generator=rng)
    flat = grey(x)
    assert torch.equal(flat[:, 0], flat[:, 1]) and torch.equal(flat[:, 1], flat[:, 2])
    torch.testing.assert_close(grey(flat), flat)


def test_all_variants_stay_in_the_box_and_differ_from_the_image(rng):
    x = torch.rand(2, 3, 16, 16, generator=rng)
    for variant in (*colour_variants(), *frame_variants()):
        seen = variant.edit(x)
        assert seen.shape == x.shape, variant.name
        assert seen.min() >= 0 and seen.max() <= 1, variant.name
        assert not torch.allclose(seen, x, atol=1e-2), variant.name
    names = [variant.name for variant in (*colour_variants(), *frame_variants())]
    assert len(set(names)) == len(names)


def test_a_grey_model_has_no_colour_to_change():
    with pytest.raises(InputError, match="expected 3"):
        hue(torch.rand(1, 1, 4, 4), 30)


def test_a_shift_by_whole_pixels_moves_the_picture(rng):
    x = torch.rand(1, 3, 16, 16, generator=rng)
    seen = shift(x, 2 / 16, 0)
    torch.testing.assert_close(seen[..., 2:], x[..., :-2], atol=1e-5, rtol=0)
    seen = shift(x, 0, -1 / 16)
    torch.testing.assert_close(seen[..., :-1, :], x[..., 1:, :], atol=1e-5, rtol=0)


def test_a_zoom_by_two_towards_a_corner_shows_that_quarter():
    x = torch.zeros(1, 1, 8, 8)
    x[..., :4, 4:] = 1  # the upper right quarter
    torch.testing.assert_close(zoom(x, 2, towards=(1, -1))[..., :-1, 1:], torch.ones(1, 1, 7, 7))
    torch.testing.assert_close(zoom(x, 2, towards=(-1, -1))[..., :-1], torch.zeros(1, 1, 8, 7))
    torch.testing.assert_close(zoom(x, 1), x, atol=1e-6, rtol=0)


def test_channel_swaps_flip_exactly_where_the_brightest_channel_moves(reddest):
    x = torch.zeros(1, 3, 8, 8)
    x[:, 0] = 0.9
    x[:, 1] = 0.1
    swaps = [v for v in colour_variants() if v.family == "channels"]
    result = flips(reddest, x, swaps)
    for column, variant in enumerate(swaps):
        assert result.answers[0, column].item() == variant.name.index("R")
    assert result.before.tolist() == [0]
    assert result.flipped.sum().item() == sum(v.name[0] != "R" for v in swaps)
    assert torch.equal(swap(x, (2, 1, 0)), x.flip(1))


def test_flip_numbers_count_images_and_families(reddest):
    x = torch.zeros(4, 3, 8, 8)
    x[0:3, 0] = 0.9
    x[3] = torch.tensor([0.9, 0.2, 0.1]).view(3, 1, 1)
    keep = EditVariant("none", "same", lambda x: x)
    turn = EditVariant("hue", "hue 120°", lambda x: hue(x, 120))
    some = EditVariant("hue", "only bright", lambda x: torch.where(x.sum() > 0, x, x))
    result = Flips.join([flips(reddest, part, [keep, turn, some]) for part in (x[:1], x[1:])])
    numbers = flip_numbers(result, "bias.colour", "colour")
    assert numbers["bias.colour_flip"].value == 1.0
    assert numbers["bias.colour_none_flip"].value == 0.0
    assert numbers["bias.colour_flip_mean"].value == pytest.approx(1 / 3)
    assert numbers["bias.colour_flip"].n == 4
    assert numbers["bias.colour_flip"].low == pytest.approx(4 / (4 + 1.959964**2), abs=1e-4)


def test_an_empty_sweep_is_refused(reddest):
    with pytest.raises(InputError, match="no variants"):
        flips(reddest, torch.rand(1, 3, 8, 8), [])


def test_an_audit_gets_flip_rates_of_colour_and_frame(reddest):
    def read(i: int) -> np.ndarray:
        pixels = np.zeros((8, 8, 3), np.uint8)
        pixels[..., 0] = 200
        pixels[..., 1] = 40 * i
        return pixels

    pictures = ImageSet("red", ("a", "b", "c"), np.zeros(3, np.int64), ("red",), read)
    numbers = edit_numbers(reddest, pictures, points=2)
    assert numbers["bias.colour_flip"].value == 1.0  # BGR alone moves the brightest channel
    assert numbers["bias.frame_flip"].value == 0.0  # a flat picture looks the same in any frame
    assert {number.n for number in numbers.values()} == {2}
