"""The captured graph of both players against the same updates without it."""

from pathlib import Path

import pytest
import torch

from counterlens.generators import cgn
from counterlens.workflows.cgn_train import train_cgn


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["cgn", "gan"])
def test_a_captured_update_is_the_update(tmp_path: Path, kind: str):
    states = []
    for graph in ("false", "true"):
        out = tmp_path / f"{kind}-{graph}"
        changes = ["epochs=1", "batch=100", "width=8", "reader_updates=5", "attempts=1"]
        changes += ["style=[0,0,0,0]", f"graph={graph}"]
        train_cgn("coloured", kind=kind, seeds=(0, 1), changes=changes, out=out, device="cuda")
        states.append(cgn.load(out / "seed-1")[0].state_dict())
    for key, value in states[0].items():
        if value.is_floating_point():
            torch.testing.assert_close(states[1][key], value, rtol=0.05, atol=0.02, msg=key)
