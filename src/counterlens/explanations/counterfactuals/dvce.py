"""DVCE: guided stochastic sampling from the noised image until a classifier sees the target.

Paper: Augustin, Boreiko, Croce, Hein 2022, Diffusion Visual Counterfactual Explanations,
       arXiv:2210.11841 (dvce2022); constants from its code. digin2024 compares with it.
Differs: the paper's diffusion model lives in pixel space; ours in the latent space of an
       autoencoder, so the clean image that is judged is the decoded prediction, and where the
       decoder overshoots the gradient is 0. The null text stands for "unconditional". Crops are
       those of `cutouts`. The posterior's variance is the fixed one, not learned. A robust gradient
       that points away from the cone guides nothing in that step, as the projection says.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.ball import Seeds, mix, normal
from counterlens.errors import InputError
from counterlens.generators.diffusion.cutouts import cutouts, seen
from counterlens.generators.diffusion.ddim import original
from counterlens.generators.diffusion.model import LatentDiffusion, Latents
from counterlens.generators.diffusion.optimise import Term
from counterlens.types import Images

_Rows = Float[Tensor, "b d"]


@dataclass(frozen=True)
class DvceSettings:
    """How an image is guided.

    Args:
        steps, start: of the respaced chain, and how many of its last steps are walked.
        towards, near: weights of the classifier's gradient and of the distance's.
        angle: half opening of the cone in degrees, for a robust helper.
        cuts, sigma: crops per image and their noise; 0 cuts ask about the whole image.
    """

    steps: int = 200
    start: int = 100
    towards: float = 0.1
    near: float = 0.15
    angle: float = 30.0
    cuts: int = 16
    sigma: float = 0.005

    def __post_init__(self) -> None:
        if not 1 <= self.start <= self.steps:
            raise InputError(f"start is {self.start}, expected 1 … {self.steps}, the steps.")
        if not 0 < self.angle < 90:
            raise InputError(f"angle is {self.angle}, expected between 0 and 90 degrees.")


PAPER = DvceSettings()


def dvce(
    model: LatentDiffusion,
    x: Images,
    term: Term,
    *,
    helper: Term | None = None,
    settings: DvceSettings = PAPER,
    seeds: Seeds,
    callback: Callable[[int, Images], None] | None = None,
) -> Images:
    """Counterfactuals of images x towards the class that the term reads.

    Equation: dvce2022 code   z_{t−1} ~ N(μ_t + Σ_t g, Σ_t),
        g = ‖ε̂‖ (C_c ∇ log p / ‖∇ log p‖ − C_d ∇ d / ‖∇ d‖)

    Args:
        x: of the generator's side.
        term: log-confidences of the classifier that is explained.
        helper: the same of a robust classifier; its gradient, brought into a cone around the
            explained one's, then stands for it.
        seeds: one per image, of all its noise and crops.
        callback: called with every step's number and its predicted clean images.
    """
    if x.shape[-2:] != (model.side, model.side):
        raise InputError(
            f"got images of {x.shape[-1]} × {x.shape[-2]} pixels, expected "
            f"{model.side} × {model.side}, the generator's."
        )
    schedule = model.schedule
    times = schedule.times(settings.steps)[settings.steps - settings.start :]
    null = model.embed([""]).expand(len(x), -1, -1)
    x = x.to(model.device)
    with torch.no_grad():
        first = schedule.alpha(times[0])
        clean = model.encode(x)
        noise = normal(mix(seeds, 1), tuple(clean.shape[1:]), like=clean)
        z = math.sqrt(first) * clean + math.sqrt(1 - first) * noise
    for i, time in enumerate(times):
        alpha = schedule.alpha(time)
        after = schedule.alpha(schedule.before(time, settings.steps))
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            predicted = model.noise(z, time, null)
            image = model.decode(original(z, predicted, alpha))
        push = _push(image, x, z, predicted.detach(), term, helper, settings, mix(seeds, 100 + i))
        if callback is not None:
            callback(i, image.detach())
        mean, sigma = posterior(z.detach(), predicted.detach(), alpha, after)
        z = mean + sigma**2 * push
        if i < len(times) - 1:  # the last step adds no noise
            z = z + sigma * normal(mix(seeds, 10_000 + i), tuple(z.shape[1:]), like=z)
    with torch.no_grad():
        return model.decode(z)


def posterior(z: Latents, noise: Latents, alpha: float, after: float) -> tuple[Latents, float]:
    """Mean and standard deviation of the next latents, given these and the predicted noise.

    Equation: ddpm2020 (7)   μ = √ᾱ' β/(1−ᾱ) x̂₀ + √α (1−ᾱ')/(1−ᾱ) z,  σ² = β (1−ᾱ')/(1−ᾱ),
        α = ᾱ/ᾱ', β = 1 − α
    """
    step = alpha / after
    clean = original(z, noise, alpha)
    mean = (math.sqrt(after) * (1 - step) * clean + math.sqrt(step) * (1 - after) * z) / (1 - alpha)
    return mean, math.sqrt((1 - step) * (1 - after) / (1 - alpha))


def rescaled(gradient: Latents, noise: Latents) -> Latents:
    """A gradient brought to the length of the predicted noise, image by image; 0 stays 0.

    Equation: dvce2022 code   g ‖ε̂‖₂ / ‖g‖₂
    """
    length = gradient.flatten(1).norm(dim=1)
    wanted = noise.flatten(1).norm(dim=1)
    factor = torch.where(length > 0, wanted / torch.where(length > 0, length, 1), 0)
    return gradient * factor.view(-1, 1, 1, 1)


def cone(vector: _Rows, axis: _Rows, degrees: float) -> _Rows:
    """The nearest point of the cone around an axis; inside it the vector itself.

    Equation: dvce2022 code   P_{cone(α, v)}(w) = max(0, ⟨w, r⟩) r on the edge,
        r = cos α v/‖v‖ + sin α u/‖u‖, u = w − ⟨w, v⟩ v/‖v‖²
    """
    opening = math.radians(degrees)
    centre = torch.nn.functional.normalize(axis, dim=1)
    along = (vector * centre).sum(1, keepdim=True)
    across = vector - along * centre
    width = across.norm(dim=1, keepdim=True)
    side = across / torch.where(width > 0, width, 1)
    edge = math.cos(opening) * centre + math.sin(opening) * side
    reach = (math.cos(opening) * along + math.sin(opening) * width).clamp_min(0)
    inside = (width <= math.tan(opening) * along) & (along > 0)
    return torch.where(inside, vector, reach * edge)


def _push(
    image: Images,
    x: Images,
    z: Latents,
    noise: Latents,
    term: Term,
    helper: Term | None,
    settings: DvceSettings,
    seeds: Seeds,
) -> Latents:
    """The guidance: towards the class and towards the image, each as long as the noise says."""

    def back(slope: Images, *, last: bool = False) -> Latents:
        (gradient,) = torch.autograd.grad(image, z, slope, retain_graph=not last)
        return gradient

    towards = back(slope_of(term, image, settings, mix(seeds, 1)))
    if helper is not None:
        robust = back(slope_of(helper, image, settings, mix(seeds, 2)))
        towards = cone(robust.flatten(1), towards.flatten(1), settings.angle).view_as(towards)
    away = back((image.detach() - x).sign(), last=True)  # the slope of the l1 distance
    return settings.towards * rescaled(towards, noise) - settings.near * rescaled(away, noise)


def slope_of(term: Term, image: Images, settings: DvceSettings, seeds: Seeds) -> Images:
    """The gradient of the mean over crops of what a term reads, at the image.

    Equation: dvce2022 code   ∇ mean_τ log p(target | τ(x))
    """
    with torch.enable_grad():
        leaf = image.detach().requires_grad_()
        if settings.cuts:
            crops = cutouts(leaf, term.side, count=settings.cuts, sigma=settings.sigma, seeds=seeds)
        else:
            crops = seen(leaf, term.side)[:, None]
        value = term.on_crops(crops).sum() / crops.shape[1]
        (gradient,) = torch.autograd.grad(value, leaf)
    return gradient
