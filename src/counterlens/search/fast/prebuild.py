"""Kernels built beside other work.

The first call of a process has to wake Triton and to build a handful of kernels, which takes
longer than the first evaluation of the model. Threads do it meanwhile. They only build: loading or
launching would spoil a step recorded at the same time (`cuda_graph`). Whatever fails here fails
silently and is built again when it is first used, as if this module did not exist.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch

KernelVariant = tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]
"""Arguments of a kernel, a dtype standing for a tensor, and its constants."""

_ordered: set[tuple[str, KernelVariant]] = set()
_builds: dict[str, Future[None]] = {}
_awake: list[Future[None]] = []


def build(orders: Mapping[str, Sequence[KernelVariant]]) -> None:
    """Begin to build kernels, for each name the variants that were not ordered before.

    Those of one call are built in parallel, after those of earlier calls; those of one name are
    built one after the other, since two threads in one kernel would do work twice.
    """
    new = {
        name: [each for each in variants if (name, each) not in _ordered]
        for name, variants in orders.items()
    }
    if not any(new.values()):
        return
    with suppress(Exception):  # no thread to be had
        place = torch.cuda.current_device()  # each thread has its own
        pool = ThreadPoolExecutor(len(new) + 2)
        if not _awake:
            _awake.extend(pool.submit(task) for task in (_wake_driver, _hash_compiler))
        before = [*_awake, *_builds.values()]
        for name, variants in new.items():
            _builds[name] = pool.submit(_build, name, variants, place, before)
            _ordered.update((name, each) for each in variants)
        pool.shutdown(wait=False)


def settle(*names: str) -> None:
    """Wait until nobody builds the named kernels, or any kernel."""
    for name in names or tuple(_builds):
        if name in _builds:
            _builds[name].exception()


def kernel(name: str) -> Any:
    """A kernel of `kernels`, once nobody builds it any more."""
    settle(name)
    from counterlens.search.fast import kernels

    return getattr(kernels, name)


def _wake_driver() -> None:
    from triton.runtime import driver  # type: ignore[import-untyped,unused-ignore]

    driver.active.get_current_target()


def _hash_compiler() -> None:
    """Triton reads itself once per process to name what it builds; the result is cached."""
    from triton.runtime.cache import triton_key  # type: ignore[import-untyped,unused-ignore]

    triton_key()


def _build(
    name: str, variants: Sequence[KernelVariant], place: int, before: list[Future[None]]
) -> None:
    for each in before:
        each.exception()
    from counterlens.search.fast import kernels

    with torch.cuda.device(place):
        for arguments, constants in variants:
            getattr(kernels, name).warmup(*arguments, grid=(1,), **dict(constants))
