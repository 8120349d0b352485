"""Smoothness against plain loops over neighbours; changed pixels counted by hand."""

import torch

from counterlens.metrics.similarity import changed_pixels, smoothness


def by_loops(change: torch.Tensor) -> float:
    product = energy = 0.0
    channels, height, width = change.shape
    for c in range(channels):
        for i in range(height):
            for j in range(width):
                for di, dj in ((1, 0), (0, 1)):
                    if i + di < height and j + dj < width:
                        here, there = change[c, i, j].item(), change[c, i + di, j + dj].item()
                        product += here * there
                        energy += (here**2 + there**2) / 2
    return product / energy


def test_smoothness_is_the_correlation_of_neighbours(rng):
    change = torch.randn(4, 3, 5, 6, generator=rng)
    expected = [by_loops(one) for one in change]
    torch.testing.assert_close(smoothness(change), torch.tensor(expected))


def test_smoothness_tells_noise_from_shapes(rng):
    noise = torch.randn(1, 3, 64, 64, generator=rng)
    row = torch.linspace(-1, 1, 64)
    blob = torch.exp(-4 * (row[:, None] ** 2 + row**2)).expand(1, 3, 64, 64)
    assert abs(smoothness(noise).item()) < 0.05
    assert smoothness(blob).item() > 0.98


def test_smoothness_ignores_the_size_of_the_change_and_is_zero_for_none(rng):
    change = torch.randn(2, 3, 8, 8, generator=rng)
    torch.testing.assert_close(smoothness(change), smoothness(1e-3 * change))
    assert smoothness(torch.zeros(1, 3, 8, 8)).item() == 0
    assert smoothness(torch.ones(1, 3, 1, 1)).item() == 0


def test_a_pixel_counts_once_however_many_channels_changed():
    x = torch.zeros(2, 3, 4, 4)
    z = x.clone()
    z[0, :, 1, 1] = 0.5
    z[0, 0, 2, 2] = 0.5
    z[1, 1, 0, 0] = 0.4 / 255
    assert changed_pixels(z, x).tolist() == [2, 0]
    assert changed_pixels(z, x).dtype == torch.int64
    assert changed_pixels(x, x).tolist() == [0, 0]
