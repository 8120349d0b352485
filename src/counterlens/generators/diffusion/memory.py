"""How many steps of a chain to store for the backward pass, chosen by a memory budget.

Paper: Chen et al. 2016 (checkpointing2016); digin2024, Algorithm 1, recomputes every step.
Differs: what a step and a decoded image take is measured, stored and at most; as many steps as fit
       are not computed twice. Where not even one fits, every block is computed again, too.
"""

import os
import re
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from counterlens.ball import row_seeds
from counterlens.errors import InputError
from counterlens.generators.diffusion.ddim import guided_noise
from counterlens.generators.diffusion.meter import Need, needed
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.generators.diffusion.optimise import ChainSettings, Inputs, Term, augmented
from counterlens.generators.diffusion.recompute import StoredSteps

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
SLACK = 1.15  # what allocators lose
CONTEXT = 600 * 10**6  # what a process takes on a CUDA device before any tensor
COPIES = 8
"""Of the variables: value, best, gradient, two means, and what an update makes on its way."""


def parse_memory(text: str) -> int:
    """Bytes of a budget as people write it.

    >>> parse_memory("12GB"), parse_memory("1.5 GiB"), parse_memory("800M")
    (12000000000, 1610612736, 800000000)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", text.lower())
    if not match or float(match[1]) <= 0:
        raise InputError(f"memory is {text!r}, expected a size such as 12GB.")
    unit = _UNITS[match[2]]
    if match[3]:
        unit = 1024 ** [1, 10**3, 10**6, 10**9, 10**12].index(unit)
    return int(float(match[1]) * unit)


def free_memory(device: torch.device) -> int:
    """Bytes that may be used: most of what is free."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(0.85 * (free + cached))
    try:
        return int(0.5 * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):  # not every system tells
        return 4 * 10**9


def room(memory: str | None, device: torch.device) -> int:
    """Bytes left for a search: a budget less what is there already, or most of what is free.

    A budget is for all that the process has on a CUDA device, networks and CUDA itself; elsewhere,
    where networks are not counted, for the search alone.
    """
    if memory is None:
        return free_memory(device)
    held = torch.cuda.memory_allocated(device) + CONTEXT if device.type == "cuda" else 0
    return max(1, parse_memory(memory) - held)


def rows_at_a_time(model: LatentDiffusion) -> int:
    """Rows at a time through a generator: 256 of 32 pixels on a GPU, 8 elsewhere."""
    most = 256 if model.device.type == "cuda" else 8
    return max(1, int(most * min(1.0, (32 / model.side) ** 2)))


def steps_to_keep(
    model: LatentDiffusion,
    start: Inputs,
    settings: ChainSettings,
    budget: int,
    terms: Sequence[Term] = (),
) -> tuple[int | Literal["blocks"], int]:
    """How many steps of a chain fit the budget un-recomputed, and how many images at a time.

    Measured on one image: what one step and one decoded image take, with the answers of the
    terms' networks to its cut-outs. Where one image with nothing stored does not fit, "blocks", the
    least there is; whether that fits is not checked.
    """
    one = Inputs(start.z[:1], start.cond[:1], start.null[:1])
    try:
        step, picture = measure(model, one, settings, terms)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        return "blocks", 1
    variables = COPIES * sum(part.nbytes for part in (one.z, one.cond, one.null))
    left = budget / SLACK
    if left < variables + at_most(step, picture, 0):
        return "blocks", 1
    images = int(left / (variables + at_most(step, picture, 1)))
    images = max(1, min(len(start.z), images))
    each = left / images - variables
    whole = settings.steps * step.stored + settings.last * picture.stored
    if whole + max(step.peak - step.stored, picture.peak - picture.stored) <= each:
        return settings.steps, images
    fits = [k for k in range(settings.steps) if at_most(step, picture, k) <= each]
    return max(fits, default=0), images


def at_most(step: Need, picture: Need, stored: int) -> int:
    """The most bytes of one image's update when so many steps are stored.

    The stored steps wait while images are decoded and judged, one after another; then the last step
    goes backwards while the others wait; then the steps that are not stored, one after another.
    """
    return max(stored * step.stored + picture.peak, max(0, stored - 1) * step.stored + step.peak)


def measure(
    model: LatentDiffusion, one: Inputs, settings: ChainSettings, terms: Sequence[Term] = ()
) -> tuple[Need, Need]:
    """Bytes of one step, and of one decoded image with the networks' outputs on its cut-outs."""
    time = model.schedule.times(settings.steps)[-1]
    given = (one.z, one.cond[:, 0], one.null[:, 0])
    z, cond, null = leaves = [part.detach().clone().requires_grad_() for part in given]
    first = [term.rows([0]) for term in terms]
    seeds = row_seeds(1, 0, device=z.device)

    def step() -> Tensor:
        return guided_noise(model, z, time, cond, null, settings.guidance)

    def picture() -> Tensor:
        x = model.decode(z)
        return augmented(first, x, settings, seeds) if first else x

    inputs = leaves if settings.guidance != 1 else leaves[:2]  # without guidance no null text
    return needed(step, inputs), needed(picture, leaves[:1])


def less(stored: StoredSteps, images: int) -> tuple[StoredSteps, int] | None:
    """What to try after memory ran out; None where there is nothing less."""
    if images > 1:
        return ("blocks" if stored == "blocks" else 0), images // 2
    if stored == "blocks":
        return None
    return (0 if stored is None or stored > 0 else "blocks"), 1


def describe(stored: StoredSteps, steps: int) -> str:
    """A plan in words.

    >>> describe(3, 20), describe("blocks", 20)
    ('3 of 20 steps stored', 'every block computed twice')
    """
    if stored == "blocks":
        return "every block computed twice"
    return f"{steps if stored is None else stored} of {steps} steps stored"


def out_of_memory(error: RuntimeError) -> bool:
    """Whether an error says that memory ran out, on a device or in the host."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or any(
        words in text for words in ("can't allocate memory", "alloc_failed")
    )
