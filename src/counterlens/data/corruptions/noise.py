"""Noise: Gaussian, shot, impulse and speckle.

Paper: Hendrycks, Dietterich 2019, arXiv:1903.12261.
Differs: nothing.
"""

import numpy as np
from jaxtyping import Float

_Picture = Float[np.ndarray, "h w c"]


def gaussian_noise(x: _Picture, rng: np.random.Generator, sigma: float) -> _Picture:
    """Normal noise on every value, as in low light.

    Equation: corruptions2019 Gaussian noise   x + N(0, σ²)
    """
    return x + rng.normal(0, sigma, x.shape)


def shot_noise(x: _Picture, rng: np.random.Generator, rate: float) -> _Picture:
    """Counts of photons.

    Equation: corruptions2019 shot noise   Poisson(λx)/λ
    """
    counts: _Picture = rng.poisson(x * rate) / rate
    return counts


def impulse_noise(x: _Picture, rng: np.random.Generator, share: float) -> _Picture:
    """Salt and pepper: this share of the values (not of the pixels) becomes 0 or 1."""
    hit = rng.random(x.shape) <= share
    salt = rng.random(x.shape) <= 0.5
    return np.where(hit, salt.astype(np.float64), x)


def speckle_noise(x: _Picture, rng: np.random.Generator, sigma: float) -> _Picture:
    """Normal noise that grows with the value.

    Equation: corruptions2019 speckle noise   x + x·N(0, σ²)
    """
    return x + x * rng.normal(0, sigma, x.shape)
