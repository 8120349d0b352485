"""Object masks of a set, given, by a generator's attention, or by a CAM.

Given masks are the best. A generator's attention to the class word knows nothing of the classifier.
The classifier's own class map is a last resort: a model that looks at the background marks the
background as the object, so with it only features that differ from the class's own are detected.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from counterlens import images as pictures
from counterlens.ball import mix
from counterlens.classifier import Classifier
from counterlens.data.masks import ReadMask, open_masks, own_masks
from counterlens.data.synthetic import captions
from counterlens.errors import InputError
from counterlens.explanations.cam import class_cam
from counterlens.explanations.counterfactuals.attention_masks import attention_masks
from counterlens.explanations.counterfactuals.masks import resized
from counterlens.generators.diffusion.cutouts import seen
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.metrics.saliency import MaskBatch
from counterlens.runs import user_path
from counterlens.types import Images, Labels
from counterlens.workflows._shared.session import Log
from counterlens.workflows.neurons.data import KnownFeatures
from counterlens.workflows.neurons.scan import pixels

LEAST, MOST = 0.01, 0.95
"""An object of less or more of the picture has vanished, or leaves no background."""
PART = 64
Find = Callable[[Images, Labels], Bool[Tensor, "b h w"]]
"""From images and their classes to masks."""


@dataclass(frozen=True)
class ObjectMasks:
    """Masks of a set at the classifier's size.

    Args:
        masks: one per picture.
        usable: which show an object and a background.
        origin: how they were computed, for the report.
        independent: of the classifier that is looked into.
    """

    masks: MaskBatch
    usable: Bool[Tensor, "n"]
    origin: str
    independent: bool = True


def find_masks(
    classifier: Classifier,
    known: KnownFeatures,
    data: object,
    spec: str | None,
    *,
    attention: Callable[[], Find],
    generator: bool,
    log: Log,
) -> ObjectMasks:
    """Masks of a spec; without one the best there are.

    Args:
        spec: FOLDER, key:NAME, attention, cam; None: the set's own, else attention where there is
            a generator, else cam.
        attention: opens the generator.
        generator: whether one was named, or the shipped one fits the classifier.
    """
    source = data if isinstance(data, str) else "data"
    own = own_masks(source, known.images, border=True) if spec is None else None
    if spec is None and own is None:
        spec = "attention" if generator else "cam"
    if own is not None:
        masks, origin = _given(classifier, known, own[1]), f"the set's own (key:{own[0]})"
    elif spec == "attention":
        masks = _computed(classifier, known, attention(), log)
        origin = "a generator's attention to the class word"
    elif spec == "cam":
        masks = _computed(classifier, known, lambda x, y: _class_map(classifier, x, y), log)
        origin = "the classifier's own class map above half its maximum: no independent mask"
    elif spec is not None and not (spec.startswith("key:") or user_path(spec).is_dir()):
        raise InputError(
            f"masks are {spec!r}, expected a folder of pictures, key:NAME, attention or cam."
        )
    else:
        assert spec is not None
        masks, origin = (
            _given(classifier, known, open_masks(spec, source, known.images, border=True)),
            spec,
        )
    area = masks.flatten(1).float().mean(1)
    usable = (area >= LEAST) & (area <= MOST)
    log(f"masks: {origin}; {int(usable.sum())} of {len(masks)} show an object and a background")
    if not usable.any():
        raise InputError(
            f"none of the {len(masks)} masks ({origin}) shows an object and a background: all are "
            "missing, empty or full. Check mask=SPEC."
        )
    return ObjectMasks(masks, usable, origin, independent=spec != "cam")


def by_attention(model: LatentDiffusion, classifier: Classifier, seed: int) -> Find:
    """Masks by a generator's attention to the word of each image's class."""

    def find(x: Images, classes: Labels) -> torch.Tensor:
        words = [captions.word(classifier.classes[int(k)]) for k in classes]
        prompts = [captions.prompt(word) for word in words]
        seeds = mix(torch.arange(len(x)), seed)
        small = seen(x.to(model.device), model.side)
        soft = attention_masks(model, small, prompts, words, seeds=seeds)
        return resized(soft, classifier.preprocess.size)[:, 0] > 0.5

    return find


def _given(classifier: Classifier, known: KnownFeatures, read: ReadMask) -> MaskBatch:
    height, width = classifier.preprocess.size
    masks = torch.zeros(len(known.images), height, width, dtype=torch.bool)
    fit = replace(classifier.preprocess, interpolation="nearest")
    checked = False
    for i in range(len(known.images)):
        mask = read(i)
        if mask is None:
            continue
        if not checked:
            _same_shape(known.images.read(i).shape[:2], mask.shape, str(known.images.ids[i]))
            checked = True
        white = np.repeat((mask * np.uint8(255))[..., None], 3, axis=2)
        masks[i] = torch.from_numpy(pictures.prepare(white, fit)[0] >= 128)
    return masks


def _same_shape(picture: tuple[int, ...], mask: tuple[int, ...], name: str) -> None:
    if abs(picture[0] * mask[1] - picture[1] * mask[0]) > 0.03 * picture[0] * mask[1]:
        raise InputError(
            f"the mask of {name} has {mask[1]} × {mask[0]} pixels, the picture "
            f"{picture[1]} × {picture[0]}: expected the same shape."
        )


def _computed(classifier: Classifier, known: KnownFeatures, find: Find, log: Log) -> MaskBatch:
    parts = []
    for at in range(0, len(known.images), PART):
        rows = range(at, min(at + PART, len(known.images)))
        x = pixels(classifier, known.images, rows)
        parts.append(find(x, known.classes[at : at + PART]).cpu())
        if at and at % (8 * PART) == 0:
            log(f"  masks of {at} of {len(known.images)}")
    return torch.cat(parts)


def _class_map(classifier: Classifier, x: Images, target: Labels) -> Bool[Tensor, "b h w"]:
    return class_cam(classifier, x, target, method="hires-cam").picture > 0.5
