"""How much of a chain to keep for the backward pass, chosen by a memory budget.

Paper: Chen et al. 2016 (checkpointing2016); digin2024, Algorithm 1, recomputes every step.
Differs: what one step keeps is measured, and as many steps as fit are not computed twice.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from counterlens.ball import row_seeds
from counterlens.errors import InputError
from counterlens.generators.ascent import Inputs, Settings, Term, augmented
from counterlens.generators.ddim import guided_noise
from counterlens.generators.latent import LatentDiffusion

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
SLACK = 1.15  # what allocators lose


def parse_memory(text: str) -> int:
    """Bytes of a budget as people write it.

    >>> parse_memory("12GB"), parse_memory("1.5 GiB"), parse_memory("800M")
    (12000000000, 1610612736, 800000000)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", text.lower())
    if not found or float(found[1]) <= 0:
        raise InputError(f"memory is {text!r}, expected a size such as 12GB.")
    unit = _UNITS[found[2]]
    if found[3]:
        unit = 1024 ** [1, 10**3, 10**6, 10**9, 10**12].index(unit)
    return int(float(found[1]) * unit)


def free_memory(device: torch.device) -> int:
    """Bytes that may be used: most of what is free."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(0.85 * (free + cached))
    try:
        return int(0.5 * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):  # not every system says
        return 4 * 10**9


def steps_to_keep(
    model: LatentDiffusion,
    start: Inputs,
    settings: Settings,
    budget: int,
    terms: Sequence[Term] = (),
) -> tuple[int, int]:
    """How many steps of a chain fit the budget un-recomputed, and how many images at a time.

    Measured on one image: what one step and one decoded image keep for the backward pass, with
    the answers of the terms' networks to its cut-outs.
    """
    one = Inputs(start.z[:1], start.cond[:1], start.null[:1])
    step, picture = measure(model, one, settings, terms)
    room = budget / SLACK
    whole = settings.steps * step + settings.last * picture
    images = max(1, min(len(start.z), int(room / (step + picture))))
    if images * whole <= room:
        return settings.steps, images
    steps = int((room / images - picture) // step)  # decoded images are computed again, too
    return max(0, min(settings.steps - 1, steps)), images


def measure(
    model: LatentDiffusion, one: Inputs, settings: Settings, terms: Sequence[Term] = ()
) -> tuple[int, int]:
    """Bytes kept for the backward pass by one step and by one decoded image."""
    time = model.schedule.times(settings.steps)[-1]
    z = one.z.detach().requires_grad_()

    def step() -> Tensor:
        return guided_noise(model, z, time, one.cond[:, 0], one.null[:, 0], settings.guidance)

    def picture() -> Tensor:
        x = model.decode(z)
        first = [replace(term, column=term.column[:1]) for term in terms]
        return augmented(first, x, settings, row_seeds(1, 0, device=x.device)) if first else x

    return saved_bytes(model, step), saved_bytes(model, picture)


def saved_bytes(model: LatentDiffusion, compute: Callable[[], Tensor]) -> int:
    """Bytes of all that autograd keeps of a computation, weights aside."""
    weights = {
        weight.untyped_storage().data_ptr()
        for net in (model.unet, model.vae)
        for weight in net.parameters()
    }
    sizes: dict[int, int] = {}
    alive: list[Tensor] = []  # so that no address is used twice

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        compute()
    return sum(sizes.values())
