"""DiG-IN: optimise what enters a latent diffusion model until a classifier speaks.

Paper: Augustin, Neuhaus, Hein 2024, DiG-IN: Diffusion Guidance for Investigating Networks
       (digin2024), section 3, Algorithm 1; constants from its code.
Differs: the loss is the weighted mean over the last three predicted clean latents, as in the code,
       not over the final image alone; z_T keeps its length; the best image by the score without
       cut-outs is the result. Many images are one batch. What is optimised is float32 whatever
       the precision of the weights.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from counterlens.ball import Seeds, mix, normal
from counterlens.generators.diffusion.cutouts import cutouts, seen
from counterlens.generators.diffusion.ddim import Conds, Hooks, ddim, repeated
from counterlens.generators.diffusion.model import LatentDiffusion, Latents
from counterlens.generators.diffusion.recompute import StoredSteps, blocks_again
from counterlens.objectives import Labelled
from counterlens.search.adam import Iterate, VariableGroup, Variables, adam
from counterlens.types import Images, Scores


@dataclass(frozen=True)
class ChainSettings:
    """How inputs are optimised.

    Args:
        guidance, steps: of the chain.
        updates: of Adam.
        text_rate, noise_rate: step sizes for C_t and ∅_t, and for z_T.
        schedule, clip: see `adam`.
        cuts, sigma: cut-outs per image and their noise; 0 cuts ask about the whole image.
        last: over how many predicted clean latents the score is averaged, later ones more.
        reach: how far a condition or null text may go from its start, in distances between class
            prompts; None, the paper's, sets no bound.
    """

    guidance: float = 3.0
    steps: int = 20
    updates: int = 20
    text_rate: float = 0.01
    noise_rate: float = 0.001
    schedule: Literal["constant", "cosine"] = "constant"
    clip: float | None = None
    cuts: int = 16
    sigma: float = 0.005
    last: int = 3
    reach: float | None = None


COUNTERFACTUAL = ChainSettings()
"""Those of the paper's visual counterfactuals and neuron pictures."""
DISAGREEMENT = ChainSettings(
    steps=25, updates=15, text_rate=0.025, noise_rate=0.00025, schedule="cosine", clip=0.05,
    sigma=0.05,
)  # fmt: skip
"""Those of the paper's classifier disagreement."""


PART = 4
"""Cut-outs at a time where memory is very short."""


@dataclass(frozen=True)
class Inputs:
    """What enters the model: noise, and a condition and a null text per step."""

    z: Latents
    cond: Conds
    null: Conds


@dataclass(frozen=True)
class Term:
    """A part of the score: a weighted objective that sees the image through cut-outs.

    Args:
        objective: of images as large as its network wants them.
        side: how large that is.
        weight: above 0 to raise it, below 0 to lower it.
    """

    objective: Labelled
    side: int
    weight: float = 1.0

    def rows(self, index: Sequence[int]) -> "Term":
        """The same for some of the images."""
        return replace(self, objective=self.objective.rows(index))

    def on_crops(
        self, crops: Float[Tensor, "b m c s s"], *, part: int | None = None
    ) -> Float[Tensor, "b m"]:
        """The objective of every crop, unweighted.

        Args:
            part: so many crops at a time, computed again in the backward pass; None: all at once.
        """
        places = torch.arange(len(crops), device=self.objective.label.device)
        places = places.repeat_interleave(crops.shape[1])
        flat = crops.flatten(0, 1)
        if part is None:
            return self.objective.rows(places)(flat).view(crops.shape[:2])
        pieces = [
            checkpoint(self.objective.rows(where), some, use_reentrant=False)
            for where, some in zip(torch.split(places, part), torch.split(flat, part), strict=True)
        ]
        return torch.cat(pieces).view(crops.shape[:2])


Penalty = Callable[[Latents, Images], Scores]
"""Predicted clean latents and their images to what they cost."""


@dataclass(frozen=True)
class Ascent:
    """What came of it.

    Args:
        images, scores: the best and its score, without cut-outs.
        start_images, start: the images that the prompts alone make, and their scores.
        inputs: what makes the best images.
        trace: the scores of every iterate.
    """

    images: Images
    scores: Scores
    start_images: Images
    start: Scores
    inputs: Inputs
    trace: Float[Tensor, "iterates b"]


