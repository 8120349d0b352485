"""NPCA: what the images of a class differ in, as a classifier's last layer sees them.

The features of a class's images, each weighed by how it enters the class's logit, are taken apart
into principal components. Every component contributes a share of the logit, so one that shows the
background (a feeder for a bird, a hand for a fish) is known from those that show the object.

Paper: Neuhaus, Augustin, Boreiko, Hein 2023, Spurious Features Everywhere (neuhaus2023, section 3);
       used in Augustin et al. 2024 (digin2024, section 5).
Differs: nothing. Components are counted from 0; none is dropped, so contributions add up.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterlens.errors import InputError
from counterlens.explanations.features.directions import Direction


@dataclass(frozen=True)
class NeuralPCA:
    """The components of one class, in double precision.

    Args:
        target: the class.
        weight, bias: its row of the last layer.
        mean: ψ̄, the mean of weight ⊙ features over the class's images.
        vectors: one component per column, by descending variance.
        variances: along each.
        n: images it rests on; components from n − 1 on have no variance.
    """

    target: int
    weight: Float[Tensor, "d"]
    bias: float
    mean: Float[Tensor, "d"]
    vectors: Float[Tensor, "d d"]
    variances: Float[Tensor, "d"]
    n: int

    @property
    def shares(self) -> Float[Tensor, "d"]:
        """How much a step along each component moves the logit: ⟨1, v_l⟩."""
        return self.vectors.sum(0)

    def contributions(self, features: Float[Tensor, "b d"]) -> Float[Tensor, "b d"]:
        """What each component adds to the class's logit, compared with the class's mean image.

        Equation: neuhaus2023 §3   α_l(x) = ⟨1, v_l⟩ ⟨w_k ⊙ φ(x) − ψ̄_k, v_l⟩,
            Σ_l α_l(x) + ⟨1, ψ̄_k⟩ + b_k = f_k(x)
        """
        centred = features.to(self.weight) * self.weight - self.mean
        return self.shares * (centred @ self.vectors)

    def direction(self, component: int, name: str) -> Direction:
        """One component's contribution as a direction of the features.

        Equation: neuhaus2023 §3   α_l(x) = ⟨s w_k ⊙ v_l, φ(x)⟩ − s ⟨ψ̄_k, v_l⟩,  s = ⟨1, v_l⟩
        """
        count = len(self.weight)
        if not 0 <= component < count:
            raise InputError(
                f"{name} has no component {component}: its components are 0 … {count - 1}."
            )
        vector, share = self.vectors[:, component], self.shares[component]
        return Direction(
            f"{name}, component {component}", "component", component,
            share * self.weight * vector, -(share * (self.mean @ vector)).item(), self.target,
        )  # fmt: skip


def neural_pca(last: nn.Linear, features: Float[Tensor, "n d"], target: int) -> NeuralPCA:
    """Principal components of a class's weighed features.

    Equation: neuhaus2023 §3   ψ_k(x) = w_k ⊙ φ(x);  v_l: eigenvectors of the unbiased covariance

    Args:
        last: the classifier's last layer.
        features: what enters it, for images of the class.
        target: the class k.
    """
    if len(features) < 2:
        raise InputError(
            f"got {len(features)} image of the class, expected 2 or more to compare. "
            "Give more with data=SPEC."
        )
    if not torch.isfinite(features).all():
        raise InputError("the features hold NaN or infinite values, expected finite ones.")
    weight = last.weight[target].detach().cpu().double()
    bias = last.bias[target].item() if last.bias is not None else 0.0
    psi = features.cpu().double() * weight
    mean = psi.mean(0)
    centred = psi - mean
    covariance = centred.T @ centred / (len(psi) - 1)
    variances, vectors = torch.linalg.eigh(covariance)  # ascending
    return NeuralPCA(
        target, weight, bias, mean, vectors.flip(1), variances.flip(0).clamp_min(0), len(psi)
    )
