"""Where two classifiers part: the score that DiG-IN raises, and what is left of it.

Paper: Augustin, Neuhaus, Hein 2024 (digin2024), section 4, Figures 3–5 and 14–16.
Differs: confidences are after temperature. The search may go by logarithms. The result is
       measured again after JPEG, a shift and noise, because a difference that a shift undoes says
       little about the class.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.ball import mix, normal
from counterlens.generators.diffusion.optimise import Term
from counterlens.images import decode, jpeg_bytes, to_pixels
from counterlens.types import Images, Scores

SURE, UNSURE = 0.8, 0.2
"""An image counts where the one is at least this sure of the class and the other at most."""


def disagreement(raised: Term, lowered: Term) -> list[Term]:
    """Raise one classifier's confidence in a class and lower the other's.

    Equation: digin2024 (3)   max p_f(y | D(z_0)) − p_g(y | D(z_0))
    """
    return [
        Term(raised.table, raised.column, raised.side, 1.0),
        Term(lowered.table, lowered.column, lowered.side, -1.0),
    ]


def by_logarithms(raised: Term, lowered: Term) -> list[Term]:
    """The same objective by logarithms: log p_f + log(1 − p_g), for tables of logits.

    Where a classifier is quite sure, its confidence has no gradient to speak of, and the
    difference of confidences stays constant there; the logarithms go on.
    """

    def sure(x: Images) -> Float[Tensor, "b k"]:
        return raised.table(x).log_softmax(1)

    def unsure(x: Images) -> Float[Tensor, "b 1"]:
        logits = lowered.table(x)
        own = lowered.column.repeat_interleave(len(x) // len(lowered.column))  # crops of an image
        others = logits.scatter(1, own[:, None], -torch.inf)
        return (others.logsumexp(1) - logits.logsumexp(1))[:, None]

    return [
        Term(sure, raised.column, raised.side, 1.0),
        Term(unsure, torch.zeros_like(lowered.column), lowered.side, 1.0),
    ]


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
