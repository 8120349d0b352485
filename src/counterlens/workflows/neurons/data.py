"""A set as the last layer of a classifier sees it: features, logits, labels."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.classifier import Classifier
from counterlens.data import open_set
from counterlens.data.sources.objects import as_image_set
from counterlens.errors import InputError
from counterlens.explanations.features.directions import logits_of
from counterlens.images import ImageSet, fitting_size
from counterlens.label_spaces import match_classes
from counterlens.types import Labels
from counterlens.workflows._shared.session import Log
from counterlens.workflows.neurons.scan import activations, pixels

PART = 128


@dataclass(frozen=True)
class KnownFeatures:
    """A set as the last layer of a classifier sees it.

    Args:
        images: the pictures.
        features: what enters the last layer, one row per picture.
        logits: what leaves it.
        labels: as the classifier numbers them; −1 where unknown to it or to the set.
    """

    images: ImageSet
    features: Float[Tensor, "n d"]
    logits: Float[Tensor, "n k"]
    labels: Labels

    @property
    def answers(self) -> Labels:
        """The class each picture is taken for."""
        return self.logits.argmax(1)

    @property
    def classes(self) -> Labels:
        """The label of each picture where known, else the answer."""
        return torch.where(self.labels >= 0, self.labels, self.answers)


def read_known(
    classifier: Classifier, data: object, *, limit: int | None, seed: int, log: Log
) -> KnownFeatures:
    """Open a set and pass once over it."""
    size = fitting_size(classifier.preprocess)
    images = (
        open_set(data, limit=limit, seed=seed, size=size, channels=classifier.channels)
        if isinstance(data, str)
        else as_image_set(data, limit=limit, seed=seed)
    )
    if not len(images):
        raise InputError(f"{images.name} holds no pictures.")
    log(f"features of {len(images)} images of {images.name}")
    n = len(images)
    parts = [range(at, min(at + PART, n)) for at in range(0, n, PART)]
    phi = torch.cat([activations(classifier, pixels(classifier, images, p)) for p in parts])
    return KnownFeatures(images, phi, logits_of(classifier, phi), labels_of(classifier, images))


def labels_of(classifier: Classifier, images: ImageSet) -> Labels:
    """Labels in the classifier's numbering; −1 where it does not know the class."""
    if not len(images.classes):
        return torch.full((len(images),), -1)
    try:
        places = match_classes(classifier.classes, images.classes, least=0).position
    except InputError:
        places = (-1,) * len(images.classes)
    table = np.array([*places, -1], dtype=np.int64)
    return torch.from_numpy(table[np.asarray(images.labels)])
