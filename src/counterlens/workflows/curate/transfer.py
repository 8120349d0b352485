"""The transfer check: do images mined with some models also fool models that had no part in it?

Paper: Hendrycks et al. 2021, Natural Adversarial Examples (section 5: ResNet-50 filters, many
    other architectures fall).
Differs: each held-out model is judged on the frozen images and, image by image, on another random
    image of the same class from the unfiltered pool, so that the fall is not one of the classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from counterlens import metrics
from counterlens.classifier import Classifier
from counterlens.data import subset
from counterlens.errors import InputError
from counterlens.images import ImageSet
from counterlens.metrics.intervals.bootstrap import aupr_interval
from counterlens.metrics.intervals.closed_form import newcombe_paired
from counterlens.metrics.numbers import pair_counts
from counterlens.models import load
from counterlens.predictions import predict
from counterlens.runs import Number
from counterlens.scale import Columns, ShardWork
from counterlens.types import Flags, Logits

RATIO = 0.2  # unknown images per known one: chance is 1 / 6


@dataclass(frozen=True)
class TransferTarget:
    """What a transfer check is made on.

    Args:
        pool: readable images of the pool, with labels as columns of `classes`.
        chosen: rows of the pool that were frozen.
        classes: of the curated set.
    """

    pool: ImageSet
    chosen: np.ndarray
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Answering:
    """Everything a worker needs to give logits of rows of a set; pickles as paths and names.

    Args:
        images: the set.
        model: spec of the model.
        columns: its outputs that stand for the curated classes, in their order.
        device: where it runs.
        trust_remote_code: allow the model to run code of its own.
    """

    images: ImageSet
    model: str
    columns: tuple[int, ...]
    device: str = "auto"
    trust_remote_code: bool = False

    def __call__(self) -> ShardWork:
        """Load the model."""
        trust = self.trust_remote_code
        return self.using(load(self.model, device=self.device, trust_remote_code=trust))

    def using(self, classifier: Classifier) -> ShardWork:
        """Answer with a model that is loaded already."""

        def work(start: int, stop: int) -> Columns:
            part = subset(self.images, np.arange(start, stop))
            predicted = predict(classifier, part, progress=False)
            return {"logits": metrics.restrict(predicted.logits, self.columns).numpy()}

        return work


def partners(labels: np.ndarray, chosen: np.ndarray, seed: int) -> np.ndarray:
    """For each chosen row another random row of its class; −1 where the class has no other."""
    rng = np.random.default_rng(seed)
    out = np.full(len(chosen), -1, np.int64)
    for place, row in enumerate(chosen.tolist()):
        others = np.flatnonzero(labels == labels[row])
        others = others[others != row]
        if len(others):
            out[place] = rng.choice(others)
    return out


def adversarial_numbers(
    key: str, logits: Logits, target: TransferTarget, *, seed: int
) -> dict[str, Number]:
    """Accuracy on the frozen images, on the pool, and the paired fall between the two."""
    labels = torch.from_numpy(target.pool.labels)
    right: Flags = logits.argmax(1) == labels
    chosen = torch.from_numpy(target.chosen)
    text = f"usual view; arg-max over {len(target.classes)} classes"
    out = {
        f"{key}.pool": metrics.share(right, f"accuracy on the unfiltered pool; {text}"),
        f"{key}.set": metrics.share(right[chosen], f"accuracy on the frozen set; {text}"),
    }
    other = partners(target.pool.labels, target.chosen, seed)
    paired = np.flatnonzero(other >= 0)
    protocol = (
        f"accuracy on the frozen image less that on another random image of its class; "
        f"{len(paired)} of {len(chosen)} images have one in the pool; Newcombe paired interval"
    )
    if not len(paired):
        out[f"{key}.fall"] = Number.missing("no class has two images", protocol)
        return out
    ours = right[chosen[paired]]
    theirs = right[torch.from_numpy(other[paired])]
    out[f"{key}.matched"] = metrics.share(
        theirs, f"accuracy on class-matched random images of the pool; {text}"
    )
    out[f"{key}.set_matched"] = metrics.share(
        ours, f"accuracy on the frozen images that have such a partner; {text}"
    )
    gap = (ours.double() - theirs.double()).mean().item()
    ends = newcombe_paired(*pair_counts(ours, theirs))
    out[f"{key}.fall"] = Number(gap, len(paired), *ends, protocol)
    measured = metrics.classification_numbers(
        logits[chosen], labels[chosen], protocol=text, seed=seed
    )
    out |= {
        f"{key}.{name.rpartition('.')[2]}": measured[name]
        for name in ("calibration.rms", "calibration.rms_paper", "selective.aurra")
        if name in measured
    }
    return out


def ood_numbers(
    key: str, inside: Logits, logits: Logits, chosen: np.ndarray, *, seed: int
) -> dict[str, Number]:
    """AUPR at one unknown to five known images, for the whole pool and for what was mined."""
    known = metrics.answers(inside).score
    out = {}
    for name, rows in (("pool", np.arange(len(logits))), ("set", chosen)):
        unknown = metrics.answers(logits[torch.from_numpy(rows)]).score
        value = metrics.aupr(known, unknown, ratio=RATIO)
        low, high = aupr_interval(known.numpy(), unknown.numpy(), value, ratio=RATIO, seed=seed)
        text = (
            f"AUPR, unknown positive, at 1 unknown to 5 known images (chance 0.1667); "
            f"{len(known)} known, {len(unknown)} unknown; BCa bootstrap"
        )
        out[f"{key}.aupr_{name}"] = Number(value, len(unknown), low, high, text)
    return out


def readable(pool: ImageSet, table: Sequence[dict[str, object]], labelled: bool) -> ImageSet:
    """The part of a pool that the funnel could have chosen from."""
    gone = {"readable", "known class"} if labelled else {"readable", "foreign class"}
    rows = [i for i, row in enumerate(table) if row["dropped_by"] not in gone]
    if len(table) != len(pool):
        raise InputError(f"the pool has {len(pool)} images now and had {len(table)} when mined.")
    return subset(pool, rows)
