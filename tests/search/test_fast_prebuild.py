"""Kernels built beside other work.

Oracle: the kernels that a search asks for, compiled for a GPU that need not be there: what was
ordered ahead must be found in Triton's own cache. Failing threads are made to fail.
"""

import copy
import functools
import importlib
import importlib.util
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from counterlens.ball import Ball, row_seeds
from counterlens.models.nets import resnets as nets
from counterlens.search.fast import prebuild
from counterlens.search.fast.engine import Engine, _logits_and_gradient
from counterlens.search.fast.folding import fold, lighten
from counterlens.search.fast.fusing import fuse, orders

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


class Device:
    """Stands for the current GPU, here none."""

    def __init__(self, place: int = 0) -> None:
        self.place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing ordered yet, and a GPU that is only a number."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", Device)
    monkeypatch.setattr(prebuild, "_ordered", set())
    monkeypatch.setattr(prebuild, "_builds", {})
    monkeypatch.setattr(prebuild, "_awake", [])
    for task in ("_wake_driver", "_hash_compiler"):
        monkeypatch.setattr(prebuild, task, lambda: None)


def _stand_in(monkeypatch: pytest.MonkeyPatch, **kernels: Any) -> None:
    """Other kernels in the place of the module that needs Triton."""
    module = SimpleNamespace(**{k: SimpleNamespace(warmup=v) for k, v in kernels.items()})
    monkeypatch.setitem(sys.modules, "counterlens.search.fast.kernels", module)
    monkeypatch.setattr("counterlens.search.fast.kernels", module, raising=False)


def test_a_kernel_is_handed_out_only_when_its_build_has_ended(
    idle: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, seen = threading.Event(), []

    def slow(*arguments: Any, **constants: Any) -> None:
        assert gate.wait(20)
        seen.append((arguments, constants))

    _stand_in(monkeypatch, one=slow, two=lambda *_, **__: None)
    prebuild.build({"one": [((1,), (("A", 2),))]})
    prebuild.kernel("two")  # nobody builds it
    assert not seen
    threading.Timer(0.2, gate.set).start()
    prebuild.kernel("one")
    assert seen == [((1,), {"A": 2, "grid": (1,)})]
    prebuild.build({"one": [((1,), (("A", 2),))]})  # ordered before
    prebuild.settle()
    assert len(seen) == 1


def test_builds_of_one_kernel_never_overlap(idle: None, monkeypatch: pytest.MonkeyPatch) -> None:
    busy, seen = threading.Lock(), []

    def build(number: int, **_: Any) -> None:
        assert busy.acquire(blocking=False)
        threading.Event().wait(0.02)
        seen.append(number)
        busy.release()

    _stand_in(monkeypatch, one=build)
    prebuild.build({"one": [((k,), ()) for k in range(3)]})
    prebuild.build({"one": [((k,), ()) for k in range(5)]})
    prebuild.settle()
    assert seen == [0, 1, 2, 3, 4]


def test_whatever_fails_is_left_to_the_first_use(
    idle: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise SystemError("no compiler")

    _stand_in(monkeypatch, one=fail)
    monkeypatch.setattr(prebuild, "_wake_driver", fail)
    prebuild.build({"one": [((), ())], "missing": [((), ())]})
    assert prebuild.kernel("one").warmup is fail

    monkeypatch.setattr(prebuild, "ThreadPoolExecutor", fail)
    prebuild.build({"one": [((3,), ())]})
    prebuild.settle()


def test_a_proposal_goes_on_without_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    square = importlib.import_module("counterlens.search.square")
    x, ball = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0)), Ball("l2", 0.5)
    ask = functools.partial(square._propose_l2, x, x, ball, row_seeds(4, None), torch.arange(1, 5))
    plain, asked = ask(0.8), []

    def refuse(name: str) -> None:
        asked.append(name)
        raise RuntimeError("no compiler")

    monkeypatch.setattr(square, "kernel", refuse)
    monkeypatch.setattr(square, "can_fuse", lambda _: True)
    monkeypatch.setattr(square, "_without_kernel", set())
    assert torch.equal(ask(0.8), plain)
    assert torch.equal(ask(0.8), plain)
    assert asked == ["move_mass"]


def check_orders() -> None:
    """Build ahead for an H200 without having one, then ask for what a search asks for."""
    import triton
    from triton.backends.compiler import GPUTarget

    driver = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda _: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
    )
    triton.runtime.driver.set_active(driver)
    torch.cuda.current_device, torch.cuda.device = (lambda: 0), Device
    torch.manual_seed(0)
    square = importlib.import_module("counterlens.search.square")
    x, ball = torch.rand(16, 3, 32, 32), Ball("l2", 0.5)
    kind = {"kind": "resnet18", "widths": [16, 16, 32, 48], "activation": "silu"}
    net = nets.build(kind, 4).eval().requires_grad_(False)
    prebuild.build(orders(net, torch.bfloat16))
    prebuild.build(square.orders(x.shape, "l2", 0.8))
    prebuild.settle()
    kernels = importlib.import_module("counterlens.search.fast.kernels")

    def built() -> dict[str, int]:
        names = ("forward", "backward", "move_mass")
        return {name: len(getattr(kernels, name).device_caches[0][0]) for name in names}

    before = built()
    assert before == {"forward": 2, "backward": 2, "move_mass": 1}, before
    jit = triton.runtime.jit.JITFunction
    jit.__getitem__ = lambda self, grid: functools.partial(self.warmup, grid=grid)  # no launch
    fast_copy = fold(copy.deepcopy(net)).to(memory_format=torch.channels_last)
    engine = Engine(net, lighten(fast_copy, torch.bfloat16), torch.device("cpu"), "bf16")
    assert fuse(fast_copy) == 17
    _logits_and_gradient(engine._fast_logits, x)
    square.can_fuse = lambda _: True
    square._propose_l2(x, x, ball, row_seeds(16, None), torch.arange(16), 0.8)
    assert not square._without_kernel
    assert built() == before, built()


@needs_triton
def test_what_is_ordered_ahead_is_what_a_search_asks_for(tmp_path: Path) -> None:
    code = "import runpy, sys; runpy.run_path(sys.argv[1])['check_orders']()"
    env = dict(os.environ, TRITON_CACHE_DIR=str(tmp_path))
    env.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-c", code, __file__], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
