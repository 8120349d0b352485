"""Where two classifiers disagree: the score that DiG-IN raises, and what is left of it.

Paper: Augustin, Neuhaus, Hein 2024 (digin2024), section 4, Figures 3–5 and 14–16.
Differs: confidences are after temperature. The search may go by logarithms. The result is
       measured again after JPEG, a shift and noise, because a difference that a shift undoes says
       little about the class.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.ball import mix, normal
from counterlens.generators.diffusion.optimise import Term
from counterlens.images import decode, jpeg_bytes, to_pixels
from counterlens.objectives import Predict, entry, log_doubt, log_probabilities, probabilities
from counterlens.types import Images, Labels, Scores

SURE, UNSURE = 0.8, 0.2
"""An image counts where the one is at least this sure of the class and the other at most."""


@dataclass(frozen=True)
class JudgedClass:
    """A classifier and the class of each image that is meant, as this classifier numbers it.

    Args:
        predict: images of its size to logits.
        label: of each image.
        side: the images' side that it wants.
        temperature: of its confidences.
    """

    predict: Predict
    label: Labels
    side: int
    temperature: float = 1.0


def disagreement(raised: JudgedClass, lowered: JudgedClass) -> list[Term]:
    """Raise one classifier's confidence in a class and lower the other's.

    Equation: digin2024 (3)   max p_f(y | D(z_0)) − p_g(y | D(z_0))
    """
    return [
        Term(entry(probabilities(one.predict, one.temperature), one.label), one.side, weight)
        for one, weight in ((raised, 1.0), (lowered, -1.0))
    ]


def by_logarithms(raised: JudgedClass, lowered: JudgedClass) -> list[Term]:
    """The same objective by logarithms: log p_f + log(1 − p_g).

    Where a classifier is quite sure, its confidence has no gradient to speak of, and the
    difference of confidences stays constant there; the logarithms go on.
    """
    sure = entry(log_probabilities(raised.predict, raised.temperature), raised.label)
    unsure = log_doubt(lowered.predict, lowered.label, lowered.temperature)
    return [Term(sure, raised.side), Term(unsure, lowered.side)]


def succeeded(sure: Scores, unsure: Scores) -> Tensor:
    """Which images the one takes for the class and the other does not."""
    return (sure >= SURE) & (unsure <= UNSURE)


def disturbed(x: Images, *, seed: int = 0) -> dict[str, Images]:
    """The same images as JPEG, shifted, and with noise: what is real survives that."""
    side = x.shape[-1]
    step = max(1, round(side / 16))  # two pixels at 32
    shifted = torch.cat([x[..., :1].expand(*x.shape[:-1], step), x[..., :-step]], -1)
    noise = normal(mix(torch.arange(len(x)), seed), tuple(x.shape[1:]), like=x)
    return {
        "jpeg-75": torch.stack([_jpeg(one) for one in x]),
        f"shift-{step}": shifted,
        "noise-0.05": (x + 0.05 * noise).clamp(0, 1),
    }


def _jpeg(image: Float[Tensor, "c h w"]) -> Float[Tensor, "c h w"]:
    pixels = decode(jpeg_bytes(to_pixels(image), quality=75), name="jpeg")
    return torch.from_numpy(pixels).permute(2, 0, 1).float() / 255
