"""Shape bias, background gap and label maps on hand-made answers with known counts."""

import math

import pytest
import torch

from counterlens.errors import InputError
from counterlens.metrics import (
    CueVotes,
    background_gap,
    background_number,
    coarse_answers,
    coarse_right,
    cue_votes,
    group_means,
    restrict,
    shape_number,
    texture_number,
    top_k,
)

GROUPS = [[0, 1], [2], [3, 4, 5]]


def _logits(*answers: int) -> torch.Tensor:
    z = torch.zeros(len(answers), 7)
    z[torch.arange(len(answers)), torch.tensor(answers)] = 9.0
    return z


def test_cues_that_agree_do_not_count():
    shape, texture = torch.tensor([0, 0, 1, 2, 1]), torch.tensor([1, 2, 0, 2, 2])
    votes = cue_votes(_logits(1, 4, 2, 3, 0), shape, texture, GROUPS)
    assert votes == CueVotes(shape=2, texture=1, neither=1)
    assert votes.bias == pytest.approx(2 / 3)


def test_groups_are_compared_by_mean_probability_not_by_sum_or_maximum():
    probs = torch.tensor([[0.26, 0.26, 0.30, 0.18, 0.0, 0.0, 0.0]], dtype=torch.float64)
    means = group_means(probs, GROUPS)
    torch.testing.assert_close(means, torch.tensor([[0.26, 0.30, 0.06]], dtype=torch.float64))
    votes = cue_votes(probs.clamp(min=1e-9).log(), torch.tensor([0]), torch.tensor([1]), GROUPS)
    assert votes == CueVotes(shape=0, texture=1, neither=0)


def test_shape_bias_without_a_vote_is_missing_with_a_reason():
    number = shape_number(CueVotes(0, 0, 12))
    assert number.value is None
    assert "no image" in str(number.reason)


def test_shape_bias_counts_only_decided_images():
    number = shape_number(CueVotes(30, 70, 400))
    assert (number.value, number.n) == (0.3, 100)
    assert number.low < 0.3 < number.high


def test_texture_bias_is_what_shape_bias_leaves():
    shape, texture = shape_number(CueVotes(30, 70, 400)), texture_number(CueVotes(30, 70, 400))
    assert (texture.value, texture.n) == (0.7, 100)
    assert (texture.low, texture.high) == pytest.approx((1 - shape.high, 1 - shape.low), abs=1e-12)


def test_an_unmapped_class_is_wrong_whatever_the_label():
    right = coarse_right(_logits(0, 6, 6), torch.tensor([0, 0, -2]), [0, 0, 1, 2, 2, 2, -1])
    assert right.tolist() == [True, False, False]
    assert coarse_answers(torch.tensor([6, 5]), [0, 0, 1, 2, 2, 2, -1]).tolist() == [-1, 2]


def test_the_background_gap_divides_by_the_true_counts():
    same, random = torch.arange(10) < 9, torch.arange(7) < 3
    assert background_gap(same, random) == pytest.approx(9 / 10 - 3 / 7)
    number = background_number(same, random)
    assert number.value == pytest.approx(9 / 10 - 3 / 7)
    assert number.n == 7


def test_the_same_foregrounds_make_the_interval_paired_whatever_their_order(rng):
    same = torch.rand(400, generator=rng) < 0.9
    random = same & (torch.rand(400, generator=rng) < 0.9)
    ids = [f"fg{i}" for i in range(400)]
    order = torch.randperm(400, generator=rng)
    shuffled = [ids[i] for i in order]
    paired = background_number(same, random, ids=(ids, ids))
    again = background_number(same, random[order], ids=(ids, shuffled))
    apart = background_number(same, random)
    assert (paired.low, paired.high) == (again.low, again.high)
    assert paired.high - paired.low < apart.high - apart.low
    assert "paired" in paired.protocol


def test_restricting_comes_before_arg_max():
    """1000-way the answer is class 6, 200-way it must be one of those that count."""
    logits = torch.tensor([[0.0, 1.0, 2.0, 0.0, 0.0, 0.0, 9.0]])
    assert not top_k(logits, torch.tensor([2])).item()
    assert top_k(restrict(logits, [1, 2]), torch.tensor([1])).item()
    assert restrict(logits, [2, 1]).tolist() == [[2.0, 1.0]]


@pytest.mark.parametrize("columns", [[0], [0, 7], [-1, 2], [1, 1]])
def test_classes_that_cannot_be_kept_are_refused(columns):
    with pytest.raises(InputError):
        restrict(torch.zeros(1, 7), columns)


@pytest.mark.parametrize("groups", [[], [[]], [[0], [7]]])
def test_groups_that_cannot_be_formed_are_refused(groups):
    with pytest.raises(InputError):
        group_means(torch.full((1, 7), 1 / 7), groups)


def test_counts_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="2 shapes"):
        cue_votes(torch.zeros(1, 7), torch.zeros(2).long(), torch.zeros(1).long(), GROUPS)
    assert math.isclose(background_gap(torch.ones(1).bool(), torch.zeros(1).bool()), 1)
