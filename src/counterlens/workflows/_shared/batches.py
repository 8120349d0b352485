"""Work with a generator in parts that fit into memory; what does not is tried again with less."""

import gc
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from counterlens.errors import InputError
from counterlens.generators.diffusion.memory import less, out_of_memory, told
from counterlens.generators.diffusion.recompute import Kept
from counterlens.workflows._shared.session import Say

T = TypeVar("T")


def in_parts(
    rows: Sequence[T],
    plan: Callable[[], tuple[Kept, int]],
    make: Callable[[Sequence[T], Kept], None],
    *,
    steps: int,
    say: Say,
    what: str = "images",
) -> None:
    """Make all rows, so many at a time as planned.

    A part for which memory ran out is made again with less: fewer rows, then no step kept, then
    every block computed twice. Parts that were made stay.

    Args:
        plan: what to keep for the backward pass, and rows at a time.
        make: some rows with so much kept, into files.
        steps: of the chain, for the message.
    """
    if not rows:
        return
    kept, size = plan()
    say(f"{size} {what} at a time, {told(kept, steps)}")
    done = 0
    while done < len(rows):
        part = rows[done : done + size]
        if _ran_out(lambda part=part, kept=kept: make(part, kept)):  # type: ignore[misc]
            smaller = less(kept, len(part))
            if smaller is None:
                raise InputError(
                    "out of memory with one image and every block computed twice. What was made "
                    "is kept: go on with --resume, a smaller generator or classifier, fewer "
                    "cut-outs, or --device cpu."
                )
            kept, size = smaller
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            say(
                f"out of memory: going on with {size} at a time, {told(kept, steps)}; "
                "nothing is lost."
            )
            continue
        done += len(part)
        say(f"{done} of {len(rows)} {what}")


def _ran_out(work: Callable[[], None]) -> bool:
    """Whether memory ran out; the error, which holds what filled it, is gone on return."""
    try:
        work()
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        return True
    return False
