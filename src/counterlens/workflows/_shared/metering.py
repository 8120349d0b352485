"""What a computation costs: seconds, and the rows that go through each network."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Meter:
    """Seconds and rows of a computation."""

    began: float
    rows: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def elapsed(self) -> float:
        """Seconds since the beginning, once the device is done."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - self.began


@contextmanager
def metered(networks: Mapping[str, nn.Module]) -> Iterator[Meter]:
    """Count the rows that go forwards through networks; time stops at the end of the block."""
    meter = Meter(time.perf_counter())

    def count(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(module: nn.Module, given: tuple[Any, ...]) -> None:
            if given and isinstance(given[0], Tensor):
                meter.rows[name] = meter.rows.get(name, 0) + len(given[0])

        return hook

    handles = [net.register_forward_pre_hook(count(name)) for name, net in networks.items()]
    try:
        yield meter
    finally:
        for handle in handles:
            handle.remove()
        meter.seconds = meter.elapsed()
