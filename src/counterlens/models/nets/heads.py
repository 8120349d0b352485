"""One trunk with three linear heads: shape, texture, background. Their mean is the ensemble.

Paper: Sauer and Geiger 2021 (cgn2021, §3.3): heads on the pooled features of one trunk.
Differs: nothing.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.models.parts import head_name
from counterlens.types import Images, Logits, Preprocess

Factor = Literal["shape", "texture", "background"]
FACTORS: tuple[Factor, ...] = ("shape", "texture", "background")


class ThreeHeads(nn.Module):
    """Logits of the ensemble; `every` gives those of each head.

    Args:
        trunk: from images to features, b × d.
        features: d.
        classes: how many.
    """

    def __init__(self, trunk: nn.Module, features: int, classes: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.heads = nn.ModuleDict({name: nn.Linear(features, classes) for name in FACTORS})

    def forward(self, x: Images) -> Logits:
        """The ensemble.

        Equation: cgn2021 §3.3   mean of the logits of the three heads
        """
        return self.every(x).mean(0)

    def every(self, x: Images) -> Float[Tensor, "3 b k"]:
        """Logits of each head, in the order of FACTORS."""
        return self.on_features(self.features(x))

    def features(self, x: Images) -> Float[Tensor, "b d"]:
        """What enters the heads."""
        out: Tensor = self.trunk(x)
        return out.flatten(1)

    def on_features(self, z: Float[Tensor, "b d"]) -> Float[Tensor, "3 b k"]:
        """Logits of each head, of features that are known already."""
        return torch.stack([self.heads[name](z) for name in FACTORS])


def with_three_heads(
    base: Classifier, classes: tuple[str, ...], *, size: int | None = None
) -> Classifier:
    """A classifier on the trunk of another one, whose last layer three fresh heads replace.

    The trunk is the base's own network, which is changed.

    Args:
        size: side of the images it takes; None keeps the base's.
    """
    name = head_name(base.net, len(base.classes))
    last = base.net.get_submodule(name)
    assert isinstance(last, nn.Linear | nn.Conv2d)
    features = last.in_features if isinstance(last, nn.Linear) else last.in_channels
    parent, _, own = name.rpartition(".")
    setattr(base.net.get_submodule(parent), own, nn.Identity())
    preprocess = base.preprocess
    if size is not None:
        preprocess = Preprocess((size, size), 1.0, preprocess.interpolation, preprocess.squash)
    return Classifier(
        ThreeHeads(base.net, features, len(classes)).to(base.mean.device),
        classes,
        base.mean.flatten().tolist(),
        base.std.flatten().tolist(),
        preprocess=preprocess,
        name=f"{base.name}-heads",
    )


def three_heads(classifier: Classifier) -> ThreeHeads | None:
    """The network, where it has a head for each factor."""
    return classifier.net if isinstance(classifier.net, ThreeHeads) else None


def head_logits(classifier: Classifier, x: Images) -> Float[Tensor, "3 b k"]:
    """Logits of each head of images in [0, 1]."""
    net = three_heads(classifier)
    if net is None:
        raise InputError(f"{classifier.name} has no heads of shape, texture and background.")
    return net.every((x - classifier.mean) / classifier.std)


def one_head(classifier: Classifier, factor: str) -> Classifier:
    """A classifier that answers by one head alone; its weights are shared."""
    net = three_heads(classifier)
    if net is None or factor not in FACTORS:
        raise InputError(
            f"{classifier.name} has no head {factor!r}, expected one of {', '.join(FACTORS)} of a "
            "network trained by train heads."
        )
    return Classifier(
        nn.Sequential(net.trunk, nn.Flatten(1), net.heads[factor]),
        classifier.classes,
        classifier.mean.flatten().tolist(),
        classifier.std.flatten().tolist(),
        preprocess=classifier.preprocess,
        name=f"{classifier.name}-{factor}",
        card=classifier.card,
    )


class EveryHead(Classifier):
    """The same network with the logits of all heads side by side, 3 · K columns, in one pass."""

    def __init__(self, classifier: Classifier) -> None:
        columns = [f"{factor}: {name}" for factor in FACTORS for name in classifier.classes]
        super().__init__(
            classifier.net,
            columns,
            classifier.mean.flatten().tolist(),
            classifier.std.flatten().tolist(),
            preprocess=classifier.preprocess,
            name=f"{classifier.name}, every head",
        )

    def forward(self, x: Images) -> Logits:
        """Logits b × 3 K."""
        return head_logits(self, x).transpose(0, 1).flatten(1)
