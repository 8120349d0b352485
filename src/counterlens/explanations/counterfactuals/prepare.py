"""What an edit needs to know of images before anything is changed, and how edits are set.

Inversion, attention of every word, and the mask of the object: good for any score and any target.

Paper: Augustin, Neuhaus, Hein 2024 (digin2024), section 5 and Algorithm 2; constants from its code.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.ball import row_seeds
from counterlens.explanations.counterfactuals.masks import (
    Average,
    SoftMask,
    attended,
    averaged,
    check_mask,
    from_attention,
    normalised,
    resized,
    soft_map,
)
from counterlens.explanations.counterfactuals.points import PointSegmenter, from_points
from counterlens.explanations.counterfactuals.rounds import rows_of
from counterlens.generators.diffusion.attention import Maps, Watch
from counterlens.generators.diffusion.ddim import Hooks, ddim
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.generators.diffusion.null_text import RATE, Inversion, invert
from counterlens.generators.diffusion.optimise import COUNTERFACTUAL, ChainSettings, Inputs
from counterlens.generators.diffusion.words import carriers, end_of, words_of
from counterlens.models.segmenter import Points
from counterlens.types import Images, Scores

Keep = Literal["background", "object"]

EditSchedule = tuple[float, float]
"""Shares of the steps in which attention is put in, and latents are blended."""


OFFLOAD_ABOVE = 32
"""Of latents with a larger side the maps take gigabytes, and are stored in the CPU's memory."""


@dataclass(frozen=True)
class EditSettings:
    """How an image is edited.

    Args:
        chain: of the search.
        keep: what is held.
        inject: shares of the steps in which the image's attention is put in; the best one is taken.
        blend: shares of the steps in which what is held is blended in; the best one is taken.
        latent_weight, pixel_weight: of the squared distances, as means.
        small_sigma: noise of the cut-outs where images are no larger than what the classifier sees;
            there no pooling stands between it and the single pixel.
        rounds: searches more, at most, for images whose score's exponential, the confidence in a
            class, is below `sure`; each with half the weights of the one before. 0 is the paper's.
        inner, rate: of the inversion.
        reference: repeat the faults of the paper's code in the mixing of words.
    """

    chain: ChainSettings = field(default_factory=lambda: COUNTERFACTUAL)
    keep: Keep = "background"
    inject: tuple[float, ...] = (0.3, 0.4, 0.5)
    blend: tuple[float, ...] = (0.0, 0.3)
    latent_weight: float = 25.0
    pixel_weight: float = 250.0
    small_sigma: float = 0.05
    rounds: int = 0
    sure: float = 0.8
    inner: int = 10
    rate: float = RATE
    reference: bool = False

    @property
    def schedules(self) -> list[EditSchedule]:
        """All pairs."""
        return [(i, b) for i in self.inject for b in self.blend]

    def count(self, share: float) -> int:
        """Steps with i / T below a share."""
        steps = self.chain.steps
        return sum(i / steps < share for i in range(steps))


UVCE = EditSettings()
"""Of the paper's counterfactuals."""
ERROR = EditSettings(inject=(0.0,), blend=(0.3,))
"""Of an image that is to become what it is: nothing to exchange, one schedule."""
NEURON = EditSettings(
    chain=ChainSettings(cuts=0, sigma=0.0), keep="object", inject=(0.3,), blend=(0.3,)
)
"""Of the paper's neuron counterfactuals, as its code has them: no cut-outs."""


