"""Fused passes against the plain network.

Oracle: the same network without fusing, in float32 by Triton's interpreter (no GPU needed) and,
on a GPU, in bf16 by the kernels themselves.
"""

import copy
import importlib
import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from counterlens.ball import Ball, row_seeds
from counterlens.models.nets import resnets as nets
from counterlens.search import AttackSettings, robust
from counterlens.search.fast.folding import fold
from counterlens.search.fast.fusing import Fused, fuse

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


def _net(activation: str) -> torch.nn.Module:
    torch.manual_seed(0)
    kind = {"kind": "resnet18", "widths": [8, 24, 16, 16], "activation": activation}
    net = nets.build(kind, 4)
    for part in net.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.3)
            part.running_var.uniform_(0.5, 2)
            torch.nn.init.normal_(part.bias)
    return net.eval().requires_grad_(False)


def compare(activation: str) -> None:
    """Logits and input gradients of a residual network before and after."""
    net = _net(activation)
    fused = fold(copy.deepcopy(net)).to(memory_format=torch.channels_last)
    assert fuse(fused) == 17  # every activation of a ResNet-18
    x = torch.rand(3, 3, 8, 8)
    result = []
    for model in (net, fused):
        z = x.clone().requires_grad_(True)
        logits = model(z)
        (grad,) = torch.autograd.grad((logits * torch.arange(1.0, 5)).sum(), z)
        result.append((logits.detach(), grad))
    (a, da), (b, db) = result
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(da, db, rtol=1e-3, atol=1e-4)


def compare_square() -> None:
    """Proposals of the square attack by one kernel and by plain tensors, from several levels."""
    square = importlib.import_module("counterlens.search.square")

    gen = torch.Generator().manual_seed(0)
    for channels, height, width in ((3, 32, 32), (1, 9, 12)):
        x = torch.rand(6, channels, height, width, generator=gen)
        ball = Ball("l2", torch.tensor([0.5, 0.1, 2.0, 0.5, 0.3, 1.0]))
        delta = torch.randn(x.shape, generator=gen)
        best = ball.project(x + 0.1 * delta, x)
        seeds = row_seeds(6, gen)
        query = torch.tensor([1, 10, 11, 1000, 8000, 8001])
        plain = square._propose_l2(x, best, ball, seeds, query, 0.8)
        square.can_fuse = lambda device: True
        fused = square._propose_l2(x, best, ball, seeds, query, 0.8)
        square.can_fuse = lambda device: False
        assert not square._without_kernel
        assert (plain - best).abs().max() > 1e-3
        torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-6)


@needs_triton
def test_fused_passes_are_the_plain_network() -> None:
    code = (
        "import runpy, sys; m = runpy.run_path(sys.argv[1]); m['compare']('silu'); "
        "m['compare']('relu'); m['compare_square']()"
    )
    env = dict(os.environ, TRITON_INTERPRET="1")
    done = subprocess.run(
        [sys.executable, "-c", code, __file__], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_sum_used_twice_is_left_alone() -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 3, 1)
            self.act = torch.nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.conv(x)
            return self.act(y) + y

    traced = torch.fx.symbolic_trace(Twice())
    assert fuse(traced) == 0
    assert not any(isinstance(part, Fused) for part in traced.modules())


@pytest.mark.gpu
def test_a_proposal_in_one_pass_is_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    square = importlib.import_module("counterlens.search.square")

    gen = torch.Generator().manual_seed(0)
    x = torch.rand(40, 3, 32, 32, generator=gen)
    ball = Ball("l2", 0.5)
    best = ball.project(x + 0.1 * torch.randn(x.shape, generator=gen), x)
    seeds, query = row_seeds(40, gen), torch.randint(1, 9000, (40,), generator=gen)
    plain = square._propose_l2(x, best, ball, seeds, query, 0.8)
    parts = [part.cuda() for part in (x, best, seeds, query)]
    fused = square._propose_l2(parts[0], parts[1], ball, parts[2], parts[3], 0.8)
    assert not square._without_kernel
    torch.testing.assert_close(fused.cpu(), plain, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_the_search_uses_fused_passes_and_finds_the_same() -> None:
    net = _net("silu").cuda()
    x = torch.rand(64, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    y = net(x.cuda()).argmax(1).cpu()
    fast = robust(net, x, y, Ball("l2", 0.05), settings=AttackSettings(seed=0))
    exact = robust(
        net, x, y, Ball("l2", 0.05), settings=AttackSettings(seed=0, precision="float32")
    )
    assert not any("no fused" in note for note in fast.notes)
    assert abs(fast.accuracy - exact.accuracy) <= 2 / 64
