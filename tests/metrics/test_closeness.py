"""Distances inside and outside a mask: the law of Pythagoras, plain loops, hand-made images."""

import math

import pytest
import torch

from counterlens.metrics.closeness import changed_share, masked_l2, masked_mean
from counterlens.metrics.generation import kid, kid_blocks, t_interval


def test_inside_and_outside_add_up_to_the_whole_distance(rng):
    z, x = torch.rand(2, 5, 3, 6, 6, generator=rng, dtype=torch.float64)
    mask = torch.rand(5, 1, 6, 6, generator=rng, dtype=torch.float64)
    whole = (z - x).flatten(1).norm(dim=1)
    inside, outside = masked_l2(z, x, mask), masked_l2(z, x, 1 - mask)
    torch.testing.assert_close((inside**2 + outside**2).sqrt(), whole)


def test_distances_and_means_are_those_of_plain_loops(rng):
    z, x = torch.rand(2, 2, 3, 4, 5, generator=rng, dtype=torch.float64)
    mask = torch.rand(2, 1, 4, 5, generator=rng, dtype=torch.float64)
    for b in range(2):
        total = weight = value = 0.0
        for i in range(4):
            for j in range(5):
                m = mask[b, 0, i, j].item()
                weight += m
                value += m * z[b, 0, i, j].item()
                for c in range(3):
                    total += m * (z[b, c, i, j] - x[b, c, i, j]).item() ** 2
        assert masked_l2(z, x, mask)[b].item() == pytest.approx(math.sqrt(total))
        assert masked_mean(z[:, 0], mask)[b].item() == pytest.approx(value / weight)


def test_an_empty_mask_has_no_mean_and_no_distance(rng):
    z, x = torch.rand(2, 1, 3, 4, 4, generator=rng)
    empty = torch.zeros(1, 1, 4, 4)
    assert masked_l2(z, x, empty).item() == 0
    assert masked_mean(z[:, 0], empty).isnan().all()


def test_a_pixel_counts_once_and_only_when_it_moved_enough():
    x = torch.zeros(1, 3, 2, 2)
    z = x.clone()
    z[0, :, 0, 0] = 0.5  # three channels, one pixel
    z[0, 1, 1, 1] = 0.05  # too little
    assert changed_share(z, x).item() == 0.25
    assert changed_share(z, x, level=0.01).item() == 0.5


def test_blocks_of_kid_are_disjoint_and_the_interval_is_students(rng):
    a, b = torch.randn(60, 8, generator=rng), torch.randn(45, 8, generator=rng)
    values = kid_blocks(a, b, blocks=2)
    assert values.tolist() == [kid(a[:30], b[:23]), kid(a[30:], b[23:])]
    mean, low, high = t_interval(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))
    spread = math.sqrt(((1 - 7 / 3) ** 2 + (2 - 7 / 3) ** 2 + (4 - 7 / 3) ** 2) / 2)
    assert mean == pytest.approx(7 / 3)
    reach = pytest.approx(4.302653 * spread / math.sqrt(3), rel=1e-6)
    assert high - mean == reach and mean - low == reach
