"""What a digit classifier looks at: heat maps against masks, and what changes its mind.

Paper: cgnstudy2022 (section 3.4) for the overlap of Grad-CAM and digit.
Differs: the mask belongs to the picture's own digit (the study compared Double-coloured and
       Wildlife pictures with masks of other digits). Activations are copied before the in-place
       step that follows. How often a change of one factor alone flips the answer is new.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from counterlens.classifier import Classifier, numbered
from counterlens.data.synthetic.mnist_variants import DigitVariant
from counterlens.explanations.cam import class_cam
from counterlens.metrics.intervals.closed_form import mean_interval, wilson
from counterlens.metrics.saliency import iou, mean_iou, trivial_scores
from counterlens.models.nets.digit_net import LAST_CONV, DigitNet
from counterlens.models.parts import CamLayer
from counterlens.types import Preprocess
from counterlens.workflows.cgn.stack import answers

LAYER = CamLayer(LAST_CONV, "channels first", (8, 8))
GREY = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class Test:
    """Test pictures on the device, with everything needed to change them.

    Args:
        split: the factors.
        x: its pixels.
        y: its labels.
        changed: per factor, the same pictures with that factor of another class.
    """

    split: DigitVariant
    x: UInt8[Tensor, "n 3 32 32"]
    y: Int[Tensor, "n"]
    changed: dict[str, UInt8[Tensor, "n 3 32 32"]]


def open_test(split: DigitVariant, device: torch.device, *, seed: int = 0) -> Test:
    """The test pictures, and each with one factor changed to another class at random."""
    rng = np.random.default_rng([seed, 77])
    changed = {}
    for factor in split.factors:
        other = (getattr(split, factor) + rng.integers(1, 10, len(split))) % 10
        parts = []
        for start in range(0, len(split), 5000):
            rows = np.arange(start, min(start + 5000, len(split)))
            rendered = split.render(rows, **{factor: other[rows]})
            parts.append((rendered.clamp(0, 1) * 255).round().to(torch.uint8))
        changed[factor] = torch.cat(parts).to(device)
    return Test(split, split.pixels().to(device), split.labels.to(device), changed)


@dataclass(frozen=True)
class MeasuredMean:
    """The mean of what pictures gave, how many they were, and its 95 % interval."""

    mean: float
    n: int
    low: float
    high: float


def measured(values: Bool[Tensor, "n"] | Float[Tensor, "n"]) -> MeasuredMean:
    """Of flags the share with Wilson's interval, of values in [0, 1] the mean with a BCa one."""
    mean, n = float(values.double().mean()), len(values)
    if values.dtype == torch.bool:
        return MeasuredMean(mean, n, *wilson(int(values.sum()), n))
    return MeasuredMean(mean, n, *mean_interval(values.double().cpu().numpy(), (0.0, 1.0)))


def flips(net: DigitNet, test: Test) -> dict[str, Bool[Tensor, "n s"]]:
    """Which answers of each network a change of one factor alone flips."""
    predicted = answers(net, test.x)
    return {factor: answers(net, x) != predicted for factor, x in test.changed.items()}


def as_classifier(net: DigitNet, name: str) -> Classifier:
    """One network with its normalisation."""
    return Classifier(
        net, numbered(10), GREY, GREY, preprocess=Preprocess((32, 32), None, "nearest"), name=name
    )


def overlap(
    net: DigitNet, test: Test, *, count: int, batch: int = 500
) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
    """IoU of the Grad-CAM map of the predicted class with the digit: both classes' mean, object's.

    Args:
        net: one network.
        count: how many of the test pictures, the first ones.
    """
    device = test.x.device
    classifier = as_classifier(net, "digits").to(device).eval()
    masks = test.split.masks[:count].to(device)
    both, alone = [], []
    for start in range(0, len(masks), batch):
        x = test.x[start : start + batch].float()[: len(masks) - start] / 255
        with torch.no_grad():
            predicted = classifier(x).argmax(1)
        cam = class_cam(classifier, x, predicted, layer=LAYER).picture
        mask = masks[start : start + batch]
        both.append(mean_iou(cam, mask))
        alone.append(iou(cam, mask))
    return torch.cat(both).cpu(), torch.cat(alone).cpu()


def baselines(test: Test, *, count: int) -> dict[str, dict[str, MeasuredMean]]:
    """What heat maps that know nothing of the image score on the same masks.

    Args:
        count: how many of the test images, the first ones.
    """
    return {
        name: {"iou": measured(both), "object_iou": measured(alone)}
        for name, (both, alone) in trivial_scores(test.split.masks[:count]).items()
    }


@torch.no_grad()
def pooled(net: DigitNet, x: UInt8[Tensor, "n 3 32 32"]) -> Float[Tensor, "n 64"]:
    """The 64 pooled features of one network."""
    features: Tensor = net.layers(x.float() / 127.5 - 1).flatten(1)
    return features.cpu()
