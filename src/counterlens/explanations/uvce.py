"""Universal visual counterfactuals: change what an image shows for any classifier, little else.

The image is inverted under its caption; the words of the thing are exchanged, the attention of the
first steps is kept; then noise, conditions and null texts are optimised for a score, while the
background, or the thing, is held.

Paper: Augustin, Neuhaus, Hein 2024 (digin2024), sections 3.2 and 5, Algorithm 2; constants from
       its code.
Differs: distances are means over elements, as in the code; the paper's text writes sums, which
       with the same weights would be another method. The reference is E(x), not z_T. Images are a
       batch, each with the schedule that is best for it. Small images get more noise in cut-outs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.ball import Seeds
from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.explanations.masks import (
    Average,
    Mask,
    attended,
    averaged,
    check_mask,
    from_attention,
    masked_mean,
    normalised,
    resized,
)
from counterlens.explanations.pixel import temperature_of
from counterlens.generators.ascent import (
    COUNTERFACTUAL,
    Hooks,
    Inputs,
    Penalty,
    Settings,
    Term,
    ascend,
    judge,
)
from counterlens.generators.attention import Maps, Watch, inject
from counterlens.generators.cutouts import WIDE
from counterlens.generators.ddim import ddim, repeated
from counterlens.generators.inversion import RATE, Inversion, invert
from counterlens.generators.latent import LatentDiffusion, Latents
from counterlens.generators.words import Mixing, carriers, end_of, mixing, words_of
from counterlens.search.adam import Look
from counterlens.types import Images, Labels, Scores

Keep = Literal["background", "object"]
Schedule = tuple[float, float]
"""Shares of the steps in which attention is put in, and latents are blended."""


ASIDE = 32
"""Of latents with a larger side the maps take gigabytes, and are kept in the CPU's memory."""


@dataclass(frozen=True)
class EditSettings:
    """How an image is edited.

    Args:
        chain: of the search.
        inject: shares of the steps in which the image's attention is kept; the best one is taken.
        blend: shares of the steps in which what is held is blended in; the best one is taken.
        latent_weight, pixel_weight: of the squared distances, as means.
        small_sigma: noise of the cut-outs where images are no larger than what the classifier sees;
            there no pooling stands between it and the single pixel.
        inner, rate: of the inversion.
        reference: repeat the faults of the paper's code in the mixing of words.
    """

    chain: Settings = field(default_factory=lambda: COUNTERFACTUAL)
    inject: tuple[float, ...] = (0.3, 0.4, 0.5)
    blend: tuple[float, ...] = (0.0, 0.3)
    latent_weight: float = 25.0
    pixel_weight: float = 250.0
    small_sigma: float = 0.05
    inner: int = 10
    rate: float = RATE
    reference: bool = False

    @property
    def schedules(self) -> list[Schedule]:
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
NEURON = EditSettings(chain=Settings(cuts=0, sigma=0.0), inject=(0.3,), blend=(0.3,))
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
        masks: soft, 1 on the thing.
    """

    x: Images
    source: tuple[str, ...]
    inversion: Inversion
    maps: Maps
    words: tuple[dict[str, Float[Tensor, "q q"]], ...]
    masks: Mask

    def rows(self, places: Sequence[int]) -> "Prepared":
        """Those of some images, which may be repeated."""
        some = list(places)
        old = self.inversion
        given = Inputs(old.inputs.z[some], old.inputs.cond[some], old.inputs.null[some])
        inversion = Inversion(
            given, old.path[some], old.latents[some], old.images[some], old.error[:, some]
        )
        return Prepared(
            self.x[some],
            tuple(self.source[i] for i in some),
            inversion,
            self.maps.rows(some),
            tuple(self.words[i] for i in some),
            self.masks[some],
        )


@dataclass(frozen=True)
class Edit:
    """What came of it.

    Args:
        images, scores: the best, and its score less the penalty, without cut-outs.
        start_images, start: prompt-to-prompt alone, and its score less the penalty.
        schedule: for each image the one that was taken.
        trace: every look's scores.
    """

    images: Images
    scores: Scores
    start_images: Images
    start: Scores
    schedule: tuple[Schedule, ...]
    inputs: Inputs
    trace: Float[Tensor, "looks b"]
    prepared: Prepared

    @property
    def reconstruction(self) -> Images:
        """The images as the model makes them again."""
        return self.prepared.inversion.images

    @property
    def masks(self) -> Mask:
        """Soft, 1 on the thing."""
        return self.prepared.masks

    @property
    def maps(self) -> tuple[dict[str, Float[Tensor, "q q"]], ...]:
        """For each image each word's attention."""
        return self.prepared.words


