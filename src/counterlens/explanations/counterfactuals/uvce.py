"""Universal visual counterfactuals: change what an image shows for any classifier, little else.

The image is inverted under its caption; the words of the object are exchanged, the attention of the
first steps is put in; then noise, conditions and null texts are optimised for a score, while the
background, or the object, is held.

Paper: Augustin, Neuhaus, Hein 2024 (digin2024), sections 3.2 and 5, Algorithm 2; constants from
       its code.
Differs: distances are means over elements, as in the code; the paper's text writes sums, which
       with the same weights would be another method. The reference is E(x), not z_T. Images are a
       batch, each with the schedule that is best for it. Small images get more noise in cut-outs.
       Images that are not sure yet may go on with less weight on the distance, see `rounds`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.ball import Seeds
from counterlens.ball import mix as mixed_seeds
from counterlens.classifier import Classifier
from counterlens.explanations.counterfactuals.masks import SoftMask, masked_mean, resized
from counterlens.explanations.counterfactuals.pixel import temperature_of
from counterlens.explanations.counterfactuals.prepare import (
    ERROR,
    NEURON,
    OFFLOAD_ABOVE,
    UVCE,
    EditSchedule,
    EditSettings,
    Prepared,
    prepare,
)
from counterlens.explanations.counterfactuals.rounds import go_on
from counterlens.generators.diffusion.attention import inject
from counterlens.generators.diffusion.cutouts import WIDE
from counterlens.generators.diffusion.ddim import Hooks, ddim, repeated
from counterlens.generators.diffusion.model import LatentDiffusion, Latents
from counterlens.generators.diffusion.optimise import (
    Ascent,
    Inputs,
    Penalty,
    Term,
    ascend,
    judge,
    score,
)
from counterlens.generators.diffusion.recompute import StoredSteps
from counterlens.generators.diffusion.words import Mixing, mixing
from counterlens.objectives import entry, log_probabilities
from counterlens.search.adam import Iterate
from counterlens.types import Images, Labels, Scores


@dataclass(frozen=True)
class Edit:
    """The result of `uvce`.

    Args:
        images, scores: the best, and its score less the penalty, without cut-outs.
        start_images, start: prompt-to-prompt alone, and its score less the penalty.
        schedule: for each image the one that was taken.
        trace: the scores of every iterate of the first search.
        rounds: for each image the search its result is from, 0 for the first.
    """

    images: Images
    scores: Scores
    start_images: Images
    start: Scores
    schedule: tuple[EditSchedule, ...]
    inputs: Inputs
    trace: Float[Tensor, "iterates b"]
    prepared: Prepared
    rounds: tuple[int, ...]

    @property
    def reconstruction(self) -> Images:
        """The images as the model makes them again."""
        return self.prepared.inversion.images

    @property
    def masks(self) -> SoftMask:
        """Soft, 1 on the object."""
        return self.prepared.masks

    @property
    def maps(self) -> tuple[dict[str, Float[Tensor, "q q"]], ...]:
        """For each image each word's attention."""
        return self.prepared.words


def class_term(classifier: Classifier, classes: Labels) -> Term:
    """A classifier's log-confidence in one class per image, after temperature."""
    table = log_probabilities(classifier, temperature_of(classifier))
    wanted = entry(table, classes.to(classifier.mean.device))
    return Term(wanted, classifier.preprocess.size[0])


@dataclass(frozen=True)
class Change:
    """What is exchanged in the caption of one image.

    Args:
        caption: of what shall be seen.
        words: which phrase became which; equal ones change nothing.
    """

    caption: str
    words: tuple[str, str]


