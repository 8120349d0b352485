"""The captured graphs of both players, and the convolutions of a stack as the device computes them.

Oracles: the losses of an epoch without graphs, which a graph that replays old inputs or stale
weights would change; grouped convolutions in float64.
"""

from pathlib import Path

import pytest
import torch

from counterlens.generators.cgn.stacked import StackUp, arrange, conv
from counterlens.workflows.cgn.train import train_cgn


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["cgn", "gan"])
def test_a_captured_update_is_the_update(tmp_path: Path, kind: str):
    rows = []
    for graph in ("false", "true"):
        changes = ["epochs=2", "batch=100", "width=8", "digit_classifier_updates=5", "attempts=1"]
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


@pytest.mark.gpu
@pytest.mark.parametrize("dtype, error", [(torch.float32, 2e-3), (torch.bfloat16, 2e-2)])
def test_products_on_the_device_are_the_grouped_convolutions(dtype: torch.dtype, error: float):
    torch.manual_seed(0)
    up = StackUp(4 * 32, 4 * 8, 4, 2, 1, groups=4, bias=False)
    for layer in (conv(4, 64, 32, 3, 1, 1), conv(4, 16, 32, 4, 2), conv(4, 32, 3, 3, 1, 1), up):
        x = torch.randn(16, layer.in_channels, 16, 16, dtype=torch.float64, requires_grad=True)
        exact = layer.double()(x)
        wanted = [exact, *torch.autograd.grad(exact.square().sum(), [x, layer.weight])]
        layer.float().cuda()
        arrange(layer, "matmul", dtype)
        there = x.detach().float().cuda().requires_grad_(True)
        made = layer(there)
        found = [made, *torch.autograd.grad(made.square().sum(), [there, layer.weight])]
        for one, other in zip(found, wanted, strict=True):
            assert (one.double().cpu() - other).norm() < error * other.norm()
