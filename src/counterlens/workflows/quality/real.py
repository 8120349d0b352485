"""Real images beside counterfactuals: how close are they to the class that they claim to show?"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import normalize

from counterlens.classifier import Classifier
from counterlens.data import open_set, subset
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals.targets import class_named
from counterlens.metrics.generation import nearest
from counterlens.types import Images, Labels
from counterlens.workflows._shared.features import features_of
from counterlens.workflows.train.datasets import decoded

LEAST = 40
"""Fewer real images of the target classes are no estimate of a distribution."""


@dataclass(frozen=True)
class Real:
    """Real images of the classes, in pixels and in the features of a classifier.

    Args:
        judge: whose features; it should have taken no part.
        pixels, labels: the images, none of which is explained; classes of the explained model.
        seen: features of each.
        reference: features of one real image per row, of the row's target, none twice.
        how: in words.
    """

    judge: Classifier
    pixels: UInt8[Tensor, "m c h w"]
    labels: Labels
    seen: Float[Tensor, "m d"]
    reference: Float[Tensor, "r d"]
    how: str

    def features(self, x: Images) -> Float[Tensor, "n d"]:
        """Features of any images."""
        return features_of(self.judge, x)

    def nearest(
        self, z: Images, phi: Float[Tensor, "n d"], target: Labels
    ) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
        """To the nearest real image of the target: cosine distance of features, l2 of pixels."""
        cosine, l2 = torch.full((2, len(z)), torch.nan).unbind(0)
        for k in set(target.tolist()):
            mine, theirs = target == k, self.labels == k
            if theirs.any():
                alike = normalize(phi[mine], dim=1) @ normalize(self.seen[theirs], dim=1).T
                cosine[mine] = 1 - alike.max(1).values
                l2[mine] = nearest(z[mine], self.pixels[theirs].float() / 255)[0]
        return cosine, l2


def open_real(
    spec: str,
    classifier: Classifier,
    judge: Classifier,
    *,
    target: Labels,
    taken: Sequence[str],
    seed: int = 0,
) -> Real:
    """Real labelled images as the classifier sees them, without those that are explained.

    Args:
        target: the class of each row.
        taken: ids of the pictures that are explained.
    """
    whole = open_set(spec)
    names = {k: class_named(classifier.classes, name) for k, name in enumerate(whole.classes)}
    wanted, avoid = set(target.tolist()), set(taken)
    rows = [
        i
        for i, k in enumerate(whole.labels.tolist())
        if names.get(k, -1) in wanted and whole.ids[i] not in avoid
    ]
    if len(rows) < LEAST:
        raise InputError(
            f"{whole.name} has {len(rows)} other images of the target classes, expected {LEAST} "
            "or more. Name a larger labelled set: real=SPEC."
        )
    pixels = decoded(subset(whole, rows), classifier.preprocess, cache=None)
    labels = torch.tensor([names[int(whole.labels[i])] for i in rows])
    phi = features_of(judge, pixels)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    chosen = []
    for k in sorted(wanted):
        here = order[labels[order] == k]
        chosen.append(here[: int((target == k).sum())])
    picked = torch.cat(chosen)
    picked = picked[torch.randperm(len(picked), generator=torch.Generator().manual_seed(seed))]
    how = f"features of {judge.name}, {len(rows)} images of {whole.name} that are not explained"
    return Real(judge, pixels, labels, phi, phi[picked], how)
