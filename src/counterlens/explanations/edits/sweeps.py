"""All colour and frame edits of many images: which change the answer, and how often."""

from collections.abc import Callable, Sequence

import torch

from counterlens.classifier import Classifier
from counterlens.explanations.counterfactuals.pixel import rows_that_fit, temperature_of
from counterlens.explanations.edits.colour import colour_variants
from counterlens.explanations.edits.frame import frame_variants
from counterlens.explanations.edits.variants import EditVariant, Flips, flip_numbers, flips
from counterlens.images import ImageSet, prepare
from counterlens.runs import Number
from counterlens.search import frozen
from counterlens.types import Images

SWEEPS: dict[str, tuple[str, Callable[[], tuple[EditVariant, ...]]]] = {
    "bias.colour": ("hue, saturation, grey, channel order", colour_variants),
    "bias.frame": ("shifts, scales, crops", frame_variants),
}


def edit_numbers(
    classifier: Classifier, images: ImageSet, *, points: int = 500
) -> dict[str, Number]:
    """Flip rates over the first images of a set, for an audit.

    `bias.colour_flip`, `bias.frame_flip` and their families; a grey model has no colours to edit.
    """
    rows = range(min(points, len(images)))
    ready = [
        prepare(images.read(i), classifier.preprocess, channels=classifier.channels) for i in rows
    ]
    x = torch.stack([torch.from_numpy(one) for one in ready]).float() / 255
    numbers: dict[str, Number] = {}
    for key, (what, variants) in SWEEPS.items():
        if key != "bias.colour" or classifier.channels == 3:
            numbers |= flip_numbers(all_flips(classifier, x, variants()), key, what)
    return numbers


def all_flips(classifier: Classifier, x: Images, variants: Sequence[EditVariant]) -> Flips:
    """The flips of many images, batch by batch."""
    device, temperature = classifier.mean.device, temperature_of(classifier)
    with frozen(classifier):
        return Flips.join(
            [
                flips(classifier, part.to(device), variants, temperature=temperature)
                for part in torch.split(x, rows_that_fit(x, device))
            ]
        )
