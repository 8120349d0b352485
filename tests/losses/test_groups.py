"""Losses with weights of images and groups, against sums written out by hand."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from counterlens.losses.groups import GroupDRO, weighted_terms


def _batch() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    x, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    return net, {"x": x, "y": y, "group": torch.tensor([0, 0, 1, 1, 1, 3])}


def test_weighted_cross_entropy_is_that_of_copied_images() -> None:
    """Oracle: an image of weight 3 is three copies of it."""
    net, batch = _batch()
    weight = torch.tensor([3.0, 1, 1, 1, 1, 2])
    found = weighted_terms(net, {**batch, "weight": weight}, 0)["in"]
    rows = torch.tensor([0, 0, 0, 1, 2, 3, 4, 5, 5])
    whole = cross_entropy(net(batch["x"][rows]), batch["y"][rows], reduction="sum") / 6
    assert float(found.detach()) == pytest.approx(float(whole.detach()), rel=1e-6)


def test_group_dro_is_the_algorithm_of_the_paper() -> None:
    """Oracle: Algorithm 1 in plain numbers, two batches one after the other."""
    net, batch = _batch()
    loss, q = GroupDRO(4, rate=0.5), [0.25] * 4
    for _ in range(2):
        found = float(loss(net, batch, 0)["in"].detach())
        each = cross_entropy(net(batch["x"]), batch["y"], reduction="none").tolist()
        means = [(each[0] + each[1]) / 2, sum(each[2:5]) / 3, 0.0, each[5]]
        q = [a * math.exp(0.5 * b) for a, b in zip(q, means, strict=True)]
        q = [a / sum(q) for a in q]
        assert found == pytest.approx(sum(a * b for a, b in zip(q, means, strict=True)), rel=1e-5)
    assert loss.weights.tolist() == pytest.approx(q, rel=1e-6)
    assert loss.weights[2] < 0.25  # the empty group loses weight


def test_a_batch_without_groups_is_refused() -> None:
    net, batch = _batch()
    with pytest.raises(Exception, match="group"):
        GroupDRO(4)(net, {"x": batch["x"], "y": batch["y"]}, 0)
