"""Object masks of many images from a generator's attention to a word, without inverting them.

Paper: Augustin et al. 2024 (digin2024), appendix D: the attention while an image is generated again
       from its inversion.
Differs: noise is added to the image's latents instead, at the times of the chain's first half. That
       is one pass of the network per time, not hundreds, so whole sets can be marked.
"""

import math
from collections.abc import Sequence

import torch

from counterlens.ball import Seeds, mix, normal
from counterlens.explanations.counterfactuals.masks import (
    SoftMask,
    attended,
    averaged,
    from_attention,
)
from counterlens.generators.diffusion.attention import Watch
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.generators.diffusion.words import carriers
from counterlens.types import Images

STEPS = 20


@torch.no_grad()
def attention_masks(
    model: LatentDiffusion,
    x: Images,
    prompts: Sequence[str],
    objects: Sequence[str],
    *,
    seeds: Seeds,
    steps: int = STEPS,
) -> SoftMask:
    """Soft masks of the objects that the prompts name, 1 on the object.

    Equation: digin2024 §D.1   attention to the object's tokens in the noisier half of the times

    Args:
        x: images of the generator's side.
        prompts: captions; each holds the object's word.
        objects: the word or words of the object.
        seeds: of the noise, one per image.
        steps: of the chain whose times are visited.
    """
    pairs = list(zip(prompts, objects, strict=True))
    once = {pair: carriers(model, *pair) for pair in dict.fromkeys(pairs)}
    tokens = [once[pair] for pair in pairs]
    clean, cond = model.encode(x.to(model.device)), model.embed(prompts)
    early = -(-steps // 2)
    watch = Watch(model, len(x), early)
    for i, time in enumerate(model.schedule.times(steps)[:early]):
        alpha = model.schedule.alpha(time)
        noise = normal(mix(seeds, i).to(model.device), model.shape, like=clean)
        with watch(i):
            model.noise(math.sqrt(alpha) * clean + math.sqrt(1 - alpha) * noise, time, cond)
    average = averaged(watch.maps, steps=steps).to(model.device)
    return from_attention(attended(average, tokens), model.side)