@dataclass(frozen=True)
class Prepared:
    """What is known of images before anything is changed; good for any score.

    Args:
        x: the images.
        source: their captions.
        inversion: inputs that make them again.
        maps: their attention.
        words: for each image each word's map, scaled to [0, 1].
        masks: soft, 1 on the object.
        mask_source: for each mask, where it comes from: given, attention, or segmenter.
        points: that the segmenter was shown.
    """

    x: Images
    source: tuple[str, ...]
    inversion: Inversion
    maps: Maps
    words: tuple[dict[str, Float[Tensor, "q q"]], ...]
    masks: SoftMask
    mask_source: tuple[str, ...]
    points: Points | None = None

    def rows(self, places: Sequence[int]) -> "Prepared":
        """Those of some images, which may be repeated."""
        some = list(places)
        old = self.inversion
        inversion = Inversion(
            rows_of(old.inputs, some),
            old.path[some],
            old.latents[some],
            old.images[some],
            old.error[:, some],
        )
        return Prepared(
            self.x[some],
            tuple(self.source[i] for i in some),
            inversion,
            self.maps.rows(some),
            tuple(self.words[i] for i in some),
            self.masks[some],
            tuple(self.mask_source[i] for i in some),
            None if self.points is None else self.points[some],
        )


def prepare(
    model: LatentDiffusion,
    x: Images,
    source: Sequence[str],
    objects: Sequence[str],
    *,
    masks: SoftMask | PointSegmenter | None = None,
    settings: EditSettings = UVCE,
    callback: Callable[[int, Scores], None] | None = None,
) -> Prepared:
    """Invert images, record their attention, and locate the object.

    Args:
        source: captions; each holds the object's word.
        objects: the word or words of the object.
        masks: in place of those by attention, b × 1 × h × w of any size; or a segmenter that is
            shown points where the object is attended to.
        callback: called with the number and the errors of every inversion step.
    """
    tokens = [carriers(model, s, word) for s, word in zip(source, objects, strict=True)]
    if isinstance(masks, Tensor):
        check_mask(masks, images=len(x))
    x = x.to(model.device)
    chain = settings.chain
    inversion = invert(
        model, x, source, guidance=chain.guidance, steps=chain.steps, inner=settings.inner,
        rate=settings.rate, callback=callback,
    )  # fmt: skip
    maps = attention_maps(model, inversion.inputs, settings)
    average = averaged(maps, steps=chain.steps).to(model.device)
    words = word_maps(model, average, source)
    mask_source, points = ("given",) * len(x), None
    if isinstance(masks, PointSegmenter):
        soft = soft_map(attended(average, tokens), model.side)
        seeds = row_seeds(len(x), 0) if masks.seeds is None else masks.seeds
        masks, points, failed = from_points(masks.segment, x, soft, seeds.to(model.device))
        mask_source = tuple("attention" if bad else "segmenter" for bad in failed.tolist())
    elif masks is None:
        masks = from_attention(attended(average, tokens), model.side)
        mask_source = ("attention",) * len(x)
    ready = resized(masks.to(model.device, torch.float32), (model.side, model.side))
    return Prepared(x, tuple(source), inversion, maps, words, ready, mask_source, points)


@torch.no_grad()
def attention_maps(model: LatentDiffusion, given: Inputs, settings: EditSettings) -> Maps:
    """Attention of the chain's first half, and of all steps in which it may be put in."""
    chain = settings.chain
    first = max([-(-chain.steps // 2), *(settings.count(share) for share in settings.inject)])
    store = torch.device("cpu") if model.shape[1] > OFFLOAD_ABOVE else None
    watch = Watch(model, len(given.z), first, store)
    ddim(model, given.z, given.cond, given.null, guidance=chain.guidance, hooks=Hooks(around=watch))
    return watch.maps


def word_maps(
    model: LatentDiffusion, average: Average, source: Sequence[str]
) -> tuple[dict[str, Float[Tensor, "q q"]], ...]:
    """Where each word of each caption is attended to, and the end of the text.

    A word that comes twice is numbered. Generators whose text encoder reads from left to right may
    keep what a caption says in its end.
    """
    maps = []
    for row, prompt in zip(average, source, strict=True):
        here: dict[str, Tensor] = {}
        for word in words_of(model, prompt):
            names = (f"{word.text} {n}" if n > 1 else word.text for n in count(1))
            name = next(name for name in names if name not in here)
            here[name] = attended(row[None], [word.tokens])[0].cpu()
        here["(end)"] = attended(row[None], [[end_of(model, prompt)]])[0].cpu()
        maps.append(normalised(here))
    return tuple(maps)
