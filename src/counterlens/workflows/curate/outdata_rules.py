"""The rules by which a picture leaves a pool: its class name, or features like the data's."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float32

from counterlens.classifier import Classifier
from counterlens.images import ImageSet, prepared
from counterlens.label_spaces.overlap import overlaps
from counterlens.models.parts import features
from counterlens.predictions import batch_size, eval_mode
from counterlens.screen.duplicates import nearest

COPY, NAMED, ALIKE, ALIKE_CLASS = "copy", "class name", "looks like", "class looks like"
REASONS = (COPY, NAMED, ALIKE_CLASS, ALIKE)
TYPICAL = 0.5
_SHARE, _FEWEST = 0.5, 10  # of a pool's class that looks like the data: then all of it goes
_PROBED = 2000

Embeddings = Float32[np.ndarray, "n d"]


@dataclass(frozen=True, slots=True)
class Removal:
    """Why a picture of the pool goes.

    Args:
        reason: one of `REASONS`.
        own: the picture of the data it is near to, where there is one.
        detail: in words.
        order: the smaller, the clearer the case.
    """

    reason: str
    own: int | None
    detail: str
    order: float = 0.0


def by_name(
    own: ImageSet, others: ImageSet, drop: Sequence[str] = (), keep: Sequence[str] = ()
) -> dict[int, Removal]:
    """Pictures of the pool whose class name says that they show a class of the data."""
    why = {
        o.other: f"{own.classes[o.own]} by {o.how}" for o in overlaps(own.classes, others.classes)
    }
    why |= {others.classes.index(name): "named by you" for name in drop}
    why = {k: text for k, text in why.items() if others.classes[k] not in keep}
    return {
        i: Removal(NAMED, None, why[k]) for i, k in enumerate(others.labels.tolist()) if k in why
    }


@torch.no_grad()
def embed(classifier: Classifier, some: ImageSet) -> Embeddings:
    """What enters the last layer, for every picture of a set."""
    size = batch_size("auto", classifier.preprocess, classifier.mean.device, len(some))
    parts = []
    with eval_mode(classifier):
        for start in range(0, len(some), size):
            rows = range(start, min(start + size, len(some)))
            planes = [
                prepared(some.read, i, classifier.preprocess, channels=classifier.channels)
                for i in rows
            ]
            x = torch.from_numpy(np.stack(planes)).to(classifier.mean.device).float() / 255
            parts.append(features(classifier, x).float().cpu().numpy())
    return np.concatenate(parts)


def alike(
    own: ImageSet,
    others: ImageSet,
    own_embedded: Embeddings,
    embedded: Embeddings,
    *,
    typical: float = TYPICAL,
    keep: Sequence[str] = (),
) -> dict[int, Removal]:
    """Pictures that lie as near to the data as its own pictures lie to each other.

    A class of the pool of which half the pictures do so goes as a whole. Both sets are centred
    on the mean of the data, and the scale is the data's own: the cosine that a share of
    `typical` of its pictures reaches with its nearest neighbour.
    """
    middle = own_embedded.mean(0)
    inside, outside = own_embedded - middle, embedded - middle
    between = _own_cosines(inside)
    limit = float(np.quantile(between, 1 - typical))
    place, cosine = nearest(outside, inside)
    close = cosine >= limit
    exempt = {others.classes.index(name) for name in keep}
    labels = others.labels.tolist()
    removals = {}
    whole = _whole_classes(labels, close, [int(own.labels[p]) for p in place])
    for i, k in enumerate(labels):
        if k in exempt:
            continue
        name = own.classes[own.labels[place[i]]]
        if k in whole:
            share, shown = whole[k]
            detail = f"{own.classes[shown]}: {share:.0%} of the class looks like it"
            removals[i] = Removal(ALIKE_CLASS, int(place[i]), detail, -float(cosine[i]))
        elif close[i]:
            detail = f"{name}: picture at cosine {cosine[i]:.3f}, limit {limit:.3f}"
            removals[i] = Removal(ALIKE, int(place[i]), detail, -float(cosine[i]))
    return removals


def _own_cosines(rows: Embeddings) -> Float32[np.ndarray, "_"]:
    """Cosine of pictures of the data, or of some of many, with their nearest neighbour."""
    step = len(rows) // _PROBED
    if step < 2:
        return nearest(rows, rows, apart=True)[1]
    probed = np.zeros(len(rows), dtype=bool)
    probed[::step] = True
    return nearest(rows[probed], rows[~probed])[1]


def _whole_classes(
    labels: Sequence[int], close: Bool[np.ndarray, "n"], shown: Sequence[int]
) -> dict[int, tuple[float, int]]:
    """Classes of the pool of which most pictures look like the data: share, and like what."""
    votes: dict[int, Counter[int]] = {}
    for label, near, like in zip(labels, close.tolist(), shown, strict=True):
        if near and label >= 0:
            votes.setdefault(label, Counter())[like] += 1
    members = Counter(labels)
    return {
        k: (vote.total() / members[k], vote.most_common(1)[0][0])
        for k, vote in votes.items()
        if members[k] >= _FEWEST and vote.total() >= _SHARE * members[k]
    }
