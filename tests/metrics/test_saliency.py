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
    saliency = torch.rand(20, 9, 7, generator=rng)
    mask = torch.rand(20, 9, 7, generator=rng) > 0.7
    return saliency, mask


def test_both_ious_equal_scikit_learns_jaccard_scores(rng):
    saliency, mask = random_pairs(rng)
    plain, mean = iou(saliency, mask), mean_iou(saliency, mask)
    for row in range(len(saliency)):
        low, high = saliency[row].min(), saliency[row].max()
        hot = ((saliency[row] - low) / (high - low) > 0.5).flatten().numpy()
        truth = mask[row].flatten().numpy()
        assert plain[row].item() == pytest.approx(jaccard_score(truth, hot), abs=1e-6)
        macro = jaccard_score(truth, hot, average="macro")
        assert mean[row].item() == pytest.approx(macro, abs=1e-6)


def test_trivial_maps_score_what_scikit_learn_counts(rng):
    mask = torch.rand(12, 16, 20, generator=rng) > 0.8
    result = trivial_scores(mask)
    assert set(result) == {"corner", "centre", "uniform"}
    for name, saliency in trivial_maps(16, 20).items():
        hot = torch.zeros(16, 20, dtype=torch.bool)
        for y, x in ((y, x) for y in range(16) for x in range(20)):
            far = ((y - 7.5) ** 2 + (x - 9.5) ** 2) ** 0.5  # from the centre
            hot[y, x] = {"corner": y == x == 0, "centre": far < 16 / 5, "uniform": False}[name]
        assert torch.equal(unit(saliency)[0] > 0.5, hot)
        for row, truth in enumerate(mask):
            pair = truth.flatten().numpy(), hot.flatten().numpy()
            both, alone = (scores[row].item() for scores in result[name])
            assert alone == pytest.approx(jaccard_score(*pair), abs=1e-6)
            assert both == pytest.approx(jaccard_score(*pair, average="macro"), abs=1e-6)


def test_a_large_background_lifts_the_mean_iou_far_above_the_plain_one():
    saliency = torch.zeros(1, 10, 10)
    saliency[0, 0, :2] = 1
    mask = torch.zeros(1, 10, 10, dtype=torch.bool)
    mask[0, 0, 1:3] = True
    assert iou(saliency, mask).item() == pytest.approx(1 / 3)
    assert mean_iou(saliency, mask).item() == pytest.approx((1 / 3 + 97 / 99) / 2)


def test_no_scale_or_offset_of_the_map_changes_an_iou(rng):
    saliency, mask = random_pairs(rng)
    torch.testing.assert_close(iou(saliency, mask), iou(7 * saliency - 3, mask))


def test_a_constant_map_marks_nothing():
    saliency = torch.full((1, 2, 2), 0.7)
    mask = torch.tensor([[[True, False], [False, False]]])
    assert unit(saliency).eq(0).all()
    assert iou(saliency, mask).item() == 0
    assert iou(saliency, torch.zeros_like(mask)).item() == 1
    assert mean_iou(saliency, torch.zeros_like(mask)).item() == 1


def test_mass_inside_and_outside_sum_to_one(rng):
    saliency, mask = random_pairs(rng)
    both = mass_outside(saliency, mask) + mass_outside(saliency, ~mask)
    torch.testing.assert_close(both, torch.ones(20))


@pytest.mark.parametrize(
    ("saliency", "mask", "words"),
    [
        (torch.rand(1, 3, 3), torch.ones(1, 2, 2, dtype=torch.bool), "shape"),
        (torch.rand(1, 3, 3), torch.ones(1, 3, 3), "expected bool"),
        (torch.full((1, 3, 3), torch.nan), torch.ones(1, 3, 3, dtype=torch.bool), "NaN"),
        (-torch.ones(1, 3, 3), torch.ones(1, 3, 3, dtype=torch.bool), "negative"),
    ],
)
def test_what_is_no_map_or_no_mask_is_refused(saliency, mask, words):
    with pytest.raises(InputError, match=words):
        mass_outside(saliency, mask)


def test_shares_of_coarse_maps_equal_those_of_the_enlarged_ones(rng):
    maps = torch.rand(3, 4, 5, 3, generator=rng, dtype=torch.float64)
    maps[1, 2] = 0
    mask = torch.rand(3, 32, 24, generator=rng) > 0.6
    result = shares_outside(maps, mask)
    for k in range(4):
        large = torch.nn.functional.interpolate(
            maps[:, k : k + 1], (32, 24), mode="bilinear", align_corners=False
        )[:, 0]
        torch.testing.assert_close(
            result[:, k], mass_outside(large, mask), rtol=0, atol=1e-12, equal_nan=True
        )
    assert result[1, 2].isnan()
    with pytest.raises(InputError, match="negative"):
        shares_outside(-maps, mask)
