"""Does an exported model answer as the one it was exported from? If not, which fault explains it?

The reference is run with each usual fault put in: channels swapped, another mean or std, another
range of pixels, a clipped input, other preparation of the picture. The fault whose logits come
much nearer to the export's than the reference's own, and follow it from image to image, is named.
What none explains is a matter of the network inside: rounding, clipped scales where the graph is
quantised, or other weights.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from counterlens.classifier import Classifier
from counterlens.diagnosis.finding import Finding
from counterlens.diagnosis.probes import stack
from counterlens.types import Images, Interpolation, Logits, Preprocess

NAME = "export"
EQUAL = 1e-3
"""Largest difference of logits, as a share of their spread, that needs no explanation."""
EXPLAINED = 0.3
"""A fault explains a difference if it leaves less than this share of it."""
FOLLOWED = 0.5
"""… and of how far the export's logits vary from image to image. A fault that makes the reference
answer almost the same to every image lies near any network that does so, but does not follow it."""
ROUNDED = 0.05
"""Mean difference, as a share of the spread, up to which rounding is taken for harmless."""
ALIKE = 0.5
"""Correlation of the logits below which the networks are different ones."""
CLIPPED = "clipped scales of a quantisation"
BATCH = 32
STATISTICS = {
    "ImageNet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "CIFAR-10": ((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)),
    "0.5": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "CLIP": ((0.4815, 0.4578, 0.4082), (0.2686, 0.2613, 0.2758)),
}
Forward = Callable[[], Logits]


@torch.no_grad()
def export(
    classifier: Classifier, reference: Classifier, pictures: Sequence[np.ndarray]
) -> Finding:
    """Compare an export with its reference on the same pictures, each prepared as it says.

    Args:
        classifier: the exported model.
        reference: what it was exported from.
        pictures: uint8 RGB, of any size.
    """
    own, theirs = stack(classifier, pictures), stack(reference, pictures)
    z, truth = _logits(classifier, own), _logits(reference, theirs)
    if z.shape != truth.shape:
        message = f"it gives {z.shape[1]} logits, {reference.name} gives {truth.shape[1]}."
        return Finding(NAME, "fail", message, "high", "Export the network that is meant.")
    spread = truth.double().std().clamp_min(1e-12)
    gap = float((z - truth).double().abs().mean() / spread)
    largest = float((z - truth).double().abs().max() / spread)
    changed = int((z.argmax(1) != truth.argmax(1)).sum())
    facts = (
        f"{changed} of {len(z)} answers differ from {reference.name}; logits by {gap:.2g} of their "
        f"spread on average, {largest:.2g} at most"
    )
    if largest <= EQUAL:
        return Finding(NAME, "ok", f"{facts}.")
    varied = float((z - z.mean(0)).double().abs().mean() / spread)
    limit = min(EXPLAINED * gap, FOLLOWED * varied)
    left = {
        name: float((z - forward()).double().abs().mean() / spread)
        for name, forward in faults(classifier, reference, pictures)
    }
    name = min(left, key=left.__getitem__)
    if left[name] <= limit:
        message = (
            f"{facts}. With {name}, {reference.name} differs by {left[name]:.2g} only: {name}."
        )
        return Finding(NAME, "fail", message, "high", f"Export again: it has {name}.")
    both = torch.stack([(part - part.mean(0)).flatten().double() for part in (z, truth)])
    alike = float(torch.corrcoef(both)[0, 1].nan_to_num(0.0))
    if alike < ALIKE:
        message = f"{facts}; their correlation is {alike:.2f}: other weights, or another network."
        return Finding(NAME, "fail", message, "medium", "Export the weights that are meant.")
    if gap <= ROUNDED:
        return Finding(NAME, "ok", f"{facts}: rounding.", "medium")
    if not classifier.card.get("quantised"):
        message = (
            f"{facts}; correlation {alike:.2f}, and no usual fault of an export explains it: other "
            "weights, or a fault that is not among them."
        )
        return Finding(NAME, "warn", message, "medium", "Export the weights that are meant.")
    message = f"{facts}; correlation {alike:.2f}: coarse or {CLIPPED}."
    fix = "Calibrate the quantisation on images prepared as here, or keep more bits."
    return Finding(NAME, "warn", message, "medium", fix)


def faults(
    classifier: Classifier, reference: Classifier, pictures: Sequence[np.ndarray]
) -> Iterator[tuple[str, Forward]]:
    """The reference's logits under each usual fault, by its name."""
    x = stack(reference, pictures)
    mean, std, net = reference.mean, reference.std, reference
    inputs: dict[str, Images] = {
        "no normalisation": x * std + mean,  # so that the network sees x
        "the mean left out": x + mean,
        "the standard deviation left out": (x - mean) * std + mean,
        "normalisation applied twice": (x - mean) / std,
        "pixels of 0 … 255 in place of 0 … 1": 255 * x,
        "pixels divided by 255 twice": x / 255,
        "a normalised input clipped to [0, 1]": ((x - mean) / std).clamp(0, 1) * std + mean,
        "a normalised input clipped to [−1, 1]": ((x - mean) / std).clamp(-1, 1) * std + mean,
    }
    for k in range(1, 7):  # an input scale calibrated on darker pictures saturates above it
        inputs[f"{CLIPPED} (pixels above {2.0**-k:.2g} clipped)"] = x.clamp(max=2.0**-k)
    if x.shape[1] == 3:
        inputs["channels in BGR order"] = x.flip(1)
        inputs["mean and std in BGR order"] = (x - mean.flip(1)) / std.flip(1) * std + mean
        inputs["grey pictures"] = x.mean(1, keepdim=True).expand_as(x)
        for name, (other_mean, other_std) in STATISTICS.items():
            m = torch.tensor(other_mean, device=x.device).view(1, 3, 1, 1)
            s = torch.tensor(other_std, device=x.device).view(1, 3, 1, 1)
            if not (torch.allclose(m, mean, atol=1e-3) and torch.allclose(s, std, atol=1e-3)):
                inputs[f"mean and std of {name}"] = (x - m) / s * std + mean
    for name, changed in inputs.items():
        yield name, lambda changed=changed: _logits(net, changed)  # type: ignore[misc]
    for name, preprocess in _preparations(classifier.preprocess, reference.preprocess):
        yield name, lambda p=preprocess: _logits(net, _prepared(reference, pictures, p))  # type: ignore[misc]


