"""Grids of changes against colorsys, SciPy's rotation and a brute force over all points."""

import colorsys

import numpy as np
import pytest
import torch
from scipy.ndimage import affine_transform

from counterlens.errors import InputError
from counterlens.search.grid import grid_of, rotated, tinted, worst_of_grid


def test_a_shift_moves_pixels_and_leaves_black():
    x = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    moved = rotated(x, 0.0, 3 / 32, -2 / 32)
    torch.testing.assert_close(moved[:, :, 3:, :-2], x[:, :, :-3, 2:], atol=1e-5, rtol=0)
    assert moved[:, :, :3].abs().max() < 1e-5 and moved[:, :, :, -2:].abs().max() < 1e-5


@pytest.mark.parametrize("shape", [(32, 32), (24, 40)])
def test_a_rotation_with_a_shift_is_scipys(shape):
    height, width = shape
    x = torch.rand(1, 1, height, width, generator=torch.Generator().manual_seed(1)).double()
    turn = np.deg2rad(14.0)
    back = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])  # rows, columns
    centre = np.array([(height - 1) / 2, (width - 1) / 2])
    shift = np.array([2 / 32 * height, -3 / 32 * width])
    pad = 8
    offset = centre + pad - back @ (centre + shift)
    theirs = affine_transform(
        np.pad(x[0, 0].numpy(), pad), back, offset, output_shape=shape, order=1
    )
    ours = rotated(x, 14.0, 2 / 32, -3 / 32)[0, 0].numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_colours_are_those_of_colorsys():
    x = torch.rand(1, 3, 5, 5, generator=torch.Generator().manual_seed(2)).double()
    ours = tinted(x, -0.1, 1.5, 0.85)[0]
    for i in range(5):
        for j in range(5):
            h, s, v = colorsys.rgb_to_hsv(*x[0, :, i, j].tolist())
            wanted = colorsys.hsv_to_rgb((h - 0.1) % 1, min(1.5 * s, 1), 0.85 * v)
            np.testing.assert_allclose(ours[:, i, j].numpy(), wanted, atol=1e-9)


@pytest.mark.parametrize("name", ["spatial", "colour"])
def test_the_worst_case_is_that_of_all_points(name):
    rng = torch.Generator().manual_seed(3)
    weight = torch.randn(4, 3 * 8 * 8, generator=rng)
    x = torch.rand(12, 3, 8, 8, generator=rng)

    def model(z):
        return z.flatten(1) @ weight.T

    y = model(x).argmax(1)
    y[0] = (y[0] + 1) % 4
    found = worst_of_grid(model, x, y, name, batch=5)
    answers = torch.stack([model(change(x)).argmax(1) for _, change in grid_of(name)])
    assert torch.equal(found.right, (answers == y).all(0))
    assert torch.equal(found.clean, model(x).argmax(1) == y)
    first = (answers != y).int().argmax(0)
    assert torch.equal(found.worst, torch.where(found.right, -1, first))
    assert found.points == len(answers) and grid_of(name)[0][0] == "as it is"


def test_unknown_grids_and_grey_colours_are_refused():
    with pytest.raises(InputError, match="expected one of spatial, colour"):
        grid_of("rotation")
    grey = torch.rand(1, 1, 8, 8)
    with pytest.raises(InputError, match="need 3 channels"):
        worst_of_grid(lambda z: z.flatten(1), grey, torch.zeros(1, dtype=torch.int64), "colour")
