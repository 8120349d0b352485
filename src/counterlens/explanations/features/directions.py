"""Directions: units and components as weighted sums of penultimate features.

A unit is one feature; a component of a class is a sum over all of them (`npca`). What is computed
for a unit (value, map, images that raise it) is computed for any direction in the same way.

Paper: Augustin et al. 2024 (digin2024, section 5).
Differs: nothing.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.models.parts import features, head
from counterlens.objectives import Labelled
from counterlens.types import Images, Labels, Scores


@dataclass(frozen=True)
class Direction:
    """A number that a classifier's features give: ⟨weight, φ⟩ + offset.

    Args:
        name: for people, e.g. "unit 17" or "cat, component 0".
        kind: "unit" or "component".
        number: of the unit or component.
        weight: of each feature, float64.
        target: the class a component belongs to; None for a unit.
    """

    name: str
    kind: str
    number: int
    weight: Float[Tensor, "d"]
    offset: float = 0.0
    target: int | None = None

    def values(self, features: Float[Tensor, "b d"]) -> Scores:
        """Its value on each image, given the image's features."""
        return features @ self.weight.to(features) + self.offset

    def objective(self, classifier: Classifier, count: int) -> Labelled:
        """Its value as an objective; the same for all of `count` images.

        Equation: digin2024 (6)   max φ(x)_n,  or α_l(x)
        """

        def value(z: Images, _: Labels) -> Scores:
            return self.values(features(classifier, z).float())

        return Labelled(value, torch.zeros(count, dtype=torch.long, device=classifier.mean.device))


def unit_direction(classifier: Classifier, unit: int) -> Direction:
    """A penultimate unit.

    Equation: digin2024 (6)   φ(x)_n
    """
    count = head(classifier).in_features
    if not 0 <= unit < count:
        raise InputError(f"no unit {unit}: {classifier.name} has the units 0 … {count - 1}.")
    weight = torch.zeros(count, dtype=torch.float64)
    weight[unit] = 1
    return Direction(f"unit {unit}", "unit", unit, weight)


def strongest_units(
    classifier: Classifier, features: Float[Tensor, "n d"], target: int, count: int
) -> list[int]:
    """The units that speak for a class most, on average over images: largest mean of w_kn · φ_n.

    Equation: salientimagenet2022 §3   argmax_n mean_x w_kn φ(x)_n

    Units that speak against the class on average are left out.
    """
    weight = head(classifier).weight[target].detach().cpu().double()
    spoken = weight * features.double().mean(0)
    order = torch.argsort(spoken, descending=True, stable=True)[:count]
    return [int(n) for n in order if spoken[n] > 0]


def logits_of(classifier: Classifier, features: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
    """Logits of features, in double precision on the CPU."""
    last = head(classifier)
    weight = last.weight.detach().cpu().double()
    bias = last.bias.detach().cpu().double() if last.bias is not None else 0.0
    return features.cpu().double() @ weight.T + bias


def driven(
    logits: Float[Tensor, "n k"],
    values: Float[Tensor, "n"],
    target: int,
    labels: Labels,
) -> tuple[Tensor, Tensor]:
    """Images of other classes taken for the class, and those of them that a direction drives there.

    Driven: with the direction's value brought down to its median over all images of other classes,
    the class would no longer be the answer. `values` must be a part of the class's logit.

    Equation: neuhaus2023 §4   argmax f(x) = k  and  f_k(x) − (α(x) − median α) < max_{j ≠ k} f_j(x)

    Args:
        labels: −1 where unknown; such images are left out.

    Returns:
        Flags of the images taken for the class, and of those driven there.
    """
    other = (labels >= 0) & (labels != target)
    taken = other & (logits.argmax(1) == target)
    if not other.any():
        raise InputError("no image of another class given, so there is nothing to take for it.")
    usual = values[other].median()
    rest = logits.clone()
    rest[:, target] = float("-inf")
    lowered = logits[:, target] - (values - usual)
    return taken, taken & (values > usual) & (lowered < rest.amax(1))
