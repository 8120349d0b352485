"""The captured graphs of both players against the same updates without them.

Oracle: the losses of an epoch, which a graph that replays old inputs or stale weights would change.
"""

from pathlib import Path

import pytest

from counterlens.workflows.cgn_train import train_cgn


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["cgn", "gan"])
def test_a_captured_update_is_the_update(tmp_path: Path, kind: str):
    rows = []
    for graph in ("false", "true"):
        changes = ["epochs=2", "batch=100", "width=8", "reader_updates=5", "attempts=1"]
        changes += ["style=[0,0,0,0]", f"graph={graph}"]
        out = tmp_path / f"{kind}-{graph}"
        run = train_cgn(
            "coloured", kind=kind, seeds=(0, 1), changes=changes, out=out, device="cuda"
        )
        rows.append(run.table("epochs_round_1"))
    for plain, captured in zip(*rows, strict=True):
        losses = [key for key in plain if key.startswith("loss.")]
        assert losses
        for key in losses:
            assert captured[key] == pytest.approx(plain[key], rel=0.03), (key, plain["epoch"])
