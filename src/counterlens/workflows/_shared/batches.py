"""Work with a generator in parts that fit into memory; what does not is tried again with less."""

import gc
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from counterlens.errors import InputError
from counterlens.generators.diffusion.memory import describe, less, out_of_memory
from counterlens.generators.diffusion.recompute import StoredSteps
from counterlens.workflows._shared.session import Log

T = TypeVar("T")


def in_parts(
    rows: Sequence[T],
    plan: Callable[[], tuple[StoredSteps, int]],
    make: Callable[[Sequence[T], StoredSteps], None],
    *,
    steps: int,
    log: Log,
    what: str = "images",
) -> None:
    """Make all rows, so many at a time as planned.

    A part for which memory ran out is computed again with less: fewer rows, then no step stored,
    then every block computed twice. Parts that are written stay.

    Args:
        plan: what to keep for the backward pass, and rows at a time.
        make: some rows with so many stored steps, into files.
        steps: of the chain, for the message.
    """
    if not rows:
        return
    stored, size = plan()
    log(f"{size} {what} at a time, {describe(stored, steps)}")
    done = 0
    while done < len(rows):
        part = rows[done : done + size]
        if _ran_out(lambda part=part, stored=stored: make(part, stored)):  # type: ignore[misc]
            smaller = less(stored, len(part))
            if smaller is None:
                raise InputError(
                    "out of memory with one image and every block computed twice. What was "
                    "written stays: go on with resume=True, a smaller generator or classifier, "
                    "fewer cut-outs, or device=cpu."
                )
            stored, size = smaller
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            log(
                f"out of memory: going on with {size} at a time, {describe(stored, steps)}; "
                "nothing is lost."
            )
            continue
        done += len(part)
        log(f"{done} of {len(rows)} {what}")


def _ran_out(work: Callable[[], None]) -> bool:
    """Whether memory ran out; the error, which holds what filled it, is gone on return."""
    try:
        work()
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        return True
    return False
