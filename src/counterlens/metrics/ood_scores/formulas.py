"""The formulas of OOD scores; each is higher for images that look known.

Paper: Hendrycks & Gimpel 2017 (msp2017), Hendrycks et al. 2022 (maxlogit2022), Liu et al. 2020
    (energy2020), Sun et al. 2022 (knn2022), Lee et al. 2018 (mahalanobis2018), Ren et al. 2021
    (relative2021), Wang et al. 2022 (vim2022), Sun et al. 2021 (react2021), Djurisic et al. 2023
    (ash2023).
Differs: MSP is given as log-odds, the same order without saturation. Mahalanobis reads the last
    features alone, without noise on the input, as OpenOOD has it. Everything is float64.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.types import Logits, Scores

_Features = Float[Tensor, "b d"]
_Square = Float[Tensor, "d d"]


def msp(logits: Logits) -> Scores:
    """Log-odds of the top class, which order images as the maximum softmax probability does.

    Equation: msp2017 MSP   s = max_k p_k, as log p/(1 − p)
    """
    top, rest = logits.max(1), logits.double().clone()
    rest.scatter_(1, top.indices[:, None], -torch.inf)
    return top.values.double() - rest.logsumexp(1)


def max_logit(logits: Logits) -> Scores:
    """The highest logit.

    Equation: maxlogit2022 max-logit   s = max_k z_k
    """
    return logits.double().amax(1)


def energy(logits: Logits, temperature: float = 1.0) -> Scores:
    """Negative free energy.

    Equation: energy2020 energy   s = T · log Σ_k exp(z_k / T)
    """
    return temperature * (logits.double() / temperature).logsumexp(1)


def entropy(logits: Logits) -> Scores:
    """Negative entropy of the softmax probabilities.

    Equation: maxlogit2022 entropy   s = Σ_k p_k log p_k
    """
    logs = logits.double().log_softmax(1)
    return (logs.exp() * logs).sum(1)


def knn(features: _Features, bank: Float[Tensor, "m d"], k: int) -> Scores:
    """Negative distance to the k-th nearest of the fitted images, features of unit length.

    Equation: knn2022 kNN   s = −‖φ/‖φ‖ − (φ/‖φ‖)_(k)‖₂
    """
    unit, others = (torch.nn.functional.normalize(part.double()) for part in (features, bank))
    parts = [torch.cdist(rows, others).kthvalue(k, dim=1).values for rows in torch.split(unit, 512)]
    return -torch.cat(parts)


def mahalanobis(features: _Features, means: Float[Tensor, "k d"], precision: _Square) -> Scores:
    """Negative squared Mahalanobis distance to the nearest class mean.

    Equation: mahalanobis2018 Mahalanobis   s = max_c −(φ − μ_c)ᵀ Σ⁻¹ (φ − μ_c)
    """
    distances = []
    for mean in means:
        gap = features.double() - mean
        distances.append(((gap @ precision) * gap).sum(1))
    return -torch.stack(distances).amin(0)


def relative_mahalanobis(
    features: _Features,
    means: Float[Tensor, "k d"],
    precision: _Square,
    mean: Float[Tensor, "d"],
    whole: _Square,
) -> Scores:
    """Mahalanobis score less that of one Gaussian over all classes.

    Equation: relative2021 relative Mahalanobis   s = max_c −(M_c(φ) − M_0(φ))
    """
    return mahalanobis(features, means, precision) - mahalanobis(features, mean[None], whole)


def vim(
    features: _Features,
    logits: Logits,
    origin: Float[Tensor, "d"],
    residual: Float[Tensor, "d r"],
    alpha: float,
) -> Scores:
    """Energy less the scaled length of what lies outside the principal space.

    Equation: vim2022 ViM   s = log Σ_k exp z_k − α ‖R Rᵀ (φ − o)‖₂
    """
    outside = (features.double() - origin) @ residual
    length: Tensor = torch.linalg.vector_norm(outside, dim=1)
    return energy(logits) - alpha * length


def clip(features: _Features, ceiling: float) -> _Features:
    """ReAct: no feature above the ceiling.

    Equation: react2021 ReAct   φ̄ = min(φ, c)
    """
    return features.double().clamp_max(ceiling)


def ash_s(features: _Features, percentile: float) -> _Features:
    """Keep the largest features of each image and scale them up.

    Equation: ash2023 ASH-S   φ̄ = top(φ) · exp(s₁/s₂), s₁ and s₂ sums before and after
    """
    values, _, pruned = _pruned(features, percentile)
    scale = values.sum(1, keepdim=True) / pruned.sum(1, keepdim=True)
    return pruned * scale.nan_to_num(0.0, 0.0, 0.0).clamp_max(700.0).exp()


def ash_b(features: _Features, percentile: float) -> _Features:
    """Keep the largest features of each image, all set to one value of the same sum.

    Equation: ash2023 ASH-B   φ̄ = s₁/k where φ is among the k largest, else 0
    """
    values, chosen, _ = _pruned(features, percentile)
    count = chosen.sum(1, keepdim=True)
    return chosen.double() * (values.sum(1, keepdim=True) / count)


def _pruned(features: _Features, percentile: float) -> tuple[Tensor, Tensor, Tensor]:
    """Features in float64, which are among the largest of their image, and these alone."""
    values = features.double()
    count = max(1, values.shape[1] - round(values.shape[1] * percentile / 100))
    chosen = torch.zeros_like(values, dtype=torch.bool)
    chosen.scatter_(1, values.topk(count, dim=1).indices, True)
    return values, chosen, values * chosen
