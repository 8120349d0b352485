"""Saliency metrics against scikit-learn's Jaccard scores and hand-counted maps."""

import pytest
import torch
from sklearn.metrics import jaccard_score

from counterlens.errors import InputError
from counterlens.metrics.saliency import (
    iou,
    mass_outside,
    mean_iou,
    shares_outside,
    trivial_maps,
    trivial_scores,
    unit,
)


def random_pairs(rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    heat = torch.rand(20, 9, 7, generator=rng)
    mask = torch.rand(20, 9, 7, generator=rng) > 0.7
    return heat, mask


def test_both_ious_equal_scikit_learns_jaccard_scores(rng):
    heat, mask = random_pairs(rng)
    plain, mean = iou(heat, mask), mean_iou(heat, mask)
    for row in range(len(heat)):
        low, high = heat[row].min(), heat[row].max()
        hot = ((heat[row] - low) / (high - low) > 0.5).flatten().numpy()
        truth = mask[row].flatten().numpy()
        assert plain[row].item() == pytest.approx(jaccard_score(truth, hot), abs=1e-6)
        macro = jaccard_score(truth, hot, average="macro")
        assert mean[row].item() == pytest.approx(macro, abs=1e-6)


def test_trivial_maps_score_what_scikit_learn_counts(rng):
    mask = torch.rand(12, 16, 20, generator=rng) > 0.8
    found = trivial_scores(mask)
    assert set(found) == {"corner", "centre", "uniform"}
    for name, heat in trivial_maps(16, 20).items():
        hot = torch.zeros(16, 20, dtype=torch.bool)
        for y, x in ((y, x) for y in range(16) for x in range(20)):
            far = ((y - 7.5) ** 2 + (x - 9.5) ** 2) ** 0.5  # from the centre
            hot[y, x] = {"corner": y == x == 0, "centre": far < 16 / 5, "uniform": False}[name]
        assert torch.equal(unit(heat)[0] > 0.5, hot)
        for row, truth in enumerate(mask):
            pair = truth.flatten().numpy(), hot.flatten().numpy()
            both, alone = (scores[row].item() for scores in found[name])
            assert alone == pytest.approx(jaccard_score(*pair), abs=1e-6)
            assert both == pytest.approx(jaccard_score(*pair, average="macro"), abs=1e-6)


def test_a_large_background_lifts_the_mean_iou_far_above_the_plain_one():
    heat = torch.zeros(1, 10, 10)
    heat[0, 0, :2] = 1
    mask = torch.zeros(1, 10, 10, dtype=torch.bool)
    mask[0, 0, 1:3] = True
    assert iou(heat, mask).item() == pytest.approx(1 / 3)
    assert mean_iou(heat, mask).item() == pytest.approx((1 / 3 + 97 / 99) / 2)


def test_no_scale_or_offset_of_the_map_changes_an_iou(rng):
    heat, mask = random_pairs(rng)
    torch.testing.assert_close(iou(heat, mask), iou(7 * heat - 3, mask))


def test_a_constant_map_marks_nothing():
    heat = torch.full((1, 2, 2), 0.7)
    mask = torch.tensor([[[True, False], [False, False]]])
    assert unit(heat).eq(0).all()
    assert iou(heat, mask).item() == 0
    assert iou(heat, torch.zeros_like(mask)).item() == 1
    assert mean_iou(heat, torch.zeros_like(mask)).item() == 1


def test_mass_inside_and_outside_sum_to_one(rng):
    heat, mask = random_pairs(rng)
    both = mass_outside(heat, mask) + mass_outside(heat, ~mask)
    torch.testing.assert_close(both, torch.ones(20))


@pytest.mark.parametrize(
    ("heat", "mask", "words"),
    [
        (torch.rand(1, 3, 3), torch.ones(1, 2, 2, dtype=torch.bool), "shape"),
        (torch.rand(1, 3, 3), torch.ones(1, 3, 3), "expected bool"),
        (torch.full((1, 3, 3), torch.nan), torch.ones(1, 3, 3, dtype=torch.bool), "NaN"),
        (-torch.ones(1, 3, 3), torch.ones(1, 3, 3, dtype=torch.bool), "negative"),
    ],
)
def test_what_is_no_map_or_no_mask_is_refused(heat, mask, words):
    with pytest.raises(InputError, match=words):
        mass_outside(heat, mask)


def test_shares_of_coarse_maps_equal_those_of_the_enlarged_ones(rng):
    maps = torch.rand(3, 4, 5, 3, generator=rng, dtype=torch.float64)
    maps[1, 2] = 0
    mask = torch.rand(3, 32, 24, generator=rng) > 0.6
    found = shares_outside(maps, mask)
    for k in range(4):
        large = torch.nn.functional.interpolate(
            maps[:, k : k + 1], (32, 24), mode="bilinear", align_corners=False
        )[:, 0]
        torch.testing.assert_close(
            found[:, k], mass_outside(large, mask), rtol=0, atol=1e-12, equal_nan=True
        )
    assert found[1, 2].isnan()
    with pytest.raises(InputError, match="negative"):
        shares_outside(-maps, mask)