def uvce(
    model: LatentDiffusion,
    prepared: Prepared,
    terms: Sequence[Term],
    changes: Sequence[Change],
    *,
    settings: EditSettings = UVCE,
    seeds: Seeds,
    stored: StoredSteps = None,
    callback: Callable[[int, Iterate], None] | None = None,
) -> Edit:
    """Change images so that a score rises, while the background or the object is held.

    Equation: digin2024 Alg. 2   max score(x̂) − w_VAE mean(M(ẑ₀ − E(x))²) − w_PX mean(M(x̂ − x)²)

    Args:
        prepared: the images and what `prepare` read from them.
        terms: the score.
        changes: one for each image.
        seeds: of the cut-outs, one per image.
        stored: steps whose activations are stored for the backward pass; see `ddim`.
        callback: called with the number of every step and its iterate.
    """
    held = prepared.masks if settings.keep == "object" else 1 - prepared.masks
    captions = [change.caption for change in changes]
    pairs = [change.words for change in changes]
    mix = mixing(model, prepared.source, captions, pairs, reference=settings.reference)
    given = prepared.inversion.inputs
    start = Inputs(given.z, repeated(model.embed(captions), settings.chain.steps), given.null)
    penalty = distance(prepared, held, settings)
    chosen = search_schedule(model, start, terms, prepared, mix, held, penalty, settings)
    chain = settings.chain
    if any(model.side < WIDE * term.side for term in terms):
        chain = replace(chain, sigma=max(chain.sigma, settings.small_sigma))

    def search(rows: list[int], here: Inputs, number: int) -> Ascent:
        part = prepared.rows(rows) if number else prepared  # its maps may take gigabytes
        weights = lighter(settings, number)
        around = hooks_of(model, part, mix[rows], held[rows], [chosen[i] for i in rows], weights)
        return ascend(
            model, here, [term.rows(rows) for term in terms], settings=chain, stored=stored,
            callback=callback, seeds=mixed_seeds(seeds[rows], 100 + number) if number else seeds,
            hooks=around,
            penalty=distance(part, held[rows], weights),
        )  # fmt: skip

    first = search(list(range(len(given.z))), start, 0)
    result, rounds = go_on(
        first, search, lambda rows, x: score([term.rows(rows) for term in terms], x),
        enough=math.log(settings.sure), rounds=settings.rounds,
    )  # fmt: skip
    return Edit(
        result.images, result.scores, result.start_images, result.start, tuple(chosen),
        result.inputs, result.trace, prepared, rounds,
    )  # fmt: skip


def lighter(settings: EditSettings, number: int) -> EditSettings:
    """The settings of a later round."""
    part = 0.5**number
    return replace(
        settings, latent_weight=part * settings.latent_weight,
        pixel_weight=part * settings.pixel_weight,
    )  # fmt: skip


def distance(prepared: Prepared, held: SoftMask, settings: EditSettings) -> Penalty:
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
    held: SoftMask,
    schedule: Sequence[EditSchedule],
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
    path: Float[Tensor, "b t c h w"], held: SoftMask, counts: Sequence[int]
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
    held: SoftMask,
    penalty: Penalty,
    settings: EditSettings,
) -> list[EditSchedule]:
    """For each image the schedule whose start is worth most, before anything is optimised."""
    trials = settings.schedules
    if len(trials) == 1:
        return trials * len(start.z)
    worth = []
    for trial in trials:
        hooks = hooks_of(model, prepared, mix, held, [trial] * len(start.z), settings)
        chain = ddim(
            model, start.z, start.cond, start.null, guidance=settings.chain.guidance, hooks=hooks
        )
        z = chain.originals[-1]
        worth.append(judge(terms, model.decode(z), z, penalty))
    best = torch.stack(worth).argmax(0).tolist()
    return [trials[k] for k in best]


__all__ = [
    "ERROR",
    "NEURON",
    "OFFLOAD_ABOVE",
    "UVCE",
    "Change",
    "Edit",
    "EditSchedule",
    "EditSettings",
    "Prepared",
    "blending",
    "class_term",
    "distance",
    "hooks_of",
    "prepare",
    "search_schedule",
    "uvce",
]
