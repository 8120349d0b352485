"""Patch grid, tiled background and mask quality of photographs.

Oracles: literal loops over windows, pixels and colours; laws for any mask.
"""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterlens.generators.cgn import photographs as parts
from counterlens.generators.cgn.photographs import (
    BEST,
    GRID,
    WINDOW,
    best_windows,
    colour_overlap,
    mask_quality,
    patch_grid,
    tiled_background,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_windows_are_the_hundred_of_highest_mean_mask(rng: torch.Generator) -> None:
    """Oracle: the mean of every window, one by one."""
    mask = torch.rand(2, 1, 128, 128, generator=rng)
    corners = best_windows(mask, rng)
    columns = 128 - WINDOW + 1
    for row in range(2):
        means = {
            i * columns + j: float(mask[row, 0, i : i + WINDOW, j : j + WINDOW].double().mean())
            for i, j in itertools.product(range(columns), repeat=2)
        }
        best = sorted(means.values(), reverse=True)[:BEST]
        found = sorted((means[int(c)] for c in corners[row]), reverse=True)
        assert found == pytest.approx(best, abs=2e-7)


def test_each_cell_of_the_grid_is_a_window_of_the_object(
    rng: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: search of all windows inside the mask for equal pixels, before the enlarging."""
    x = torch.rand(1, 3, 128, 128, generator=rng)
    mask = torch.zeros(1, 1, 128, 128)
    mask[:, :, 20:60, 30:90] = 1
    monkeypatch.setattr(parts.functional, "interpolate", lambda one, *_, **__: one)
    grid = patch_grid(x, mask, rng)
    assert grid.shape == (1, 3, GRID * WINDOW, GRID * WINDOW)
    inside = {
        x[0, :, i : i + WINDOW, j : j + WINDOW].numpy().tobytes()
        for i, j in itertools.product(range(20, 46), range(30, 76))
    }
    cells = [
        grid[0, :, i : i + WINDOW, j : j + WINDOW].numpy().tobytes()
        for i, j in itertools.product(range(0, 90, WINDOW), repeat=2)
    ]
    assert all(cell in inside for cell in cells) and len(set(cells)) > 12


def test_the_texture_of_an_object_of_one_colour_is_that_colour(rng: torch.Generator) -> None:
    mask = torch.zeros(1, 1, 64, 64)
    mask[:, :, 10:50, 10:50] = 1
    x = torch.where(mask > 0, 0.25, torch.rand(1, 3, 64, 64, generator=rng))
    inner = x.clone()
    inner[:, :, 8:52, 8:52] = 0.25  # so that the resizing mixes nothing in
    assert torch.allclose(patch_grid(inner, mask, rng), torch.tensor(0.25), atol=1e-5)


def test_no_gradient_goes_through_the_grid(rng: torch.Generator) -> None:
    x = torch.rand(1, 3, 64, 64, generator=rng).requires_grad_()
    assert not patch_grid(x, torch.ones(1, 1, 64, 64), rng).requires_grad


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 12), st.integers(1, 12))
def test_the_box_is_tiled_by_the_largest_strip(top: int, left: int, h: int, w: int) -> None:
    """Oracle: each pixel by itself."""
    x = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(top * 32 + left))
    mask = torch.zeros(1, 32, 32)
    mask[:, top : top + h, left : left + w] = 1
    strips = {
        "top": (0, 0, top, 32), "bottom": (top + h, 0, 32 - top - h, 32),
        "left": (0, 0, 32, left), "right": (0, left + w, 32, 32 - left - w),
    }  # fmt: skip
    y0, x0, rows, columns = max(strips.values(), key=lambda one: one[2] * one[3])
    out = tiled_background(x, mask)
    assert out is not None
    for i, j in itertools.product(range(32), repeat=2):
        inside = top <= i < top + h and left <= j < left + w
        source = x[:, y0 + (i - top) % rows, x0 + (j - left) % columns] if inside else x[:, i, j]
        assert torch.equal(out[:, i, j], source)


def test_an_object_that_reaches_all_sides_has_no_background() -> None:
    assert tiled_background(torch.rand(3, 24, 24), torch.ones(1, 24, 24)) is None


def test_area_and_entropy_of_a_mask() -> None:
    """Oracle: closed form; a quarter at one half is a quarter of a bit."""
    mask = torch.zeros(1, 1, 128, 128)
    mask[..., :64, :64] = 0.5
    found = mask_quality(mask)
    assert float(found.area) == pytest.approx(0.125)
    assert float(found.entropy) == pytest.approx(0.25, abs=1e-4)
    assert float(found.inner) == pytest.approx(0.5, abs=1e-5)


def test_colours_in_common_against_counting(rng: torch.Generator) -> None:
    front, behind = torch.rand(2, 1, 3, 12, 12, generator=rng).unbind(0)
    inside = torch.rand(1, 1, 12, 12, generator=rng) > 0.5
    counts: list[dict[tuple[int, ...], float]] = [{}, {}]
    for i, j in itertools.product(range(12), repeat=2):
        which, x = (0, front) if inside[0, 0, i, j] else (1, behind)
        key = tuple(math.floor(4 * float(v)) for v in x[0, :, i, j])
        counts[which][key] = counts[which].get(key, 0) + 1
    totals = [sum(one.values()) for one in counts]
    common = sum(
        min(counts[0][key] / totals[0], counts[1].get(key, 0) / totals[1]) for key in counts[0]
    )
    assert float(colour_overlap(front, behind, inside)) == pytest.approx(common, abs=1e-6)