def begin(model: LatentDiffusion, prompts: Sequence[str], seeds: Seeds, *, steps: int) -> Inputs:
    """Noise by seed and the prompts' own embeddings, the same at every step."""
    z = normal(seeds, model.shape, like=torch.zeros(1, device=model.device))
    cond = repeated(model.embed(prompts), steps)
    null = repeated(model.embed([""]).expand(len(prompts), -1, -1), steps)
    return Inputs(z, cond, null)


@torch.no_grad()
def draw(
    model: LatentDiffusion,
    prompts: Sequence[str],
    seeds: Seeds,
    *,
    guidance: float = 3.0,
    steps: int = 25,
) -> Images:
    """Images of prompts: the plain use of the model."""
    given = begin(model, prompts, seeds, steps=steps)
    chain = ddim(model, given.z, given.cond, given.null, guidance=guidance)
    return model.decode(chain.originals[-1])


def ascend(
    model: LatentDiffusion,
    start: Inputs,
    terms: Sequence[Term],
    *,
    settings: ChainSettings = COUNTERFACTUAL,
    seeds: Seeds,
    stored: StoredSteps = None,
    callback: Callable[[int, Iterate], None] | None = None,
    penalty: Penalty | None = None,
    hooks: Hooks = Hooks(),  # noqa: B008  frozen
) -> Ascent:
    """Raise a score of the generated images over z_T, every C_t and every ∅_t.

    Equation: digin2024 (2)   max_{z_T, (C_t), (∅_t)} −L(D(z_0(z_T, (C_t), (∅_t))))

    Args:
        seeds: of the cut-outs, one per image.
        stored: steps whose activations are stored for the backward pass; see `ddim`.
        callback: called with every step's number and its iterate.
        penalty: of predicted clean latents and their images; taken off every score.
        hooks: what is done in each step of the chain.
    """
    if hooks.around is not None and getattr(model.unet, "recomputes", False):
        raise ValueError("a recorded network cannot be surrounded by something at each step")
    first: list[Images] = []
    trace: list[Scores] = []
    lean = stored is not None and (stored == "blocks" or stored < settings.steps)

    def evaluate(values: Variables, k: int) -> Iterate:
        chain = ddim(
            model, values["z"], values["cond"], values.get("null", start.null),
            guidance=settings.guidance, last=settings.last, stored=stored, hooks=hooks,
        )  # fmt: skip
        if k == settings.updates:
            x = model.decode(chain.originals[-1])
        else:
            raised, x = _raised(
                model, terms, chain.originals, settings, mix(seeds, k), penalty,
                lean=lean, blocks=stored == "blocks",
            )  # fmt: skip
        judged = judge(terms, x, chain.originals[-1], penalty)
        if k == settings.updates:
            raised = judged
        if not first:
            first.append(x)
        trace.append(judged)
        return Iterate(raised, judged, x)

    result, best = adam(
        evaluate, _groups(model, start, settings), steps=settings.updates, clip=settings.clip,
        schedule=settings.schedule, callback=callback,
    )  # fmt: skip
    inputs = Inputs(best["z"], best["cond"], best.get("null", start.null))
    return Ascent(
        result.points, result.scores, first[0], result.start, inputs, torch.stack(trace).cpu()
    )


def _groups(
    model: LatentDiffusion, start: Inputs, settings: ChainSettings
) -> dict[str, VariableGroup]:
    """What is optimised and how fast; the noise keeps the length it begins with.

    Without guidance the null text takes no part in the chain.
    """
    length = start.z.flatten(1).norm(dim=1)
    radius = None if settings.reach is None else settings.reach * prompt_distance(model)
    groups = {
        "z": VariableGroup(start.z, settings.noise_rate, lambda z: rescaled(z, length)),
        "cond": VariableGroup(start.cond, settings.text_rate, near(start.cond, radius)),
    }
    if settings.guidance != 1:
        groups["null"] = VariableGroup(start.null, settings.text_rate, near(start.null, radius))
    return groups


