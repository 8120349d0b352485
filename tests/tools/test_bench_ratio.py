"""The benchmarks of a RATIO update count the work that is done.

Oracle: PyTorch's own counter of floating point operations, over the updates themselves.
"""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from counterlens.models.nets import resnets as nets
from counterlens.workflows.train import recipes
from counterlens.workflows.train.recipe import Recipe

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
update = importlib.import_module("bench_ratio_update")
floor = importlib.import_module("bench_convolutions")

WIDTHS = "architecture.widths=[8,8,8,8]"
CPU = torch.device("cpu")


class Counter(TorchDispatchMode):
    """What `FlopCounterMode` sums up, without its tracker of modules, which bars autograd.grad."""

    total = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        count = flop_registry.get(function._overloadpacket)
        self.total += count(*args, **(kwargs or {}), out_val=out) if count else 0
        return out


def counted(settings: Recipe, updates: int, monkeypatch) -> tuple[float, dict[str, float]]:
    monkeypatch.setattr(update, "UPDATES", updates)
    with Counter() as counter:
        row = update.measure(settings, CPU)
    return counter.total, row


@pytest.mark.parametrize("steps", ["[1, 1, 3]", "2"])
def test_the_work_is_that_of_the_updates_that_are_timed(steps, monkeypatch, one_thread):
    changes = [WIDTHS, "batch=2", "out_batch=2", f"near.steps={steps}", f"far.steps={steps}"]
    settings = recipes.load("cifar10-ratio-0.25", changes)
    four, _ = counted(settings, 4, monkeypatch)
    five, row = counted(settings, 5, monkeypatch)
    assert row["tflop"] * 1e12 == pytest.approx(five - four, rel=0.03)  # pixels need no gradient
    assert row["steps"] == int(steps.strip("[]").split(",")[-1])


def test_the_floor_knows_every_convolution_of_the_network(one_thread):
    settings = recipes.load("cifar10-ratio-0.25", [WIDTHS])
    kinds = floor.shapes(settings)
    work = sum(count * floor.measure(shape, 1, CPU)[0] for shape, count in kinds.items())
    net = nets.build(settings.architecture, 10)
    linear = 2 * net.linear.weight.numel()
    assert 1e9 * work + linear == pytest.approx(nets.flops(net, (3, 32, 32)))
