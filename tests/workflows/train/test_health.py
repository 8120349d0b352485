"""Health of a training: networks made sick on purpose must be named with epoch and cure.

Oracle: networks whose answers are known by construction.
"""

import pytest
import torch
from torch import Tensor, nn

from counterlens.ball import Ball
from counterlens.losses import Attack
from counterlens.workflows.train.datasets import Sets
from counterlens.workflows.train.health import Health, stronger

CLASSES = 4


class Bright(nn.Module):
    """Calls what is darker than middle grey the first class, brighter the second."""

    def forward(self, x: Tensor) -> Tensor:
        light = x.mean((1, 2, 3))
        return torch.stack([8 * (0.5 - light), 8 * (light - 0.5), 0 * light, 0 * light - 9], 1)


def sets(value: int = 90, count: int = 8) -> Sets:
    """Grey pictures, all of the first class, and the same from outside."""
    x = torch.full((count, 3, 4, 4), value, dtype=torch.uint8)
    y = torch.zeros(count, dtype=torch.long)
    return Sets(x, y, x, y, x, x, ("a", "b", "c", "d"), {})


def health(**extra) -> Health:
    settings = {"per_epoch": 10, "probe_every": 1, "total": 100, "log": lambda line: None, **extra}
    near = Attack(Ball("l2", 2.0), ((0, 1),), 0.05)
    far = Attack(Ball("l2", 2.0), ((0, 1),), 0.05)
    return Health(sets(), near, far, (Ball("l2", 2.0), 1), **settings)


def test_a_training_attack_that_is_too_weak_is_named_with_epoch_and_cure():
    judge = health()
    row = judge(Bright(), 30)
    assert row["held_out.near"] == 1.0 and row["probe.near"] == 0.0
    assert any("epoch 3: the training attack is too weak" in w for w in judge.warnings)
    assert any("--set near.steps=" in w for w in judge.warnings)


def test_an_out_attack_that_is_too_weak_is_named():
    class Sure(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            light = x.mean((1, 2, 3))
            return torch.stack([60 * (light - 0.34), light * 0, light * 0, light * 0], 1)

    judge = health()
    row = judge(Sure(), 30)
    assert row["probe.far_confidence"] > row["held_out.far_confidence"] + 0.1
    assert any(
        "out-distribution attack is too weak" in w and "far.steps" in w for w in judge.warnings
    )


def test_confidence_that_collapses_to_chance_is_named():
    class Blank(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.new_zeros(len(x), CLASSES) + 0 * x.sum()

    judge = health()
    row = judge(Blank(), 30)
    assert row["held_out.confidence"] == pytest.approx(0.25)
    assert any("mean confidence inside fell to 0.250" in w for w in judge.warnings)


def test_robust_accuracy_that_falls_from_its_best_is_named():
    judge = health()
    judge.best_robust = 0.9
    judge.warn({"held_out.robust": 0.85, "held_out.confidence": 0.9}, 50)
    assert any("robust accuracy overfits: 0.850, its best was 0.900" in w for w in judge.warnings)
    assert "keep_best" in judge.warnings[-1]


def test_a_healthy_network_is_left_in_peace():
    judge = health(per_epoch=10)
    row = {"held_out.robust": 0.8, "held_out.confidence": 0.9, "held_out.near": 0.7}
    judge.warn({**row, "probe.near": 0.69, "held_out.far_confidence": 0.3}, 50)
    assert judge.warnings == []


def test_the_probe_takes_five_times_the_steps_of_that_moment():
    attack = Attack(Ball("l2", 1.0), ((0, 2), (10, 4)), 0.2)
    assert [stronger(attack, step).steps(step) for step in (0, 10)] == [10, 20]