def rescaled(z: Latents, length: Scores) -> Latents:
    """Noise brought back to its length, where the model knows it.

    Equation: digin2024 code   z_T ← z_T · ‖z_T⁰‖ / ‖z_T‖
    """
    now: Tensor = torch.linalg.vector_norm(z, dim=(1, 2, 3))
    return z * (length / now).view(-1, 1, 1, 1)


WORDS = ("cat", "dog", "bird", "car", "ship", "house", "tree", "flower", "chair", "person")
"""Of prompts where a model's card names no classes."""


def prompt_distance(model: LatentDiffusion) -> float:
    """The median distance between the conditions of two classes: the encoder's own scale."""
    words = list((model.card or {}).get("classes") or WORDS)[:20]
    cond = model.embed([f"a photograph of a {word}" for word in words]).flatten(1)
    return float(torch.pdist(cond.double()).median())


def near(start: Conds, radius: float | None) -> Callable[[Tensor], Tensor] | None:
    """Brings each step's condition back to within a radius of where it started.

    Beyond what the encoder says for any text, a denoiser was never trained: there it draws
    saturated colours that classifiers take for evidence.
    """
    if radius is None:
        return None

    def back(value: Conds) -> Conds:
        away = value - start
        length: Tensor = torch.linalg.vector_norm(away, dim=(2, 3), keepdim=True)
        return start + away * (radius / length.clamp_min(1e-12)).clamp_max(1)

    return back


@torch.no_grad()
def score(terms: Sequence[Term], x: Images) -> Scores:
    """The score of whole images, without cut-outs."""
    total = x.new_zeros(len(x))
    for term in terms:
        total = total + term.weight * term.objective(seen(x, term.side))
    return total


def judge(terms: Sequence[Term], x: Images, z: Latents, penalty: Penalty | None = None) -> Scores:
    """The score of whole images less the penalty: by this the best is chosen."""
    whole = score(terms, x)
    if penalty is None:
        return whole
    with torch.no_grad():
        return whole - penalty(z, x)


def augmented(
    terms: Sequence[Term],
    x: Images,
    settings: ChainSettings,
    seeds: Seeds,
    *,
    part: int | None = None,
) -> Scores:
    """The score averaged over cut-outs; each network gets its own.

    Equation: digin2024 §A   E_τ[score(τ(x))], sixteen crops with noise

    Args:
        part: so many crops at a time, computed again in the backward pass; None: all at once.
    """
    total = x.new_zeros(len(x))
    for number, term in enumerate(terms):
        if not settings.cuts:
            crops = seen(x, term.side)[:, None]
        else:
            crops = cutouts(
                x, term.side, count=settings.cuts, sigma=settings.sigma, seeds=mix(seeds, number)
            )
        total = total + term.weight * term.on_crops(crops, part=part).mean(1)
    return total


def _raised(
    model: LatentDiffusion,
    terms: Sequence[Term],
    originals: Sequence[Latents],
    settings: ChainSettings,
    seeds: Seeds,
    penalty: Penalty | None,
    *,
    lean: bool,
    blocks: bool,
) -> tuple[Scores, Images]:
    """The augmented score, later predictions of the clean image counting more, and the last image.

    Equation: digin2024 code   Σ_i i / (1 + 2 + 3) · score(D(x̂₀^(i)))

    Where memory is short, decoding and scoring are recomputed in the backward pass, one image
    after another; with `blocks` in parts.
    """
    whole = len(originals) * (len(originals) + 1) / 2
    total, last = torch.zeros((), device=seeds.device), torch.zeros(0)
    for number, z in enumerate(originals, 1):

        def valued(z: Latents, salt: int = number) -> tuple[Scores, Images]:
            with blocks_again(model.vae) if blocks else nullcontext():
                x = model.decode(z)
            part = PART if blocks else None
            worth = augmented(terms, x, settings, mix(seeds, 1000 + salt), part=part)
            return worth if penalty is None else worth - penalty(z, x), x

        worth, x = checkpoint(valued, z, use_reentrant=False) if lean else valued(z)
        total, last = total + number / whole * worth, x.detach()
    return total, last
