"""Neuron pictures: an image optimised from noise that drives one unit as far as it goes.

Paper: Olah, Mordvintsev, Schubert 2017, Feature Visualization (featurevis2017): Fourier
       parametrisation, decorrelated colours, jitter. Units as in digin2024 (section 5): what enters
       the last linear layer, or a logit.
Differs: the best image by the score without jitter is the result, not the last one. Colours are
       whitened in an orthogonal basis (grey, blue–yellow, green–magenta) with natural variances
       instead of by a covariance measured on ImageNet.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.ball import Seeds, mix, normal, uniform
from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.explanations.edits.frame import resample
from counterlens.models.parts import features, head
from counterlens.objectives import ScoreTable, entry, weighted
from counterlens.progress import steps as counted
from counterlens.search import frozen
from counterlens.search.adam import Moments
from counterlens.types import Images, Objective, Scores

NeuronKind = Literal["unit", "logit"]
STEP = 0.05
KICK = 0.1
JUDGE_EVERY = 16


@dataclass(frozen=True)
class NeuronPictures:
    """One picture per unit.

    Args:
        images: the pictures.
        activation: the unit's value on its picture, without jitter.
        start: its value on the random start.
    """

    images: Images
    activation: Scores
    start: Scores


def neuron_pictures(
    classifier: Classifier,
    units: list[int],
    *,
    kind: NeuronKind = "unit",
    steps: int = 256,
    jitter: float = 1 / 16,
    sign: int = 1,
    seed: int = 0,
) -> NeuronPictures:
    """Raise units over images given by their Fourier coefficients, by Adam under jitter.

    Equation: featurevis2017 §3   max_ξ E_τ φ_n(τ(σ(F⁻¹(ξ / f))))

    Args:
        units: indices of penultimate units, or classes when kind is "logit".
        jitter: largest random shift, as a share of the side; scale varies by half of it.
        sign: −1 lowers the units instead.
    """
    count = len(classifier.classes) if kind == "logit" else head(classifier).in_features
    for wanted in units:
        if not 0 <= wanted < count:
            raise InputError(f"no {kind} {wanted}: {classifier.name} has 0 … {count - 1}.")
    if sign not in (1, -1) or steps < 1:
        raise InputError(f"sign is {sign}, steps are {steps}; expected 1 or −1, and 1 or more.")
    device = classifier.mean.device
    seeds = mix(torch.tensor(units), seed).to(device)  # a unit starts alike in any company

    table: ScoreTable = classifier if kind == "logit" else partial(features, classifier)
    activation = weighted((float(sign), entry(table, torch.tensor(units, device=device))))
    size = classifier.preprocess.size
    with frozen(classifier):
        code = _coefficients(seeds, classifier.channels, size, classifier.mean)
        return _ascend(activation, code, size, seeds, steps=steps, jitter=jitter)


def picture(code: Float[Tensor, "b c h f 2"], size: tuple[int, int]) -> Images:
    """The image of Fourier coefficients that all matter alike: low frequencies are louder.

    Equation: featurevis2017 §3   x = σ(C F⁻¹(ξ / max(f, 1/N)))
    """
    height, width = size
    down = torch.fft.fftfreq(height, device=code.device)[:, None]
    across = torch.fft.rfftfreq(width, device=code.device)[None]
    frequency = (down.square() + across.square()).sqrt().clamp_min(1 / max(size))
    spectrum = torch.view_as_complex(code) / frequency.to(code)
    plane = torch.fft.irfft2(spectrum, s=size, norm="ortho") / 4
    if code.shape[1] == 3:
        plane = torch.einsum("kc,bchw->bkhw", _colours(plane), plane)
    image: Tensor = plane.sigmoid()
    return image


def _ascend(
    activation: Objective,
    code: Float[Tensor, "b c h f 2"],
    size: tuple[int, int],
    seeds: Seeds,
    *,
    steps: int,
    jitter: float,
) -> NeuronPictures:
    """Adam on the coefficients; every few steps the picture itself is judged; the best one."""
    moments = Moments.zeros(code)
    best = picture(code, size)
    with torch.no_grad():
        start = top = activation(best)
    for step in counted(range(1, steps + 1), steps):
        with torch.enable_grad():
            leaf = code.detach().requires_grad_()
            seen = _jittered(picture(leaf, size), mix(seeds, step), jitter)
            (grad,) = torch.autograd.grad(activation(seen).sum(), leaf)
        moments = moments.after(grad)
        code = moments.moved(code, STEP, step)
        asleep = grad.flatten(1).abs().amax(1) == 0  # a dead ReLU says nothing: shake the picture
        shake = KICK * normal(mix(seeds, -step), code.shape[1:], like=code)
        code = torch.where(asleep.view(-1, 1, 1, 1, 1), code + shake, code)
        if step % JUDGE_EVERY == 0 or step == steps:
            with torch.no_grad():
                now = picture(code, size)
                score = activation(now)
            better = score > top
            top = torch.where(better, score, top)
            best = torch.where(better.view(-1, 1, 1, 1), now, best)
    return NeuronPictures(best, top, start)


def _jittered(x: Images, seeds: Seeds, jitter: float) -> Images:
    """Each image moved and scaled by random amounts of its own."""
    right, down, size = (2 * uniform(seeds, (3,), like=x) - 1).unbind(1)
    return resample(x, 1 + jitter / 2 * size, 2 * jitter * right, 2 * jitter * down)


def _coefficients(
    seeds: Seeds, channels: int, size: tuple[int, int], like: Tensor
) -> Float[Tensor, "b c h f 2"]:
    """A faint random start."""
    height, width = size
    return 0.01 * normal(seeds, (channels, height, width // 2 + 1, 2), like=like)


def _colours(like: Tensor) -> Float[Tensor, "3 3"]:
    """Columns: grey, blue–yellow, green–magenta, as loud as they are in photographs."""
    grey, blue, green = math.sqrt(1 / 3), math.sqrt(1 / 6), math.sqrt(1 / 2)
    basis = like.new_tensor([[grey, blue, green], [grey, -2 * blue, 0.0], [grey, blue, -green]])
    return basis * like.new_tensor([1.0, 0.25, 0.35])
