"""How many edits by a generator fit into memory at a time, and what is stored for the gradient.

Attention maps are stored beside the latents, so an edit needs more than a generated image does.
"""

from collections.abc import Sequence

import torch

from counterlens.classifier import Classifier
from counterlens.explanations.counterfactuals.uvce import OFFLOAD_ABOVE, EditSettings, class_term
from counterlens.generators.diffusion.ddim import repeated
from counterlens.generators.diffusion.memory import room, steps_to_keep
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.generators.diffusion.optimise import Inputs
from counterlens.generators.diffusion.recompute import StoredSteps
from counterlens.search import frozen

MOST = 128
"""Edits at a time, at most."""


def plan_edits(
    model: LatentDiffusion,
    settings: EditSettings,
    count: int,
    memory: str | None,
    guides: Sequence[Classifier],
) -> tuple[StoredSteps, int]:
    """What to store for the backward pass, and edits at a time, within a memory budget.

    Classifiers guide one after another, so the one that needs most memory decides.
    """
    budget = room(memory, model.device)
    chain = settings.chain
    text = repeated(model.embed([""]), chain.steps)
    z = torch.zeros(1, *model.shape, device=model.device)
    maps = map_bytes(model, settings)
    size = max(1, min(count, MOST, int(budget / (4 * maps + 1))))

    def fit(count: int, guide: Classifier) -> tuple[StoredSteps, int]:
        term = class_term(guide, torch.zeros(1, dtype=torch.long))
        many = (part.expand(count, -1, -1, -1) for part in (z, text, text))
        with frozen(guide):
            return steps_to_keep(model, Inputs(*many), chain, budget - count * maps, [term])

    least: int | None = None
    for guide in guides:
        stored, fewer = fit(size, guide)
        if fewer < size:  # which have fewer maps, and leave more room
            stored, fewer = fit(fewer, guide)
        if stored is None or stored == "blocks":
            return "blocks", 1
        least, size = stored if least is None else min(least, stored), fewer
    return least, size


def map_bytes(model: LatentDiffusion, settings: EditSettings) -> int:
    """What the attention maps of one image take beside the model; 0 where they are offloaded."""
    if model.shape[1] > OFFLOAD_ABOVE:
        return 0
    chain = settings.chain
    wanted = [chain.steps // 2, *(settings.count(share) for share in settings.inject)]
    side, tokens = model.shape[1], int(model.tokenizer.model_max_length)
    levels = len(model.unet.config.block_out_channels)  # type: ignore[union-attr, arg-type]
    heads = model.unet.config.attention_head_dim  # type: ignore[union-attr]
    most = max(heads) if isinstance(heads, list | tuple) else int(heads)  # type: ignore[arg-type]
    layers = int(model.unet.config.layers_per_block)  # type: ignore[union-attr, arg-type]
    places = sum((side // 2**k) ** 2 * (2 * layers + 1) for k in range(levels))
    places += (side // 2 ** (levels - 1)) ** 2  # the middle
    return int(4 * max(wanted) * most * tokens * places)
