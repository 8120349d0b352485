"""Adversarial noise of random strength, per image: uniform, one step, ten steps.

Paper: Hendrycks et al. 2021, Natural Adversarial Examples (nae2021, section 5): training with
       ε = (8/255)·u, u uniform per example.
Differs: with gradient steps the best point is returned, not the last one.
"""

from typing import Literal

import torch

from counterlens.ball import Ball, Seeds, mix, uniform
from counterlens.objectives import Predict, wrongness
from counterlens.search.pgd import pgd
from counterlens.types import Images, Labels

NoiseKind = Literal["uniform", "fgsm", "pgd"]
STEPS: dict[NoiseKind, int] = {"uniform": 0, "fgsm": 1, "pgd": 10}


def adversarial_noise(
    predict: Predict,
    x: Images,
    y: Labels,
    kind: NoiseKind,
    *,
    seeds: Seeds,
    radius: float = 8 / 255,
) -> Images:
    """Images disturbed by l∞ noise whose strength is drawn per row, from nothing to `radius`.

    Equation: nae2021 §5   ε = r · u,  u ~ U[0, 1];  step ε / √steps
    """
    strength = radius * uniform(mix(seeds, 11), (1,), like=x)[:, 0]
    ball = Ball("linf", strength)
    steps = STEPS[kind]
    if steps == 0:
        with torch.no_grad():
            return ball.random_point(x, seeds, where="inside")
    result = pgd(
        wrongness(predict, y),
        x,
        ball,
        steps=steps,
        step_size=strength / steps**0.5,
        generator=seeds,
    )
    return result.points
