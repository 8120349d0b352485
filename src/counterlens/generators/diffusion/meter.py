"""Bytes that a computation and its gradient take, counted while they run.

On a CUDA device the allocator counts, so that what kernels need beside their results is in it.
Elsewhere, and for shapes without values (PyTorch's meta device), the storages that are alive are
counted after every operation.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Need:
    """Bytes beside those that were there before.

    Args:
        stored: between the forward and the backward pass.
        peak: the most at any time.
    """

    stored: int
    peak: int


def needed(compute: Callable[[], Tensor], leaves: Sequence[Tensor]) -> Need:
    """What a computation stores for its gradient, and the peak of both."""
    device = leaves[0].device
    if device.type == "cuda":
        _allocated(compute, leaves, device)  # what is allocated once and stays does not count
        return _allocated(compute, leaves, device)
    with torch.enable_grad(), Live() as live:
        result = compute()
        stored = live.now
        torch.autograd.grad(result.sum(), leaves)
    return Need(stored, live.peak)


def _allocated(
    compute: Callable[[], Tensor], leaves: Sequence[Tensor], device: torch.device
) -> Need:
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    with torch.enable_grad():
        result = compute()
        stored = torch.cuda.memory_allocated(device) - before
        torch.autograd.grad(result.sum(), leaves)
    return Need(stored, torch.cuda.max_memory_allocated(device) - before)


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all storages that are allocated inside and alive: `now`, and `peak`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation; what it makes is counted, what it was given was there before."""
        for one in tree_leaves((args, kwargs)):
            if isinstance(one, Tensor):
                self._note(one.untyped_storage(), 0)
        out = func(*args, **(kwargs or {}))
        for one in tree_leaves(out):
            if isinstance(one, Tensor):
                storage = one.untyped_storage()
                self._note(storage, storage.nbytes())
        return out

    def _note(self, storage: torch.UntypedStorage, size: int) -> None:
        key = id(storage)  # its own as long as it is alive
        if key in self._known:
            return

        def gone(_: object) -> None:
            del self._known[key]
            self.now -= size

        self._known[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)
