"""Attacks at several radii share work: a point broken in a small ball is broken in a larger one."""

import pytest
import torch

from attack_models import images, short, small_cnn
from counterlens.ball import Ball
from counterlens.errors import InputError
from counterlens.notation import split_attacks
from counterlens.search import AttackSettings, robust


def test_what_an_earlier_attack_broke_is_neither_attacked_again_nor_lost():
    model, x = small_cnn(4), images(24)
    y = model(x).argmax(1)
    stages = short(4, "l2", steps=30, queries=50)
    given = {"version": stages, "settings": AttackSettings(batch=32, trust=False)}
    small = robust(model, x, y, Ball("l2", 0.15), **given)
    assert 0 < small.robust.sum() < len(x)
    alone = robust(model, x, y, Ball("l2", 0.3), **given)
    shared = robust(model, x, y, Ball("l2", 0.3), earlier=small, **given)
    assert not (shared.robust & ~small.robust).any()
    assert abs(int(shared.robust.sum()) - int(alone.robust.sum())) <= 1
    assert shared.stages[0]["points"] == int(small.robust.sum())
    assert shared.counts["backwards"] < alone.counts["backwards"]
    taken = torch.tensor([name == "smaller ball" for name in shared.broken_by])
    assert int(taken.sum()) == int((~small.robust).sum())
    torch.testing.assert_close(shared.points[taken], small.points[taken])


def test_other_points_are_refused():
    model, x = small_cnn(4), images(6)
    y = model(x).argmax(1)
    given = {"version": short(4), "settings": AttackSettings(trust=False)}
    small = robust(model, x[:3], y[:3], Ball("l2", 0.1), **given)
    with pytest.raises(InputError, match="expected the same 6"):
        robust(model, x, y, Ball("l2", 0.2), earlier=small, **given)


def test_radii_are_split_and_the_smaller_come_first():
    assert split_attacks(["linf:8/255,2/255", "l2:0.5", "linf:4/255"]) == (
        *("linf:2/255", "linf:4/255", "linf:8/255", "l2:0.5"),
    )
    with pytest.raises(InputError, match="NORM:RADIUS"):
        split_attacks(["l2:0.5,x"])
