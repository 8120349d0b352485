"""ODIN: a small step in pixels that makes the answer surer, then a softmax at high temperature.

Paper: Liang, Li, Srikant 2018 (odin2018).
Differs: temperature 1000 and step 0.0014 are fixed; the paper and OpenOOD choose them on unknown
    images. The paper divides the step by the channel's standard deviation in normalised space,
    which is a plain step in pixels of [0, 1]. As there, pixels are not clipped.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from counterlens.types import Images, Scores

TEMPERATURE, STEP = 1000.0, 0.0014


def odin(
    predict: Callable[[Images], Tensor],
    images: Images,
    *,
    temperature: float = TEMPERATURE,
    step: float = STEP,
) -> Scores:
    """Log of the top softmax probability at `temperature` after the step, float64.

    Equation: odin2018 ODIN   x̃ = x − ε sign(−∇ log p_ŷ(x; T)), s = max_k p_k(x̃; T)
    """
    x = images.detach().clone().requires_grad_()
    with torch.enable_grad():
        logs = (predict(x).double() / temperature).log_softmax(1)
        (gradient,) = torch.autograd.grad(logs.amax(1).sum(), x)
    with torch.no_grad():
        logits = predict(images + step * gradient.sign()).double()
        # relative to uniform: at T = 1000 all probabilities are near 1/K
        return (logits / temperature).log_softmax(1).amax(1)