def class_term(classifier: Classifier, classes: Labels) -> Term:
    """A classifier's log-confidence in one class per image, after temperature.

    Equation: digin2024 (5)   log p_f(y | x); (20) for a zero-shot classifier of two texts
    """
    warmth = temperature_of(classifier)

    def table(x: Images) -> Float[Tensor, "b k"]:
        logits: Tensor = classifier(x)
        return (logits.float() / warmth).log_softmax(1)

    return Term(table, classes.to(classifier.mean.device), classifier.preprocess.size[0])


def prepare(
    model: LatentDiffusion,
    x: Images,
    source: Sequence[str],
    things: Sequence[str],
    *,
    masks: Mask | None = None,
    settings: EditSettings = UVCE,
    told: Callable[[int, Scores], None] | None = None,
) -> Prepared:
    """Invert images, look at their attention, find where the thing is.

    Args:
        source: captions; each holds the thing's word.
        things: the word or words of the thing.
        masks: in place of those by attention, b × 1 × h × w of any size.
        told: is shown the inversion's steps.
    """
    tokens = [carriers(model, s, thing) for s, thing in zip(source, things, strict=True)]
    if masks is not None:
        check_mask(masks, images=len(x))
    x = x.to(model.device)
    chain = settings.chain
    inversion = invert(
        model, x, source, guidance=chain.guidance, steps=chain.steps, inner=settings.inner,
        rate=settings.rate, told=told,
    )  # fmt: skip
    maps = look_at(model, inversion.inputs, settings)
    average = averaged(maps, steps=chain.steps).to(model.device)
    words = word_maps(model, average, source)
    if masks is None:
        masks = from_attention(attended(average, tokens), model.side)
    ready = resized(masks.to(model.device, torch.float32), (model.side, model.side))
    return Prepared(x, tuple(source), inversion, maps, words, ready)