def _preparations(own: Preprocess, right: Preprocess) -> Iterator[tuple[str, Preprocess]]:
    """Other ways to prepare a picture at the reference's size."""
    if own != right and own.size == right.size:
        yield f"pictures prepared by {_words(own)} in place of {_words(right)}", own
    others: list[Preprocess] = [
        replace(right, interpolation=kind)
        for kind in get_args(Interpolation)
        if kind != right.interpolation
    ]
    others += [replace(right, crop=crop) for crop in (None, 1.0, 0.875) if crop != right.crop]
    for other in others:
        yield f"pictures prepared by {_words(other)} in place of {_words(right)}", other


def _words(preprocess: Preprocess) -> str:
    crop = "the whole picture squashed" if preprocess.crop is None else f"crop {preprocess.crop:g}"
    return f"{preprocess.interpolation}, {crop}"


def _prepared(
    reference: Classifier, pictures: Sequence[np.ndarray], preprocess: Preprocess
) -> Images:
    other = Classifier(
        reference.net, reference.classes, reference.mean.flatten().tolist(),
        reference.std.flatten().tolist(), preprocess=preprocess,
    )  # fmt: skip
    return stack(other.to(reference.mean.device), pictures)


def _logits(classifier: Classifier, x: Tensor) -> Logits:
    return torch.cat([classifier(x[i : i + BATCH]).float().cpu() for i in range(0, len(x), BATCH)])
