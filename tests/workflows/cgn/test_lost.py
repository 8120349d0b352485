"""What a training of CGNs leaves behind, whenever it ends.

Oracle: the average of the weights, worked out here update by update; a run that is broken off.
"""

from pathlib import Path

import pytest
import torch

from counterlens.fit import update
from counterlens.generators.cgn import model as cgn
from counterlens.workflows.cgn import train as cgn_train
from counterlens.workflows.cgn.train import train_cgn

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = ["width=4", "critic_width=8", "style=[0,0,0,0]", "digit_classifier_updates=2", "examined=2"]
TINY += ["batch=20", "attempts=1"]


def test_a_run_that_is_broken_off_leaves_its_networks(
    tmp_path: Path, few_digits: str, monkeypatch: pytest.MonkeyPatch
):
    whole, calls = cgn_train.examine, []

    def power_cut(*given: object, **named: object) -> object:
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(cgn_train, "examine", power_cut)
    changes = [*TINY, "epochs=9", "keep_every=1", "average=0"]
    with pytest.raises(KeyboardInterrupt):
        train_cgn(
            "coloured",
            mnist=few_digits,
            seeds=(0, 4),
            changes=changes,
            out=tmp_path / "r",
            quiet=True,
        )
    assert not (tmp_path / "r" / "seed-0").exists()
    for seed in (0, 4):
        net, card = cgn.load(tmp_path / "r" / "unfinished" / f"seed-{seed}")
        assert card["training"]["epoch"] == 2 and card["training"]["seed"] == seed
        assert all(value.isfinite().all() for value in net.parameters())


def test_the_averaged_networks_are_examined_and_kept(
    tmp_path: Path, few_digits: str, monkeypatch: pytest.MonkeyPatch
):
    seen: list[torch.Tensor] = []
    follow = update.WeightAverage.update

    def watched(self: update.WeightAverage, step: int) -> None:
        follow(self, step)
        if any("background" in key for key in self.net.state_dict()):
            live = self._live[0].clone()
            decay = min(0.9, (1 + step) / (10 + step))
            seen.append(live if not seen else decay * seen[-1] + (1 - decay) * live)

    monkeypatch.setattr(update.WeightAverage, "update", watched)
    start = []
    begin = update.WeightAverage.__init__

    def begun(self: update.WeightAverage, net: torch.nn.Module, decay: float) -> None:
        begin(self, net, decay)
        if not start:
            start.append(self._mean[0].clone())
            seen.append(start[0])

    monkeypatch.setattr(update.WeightAverage, "__init__", begun)
    changes = [*TINY, "epochs=1", "average=0.9"]
    run = train_cgn(
        "coloured", mnist=few_digits, seeds=(0,), changes=changes, out=tmp_path / "r", quiet=True
    )
    kept, card = cgn.load(tmp_path / "r" / "seed-0")
    assert not (tmp_path / "r" / "unfinished").exists()
    first = next(iter(kept.parameters()))
    torch.testing.assert_close(first, seen[-1], rtol=2e-3, atol=2e-4)  # stored in half precision
    assert "unaveraged" in run.table("epochs_round_1")[0]
    assert card["recipe"]["average"] == 0.9