@torch.no_grad()
def look_at(model: LatentDiffusion, given: Inputs, settings: EditSettings) -> Maps:
    """Attention of the chain's first half, and of all steps in which it may be put in."""
    chain = settings.chain
    first = max([-(-chain.steps // 2), *(settings.count(share) for share in settings.inject)])
    store = torch.device("cpu") if model.shape[1] > ASIDE else None
    watch = Watch(model, len(given.z), first, store)
    ddim(model, given.z, given.cond, given.null, guidance=chain.guidance, around=watch)
    return watch.maps


def word_maps(
    model: LatentDiffusion, average: Average, source: Sequence[str]
) -> tuple[dict[str, Float[Tensor, "q q"]], ...]:
    """Where each word of each caption is attended to, and the end of the text.

    A word that comes twice is numbered. Generators whose text encoder reads from left to right may
    keep what a caption says in its end.
    """
    found = []
    for row, prompt in zip(average, source, strict=True):
        here: dict[str, Tensor] = {}
        for word in words_of(model, prompt):
            names = (f"{word.text} {n}" if n > 1 else word.text for n in count(1))
            name = next(name for name in names if name not in here)
            here[name] = attended(row[None], [word.tokens])[0].cpu()
        here["(end)"] = attended(row[None], [[end_of(model, prompt)]])[0].cpu()
        found.append(normalised(here))
    return tuple(found)


def uvce(
    model: LatentDiffusion,
    x: Images,
    terms: Sequence[Term],
    *,
    source: Sequence[str],
    target: Sequence[str],
    words: Sequence[tuple[str, str]],
    masks: Mask | None = None,
    keep: Keep = "background",
    settings: EditSettings = UVCE,
    seeds: Seeds,
    kept: int | None = None,
    prepared: Prepared | None = None,
    told: Callable[[int, Look], None] | None = None,
) -> Edit:
    """Change images so that a score rises, while the background or the thing is held.

    Equation: digin2024 Alg. 2   max score(x̂) − w_VAE mean(M(ẑ₀ − E(x))²) − w_PX mean(M(x̂ − x)²)

    Args:
        terms: the score.
        source, target: captions of what is and of what shall be.
        words: which phrase of the one became which of the other; equal ones change nothing.
        masks: soft masks of the thing; None takes the word's attention.
        keep: what is held.
        seeds: of the cut-outs, one per image.
        kept: steps whose inner values are kept for the backward pass; see `ddim`.
        prepared: what `prepare` found for the same images and captions.
        told: is shown every look.
    """
    if prepared is None:
        things = [pair[0] for pair in words]
        prepared = prepare(model, x, source, things, masks=masks, settings=settings)
    elif prepared.source != tuple(source):
        raise InputError("prepared holds other captions, expected those of source.")
    held = prepared.masks if keep == "object" else 1 - prepared.masks
    penalty = distance(prepared, held, settings)
    mix = mixing(model, source, target, words, reference=settings.reference)
    given = prepared.inversion.inputs
    start = Inputs(given.z, repeated(model.embed(target), settings.chain.steps), given.null)
    chosen = search_schedule(model, start, terms, prepared, mix, held, penalty, settings)
    hooks = hooks_of(model, prepared, mix, held, chosen, settings)
    chain = settings.chain
    if any(model.side < WIDE * term.side for term in terms):
        chain = replace(chain, sigma=max(chain.sigma, settings.small_sigma))
    found = ascend(
        model, start, terms, settings=chain, seeds=seeds, kept=kept, told=told,
        penalty=penalty, hooks=hooks,
    )  # fmt: skip
    return Edit(
        found.images, found.scores, found.start_images, found.start, tuple(chosen), found.inputs,
        found.trace, prepared,
    )  # fmt: skip


def distance(prepared: Prepared, held: Mask, settings: EditSettings) -> Penalty:
    """What leaving the image costs where it is held, in latents and in pixels.

    Equation: digin2024 (4)   w_VAE mean(M_VAE (ẑ₀ − E(x))²) + w_PX mean(M_PX (x̂ − x)²)
    """
    latents = prepared.inversion.latents
    small = resized(held, (latents.shape[2], latents.shape[3]))

    def penalty(z: Latents, x: Images) -> Scores:
        return settings.latent_weight * masked_mean(small, z, latents) + (
            settings.pixel_weight * masked_mean(held, x, prepared.x)
        )

    return penalty


def hooks_of(
    model: LatentDiffusion,
    prepared: Prepared,
    mix: Mixing,
    held: Mask,
    schedule: Sequence[Schedule],
    settings: EditSettings,
) -> Hooks:
    """Attention and blending of each image's schedule."""
    counts = [settings.count(share) for share, _ in schedule]
    around = inject(model, prepared.maps, mix, counts) if any(counts) else None
    blends = [settings.count(share) for _, share in schedule]
    if not any(blends):
        return Hooks(around)
    path = prepared.inversion.path
    small = resized(held, (path.shape[3], path.shape[4]))
    return Hooks(around, blending(path, small, blends))


def blending(
    path: Float[Tensor, "b t c h w"], held: Mask, counts: Sequence[int]
) -> Callable[[int, Latents], Latents]:
    """In the first steps the image's own latents are put back where they are held.

    Equation: digin2024 Alg. 2   z_t ← B z_t* + (1 − B) z_t,  B = s_t M
    """
    ends = torch.tensor(list(counts), device=path.device).view(-1, 1, 1, 1)

    def enter(step: int, z: Latents) -> Latents:
        if step >= max(counts):
            return z
        weight = held * (step < ends)
        return weight * path[:, step] + (1 - weight) * z

    return enter


@torch.no_grad()
def search_schedule(
    model: LatentDiffusion,
    start: Inputs,
    terms: Sequence[Term],
    prepared: Prepared,
    mix: Mixing,
    held: Mask,
    penalty: Penalty,
    settings: EditSettings,
) -> list[Schedule]:
    """For each image the schedule whose start is worth most, before anything is optimised."""
    trials = settings.schedules
    if len(trials) == 1:
        return trials * len(start.z)
    worth = []
    for trial in trials:
        hooks = hooks_of(model, prepared, mix, held, [trial] * len(start.z), settings)
        chain = ddim(
            model, start.z, start.cond, start.null, guidance=settings.chain.guidance,
            around=hooks.around, enter=hooks.enter,
        )  # fmt: skip
        z = chain.originals[-1]
        worth.append(judge(terms, model.decode(z), z, penalty))
    best = torch.stack(worth).argmax(0).tolist()
    return [trials[k] for k in best]
