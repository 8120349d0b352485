"""A recorded step against the plain loop, on a GPU; the plain path and its counts anywhere.

Oracle: the same search with recording switched off.
"""

import pytest
import torch
from torch import nn

from counterlens.ball import Ball
from counterlens.search import AttackSettings, robust
from counterlens.search.fast.cuda_graph import Replay, _apart
from counterlens.search.fast.engine import Engine


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 9, 5)
    ).eval()


def test_without_a_gpu_a_step_is_simply_repeated() -> None:
    engine = Engine(lambda z: z, lambda z: z, torch.device("cpu"))
    replay = Replay(engine)
    assert not replay.records
    end = replay.run(lambda s: {"i": s["i"] + 1}, {"i": torch.zeros(3)}, 7)
    assert end["i"].tolist() == [7.0, 7.0, 7.0]


def test_entries_that_trade_places_keep_their_values() -> None:
    held = {"a": torch.zeros(2), "b": torch.ones(2), "c": torch.full((2,), 2.0)}
    after = {"a": held["b"], "b": held["a"].view(2), "c": held["c"]}
    ready = _apart(after, held)
    assert set(ready) == {"a", "b"}
    for name, tensor in ready.items():
        held[name].copy_(tensor)
    assert [held[name].tolist() for name in "abc"] == [[1, 1], [0, 0], [2, 2]]


@pytest.mark.gpu
@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_recorded_steps_find_the_same_points(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(40, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    net = _net().cuda()
    y = net(x.cuda()).argmax(1).cpu()
    ball = Ball(norm, 0.3 if norm == "l2" else 0.03)
    recorded = robust(net, x, y, ball, settings=AttackSettings(seed=0))
    monkeypatch.setattr("counterlens.search.fast.cuda_graph.torch.cuda.CUDAGraph", _refuse)
    plain = robust(net, x, y, ball, settings=AttackSettings(seed=0))
    assert not any("not recorded" in note for note in recorded.notes)
    assert any("not recorded" in note for note in plain.notes)
    assert 0 < recorded.accuracy < 1
    assert torch.equal(recorded.robust, plain.robust)
    assert recorded.counts == plain.counts
    assert [s["evaluations"] for s in recorded.stages] == [s["evaluations"] for s in plain.stages]


def _refuse() -> None:
    raise RuntimeError("no graphs today")
