"""Twelve ways to wrap a classifier wrongly, for the doctor's table; what is given stays whole."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from counterlens.classifier import Classifier

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@dataclass(frozen=True)
class Fault:
    """A named fault, how it is made, and the checks that may find it."""

    name: str
    make: Callable[[Classifier], Classifier]
    checks: tuple[str, ...]
    said: str = ""


class Around(nn.Module):
    """A network with something before and after it."""

    def __init__(
        self,
        net: nn.Module,
        before: Callable[[Tensor], Tensor] = lambda u: u,
        after: Callable[[Tensor], Tensor] = lambda z: z,
    ) -> None:
        super().__init__()
        self.net, self.before, self.after = net, before, after

    def forward(self, u: Tensor) -> Tensor:
        return self.after(self.net(self.before(u)))


def rewrap(
    c: Classifier,
    net: nn.Module | None = None,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    classes: Sequence[str] | None = None,
) -> Classifier:
    """The same classifier with something changed."""
    return Classifier(
        net or c.net,
        classes or c.classes,
        c.mean.flatten().tolist() if mean is None else mean,
        c.std.flatten().tolist() if std is None else std,
        preprocess=c.preprocess,
        name=c.name,
    ).eval()


def _double(c: Classifier) -> Classifier:
    return rewrap(c, Around(c.net, before=lambda u: (u - c.mean) / c.std))


def _missing(c: Classifier) -> Classifier:
    return rewrap(c, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def _wrong(c: Classifier) -> Classifier:
    mean, std = IMAGENET if c.std.flatten().tolist() == list(HALF[1]) else HALF
    return rewrap(c, mean=mean, std=std)


def _training(c: Classifier) -> Classifier:
    return rewrap(c, copy.deepcopy(c.net)).train()


def _renamed(c: Classifier) -> Classifier:
    order = np.random.default_rng(5).permutation(len(c.classes))
    return rewrap(c, classes=[c.classes[i] for i in order])


def _bytes(c: Classifier) -> Classifier:
    """Pixels of 0 … 255 normalised as if they were in [0, 1]."""
    mean, std = ([v / 255 for v in t.flatten().tolist()] for t in (c.mean, c.std))
    return rewrap(c, mean=mean, std=std)


def _bgr(c: Classifier) -> Classifier:
    return rewrap(
        c, Around(c.net, before=lambda u: ((u * c.std + c.mean).flip(1) - c.mean) / c.std)
    )


FAULTS = (
    Fault("double normalisation", _double, ("normalisation",), "double"),
    Fault("missing normalisation", _missing, ("normalisation",), "missing"),
    Fault("wrong mean and std", _wrong, ("normalisation",), "wrong mean and std"),
    Fault(
        "softmax outputs",
        lambda c: rewrap(c, Around(c.net, after=lambda z: z.softmax(1))),
        ("logits",),
        "probabilities",
    ),
    Fault(
        "sigmoid outputs",
        lambda c: rewrap(c, Around(c.net, after=torch.sigmoid)),
        ("logits",),
        "sigmoid",
    ),
    Fault("training mode", _training, ("training mode",)),
    Fault(
        "randomness at inference",
        lambda c: rewrap(c, Around(c.net, before=lambda u: u + 0.02 * torch.randn_like(u))),
        ("randomness",),
    ),
    Fault("wrong class count", lambda c: rewrap(c, classes=c.classes[:-1]), ("class count",)),
    Fault("wrong class order", _renamed, ("class order",)),
    Fault("pixels in 0 … 255", _bytes, ("pixel range",)),
    Fault("blue before red", _bgr, ("channel order",)),
    Fault(
        "dead gradients",
        lambda c: rewrap(c, Around(c.net, before=lambda u: (u * 64).round() / 64)),
        ("gradients",),
    ),
)
"""Each a fault met in public bug reports about wrapping classifiers for robustness tests."""
