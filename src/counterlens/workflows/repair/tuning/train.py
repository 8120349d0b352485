"""Train a copy of the network further on the fitting half.

Paper: Liu et al. 2021 (jtt2021); Sagawa et al. 2020 (groupdro2020).
Differs: the mistakes of JTT are those of the model as it is, in one clean pass; where it makes too
       few, those images that it is least sure of weigh more in their place. Group DRO draws all
       groups alike often and ends after a few epochs, which stands for the early stop of the paper.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn

from counterlens.classifier import Classifier
from counterlens.data.augment import augment
from counterlens.errors import InputError
from counterlens.fit import Plan, Trainable, fit
from counterlens.images import ImageSet, Pixels, prepared
from counterlens.losses.groups import GroupDRO, weighted_terms
from counterlens.losses.pairs import pair_terms
from counterlens.types import Batch, Loss
from counterlens.workflows.repair.edits.made import Edited
from counterlens.workflows.repair.groups import LEAST, Codes, Grouped
from counterlens.workflows.repair.pairs import NO_EDIT
from counterlens.workflows.repair.tuning.recipes import Tuning
from counterlens.workflows.train.finetune import FEW, hold_norms
from counterlens.workflows.train.finetune_data import decode
from counterlens.workflows.train.plan import attacks, bind

UPWEIGHT = 5.0
"""λ of JTT + 1: what a mistake weighs. The papers search 4 to 100 with groups to choose by."""


@dataclass(frozen=True)
class TuningImages:
    """What a fine-tuning sees.

    Args:
        x: images of the fitting half as bytes, at the size of the network.
        by: their classes and groups.
        wrong: which of them the model gets wrong.
        outside: out-distribution images as bytes; None where none were given.
        versions: edited images; None where no edit was named.
    """

    x: Tensor
    by: Grouped
    wrong: np.ndarray
    outside: Tensor | None = None
    versions: "Versions | None" = None


@dataclass(frozen=True)
class Versions:
    """Edited versions of some of the images.

    Args:
        of: the place of each one's original among the images.
        x: as bytes; `unrelated`: after an edit that has nothing to do with the shortcut.
        y: their classes; `own`: those of their originals.
    """

    of: Codes
    x: Tensor
    unrelated: Tensor
    y: Codes
    own: Codes

    def placebo(self) -> "Versions":
        """The unrelated edits in place of the others."""
        return replace(self, x=self.unrelated, y=self.own)


def images_of(
    classifier: Classifier,
    images: ImageSet,
    rows: Codes,
    by: Grouped,
    wrong: np.ndarray,
    out: ImageSet | None,
    edit: Edited | None = None,
) -> TuningImages:
    """Decode the fitting half, its edits and the out-distribution images, once for all recipes."""
    fit_on, channels = classifier.preprocess, classifier.channels
    x = decode(images, torch.from_numpy(rows), fit_on, channels)
    outside = None
    if out is not None:
        outside = decode(out, torch.arange(len(out)), fit_on, channels)
    versions = None if edit is None else _versions(classifier, rows, by, edit)
    return TuningImages(x, by.take(rows), wrong, outside, versions)


def _versions(classifier: Classifier, rows: Codes, by: Grouped, edit: Edited) -> Versions:
    place = {row: i for i, row in enumerate(rows.tolist())}
    fit_on, channels, count = classifier.preprocess, classifier.channels, len(edit.rows)

    def decoded(read: Callable[[int], Pixels]) -> Tensor:
        planes = [prepared(read, j, fit_on, channels=channels) for j in range(count)]
        return torch.from_numpy(np.stack(planes))

    of = np.array([place[row] for row in edit.rows.tolist()], dtype=np.int64)
    return Versions(
        of, decoded(edit.read), decoded(edit.unrelated), edit.labels_in(by), by.labels[edit.rows]
    )


def tune(
    classifier: Classifier,
    one: Tuning,
    data: TuningImages,
    folder: Path,
    *,
    seed: int,
    log: Callable[[str], None],
) -> Classifier:
    """A copy of the classifier, trained further; the classifier itself is not changed.

    Args:
        folder: where the checkpoint lies while it trains.
    """
    recipe, count = one.recipe, len(data.x)
    if recipe.batch > count:
        raise InputError(f"{one.name}: batch is {recipe.batch} and {count} images are to fit on.")
    net = copy.deepcopy(classifier)
    for weight in net.parameters():
        weight.requires_grad_(weight.is_floating_point())
    per_epoch = count // recipe.batch
    steps = max(1, round(recipe.epochs * per_epoch))
    generator = torch.Generator(net.mean.device)
    loss = _held(_loss(one, data, steps, generator), count < FEW and not one.moving)
    optimizer = torch.optim.SGD(
        net.parameters(), lr=recipe.lr, momentum=recipe.momentum, nesterov=recipe.momentum > 0,
        weight_decay=recipe.weight_decay,
    )  # fmt: skip
    plan = Plan(steps=steps, per_epoch=per_epoch, seed=seed, schedule=recipe.schedule)  # type: ignore[arg-type]
    log(f"{one.name}: {steps} updates of {recipe.batch} images")
    fit(
        Trainable(net, loss, optimizer),
        batches(net, one, data, seed, generator),
        plan=plan, folder=folder, generator=generator, log=log,
    )  # fmt: skip
    net.name = f"{classifier.name}-{one.name.partition(':')[2]}"
    return net.eval().requires_grad_(False)


def _loss(one: Tuning, data: TuningImages, steps: int, generator: torch.Generator) -> Loss:
    if one.kind == "jtt":
        return weighted_terms
    if one.kind == "group-dro":
        return GroupDRO(len(np.unique(data.by.groups)))
    if one.kind == "pairs":
        return pair_terms
    return bind(one.recipe, attacks(one.recipe, steps), generator)


def _held(loss: Loss, few: bool) -> Loss:
    """The loss with batch norm keeping its statistics where images are few."""

    def held(net: nn.Module, batch: Batch, step: int) -> dict[str, Tensor]:
        if few:
            hold_norms(net)
        return loss(net, batch, step)

    return held


def batches(
    net: Classifier, one: Tuning, data: TuningImages, seed: int, generator: torch.Generator
) -> Callable[[int], Batch]:
    """The batch of an update: images, classes, and what the loss needs beside them."""
    device, size, recipe = net.mean.device, one.recipe.batch, one.recipe
    per_epoch = max(1, len(data.x) // size)
    labels = torch.from_numpy(data.by.labels)
    _, place = np.unique(data.by.groups, return_inverse=True)
    groups = torch.from_numpy(place.astype(np.int64))
    versions = _partners(one, data)
    weights = torch.from_numpy(upweighted(data.wrong)).float() if one.kind == "jtt" else None
    shares = 1 / torch.bincount(groups).double()[groups] if one.kind == "group-dro" else None

    def rows_of(step: int) -> Tensor:
        epoch, part = divmod(step, per_epoch)
        source = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        if shares is None:
            order = torch.randperm(len(data.x), generator=source)
        else:  # all groups alike often
            order = torch.multinomial(shares, len(data.x), replacement=True, generator=source)
        return order[part * size : (part + 1) * size]

    def pixels(whole: Tensor, rows: Tensor) -> Tensor:
        x = whole[rows].to(device)
        return augment(recipe.augment, x, generator, fill=recipe.fill, size=recipe.size)

    def batch(step: int) -> Batch:
        rows = rows_of(step)
        out = {"x": pixels(data.x, rows), "y": labels[rows].to(device)}
        out["group"] = groups[rows].to(device)
        if weights is not None:
            out["weight"] = weights[rows].to(device)
        if data.outside is not None:
            source = torch.Generator().manual_seed(seed * 1_000_003 + step + 7)
            drawn = torch.randint(len(data.outside), (recipe.out_batch or size,), generator=source)
            out["out"] = pixels(data.outside, drawn)
        if versions is not None:
            of, drawn = versions(rows, seed * 1_000_003 + step + 13)
            assert data.versions is not None
            out |= {"of": of.to(device), "version": pixels(data.versions.x, drawn)}
            out["version_y"] = torch.from_numpy(data.versions.y)[drawn].to(device)
        return out

    return batch


def _partners(
    one: Tuning, data: TuningImages
) -> Callable[[Tensor, int], tuple[Tensor, Tensor]] | None:
    """From the rows of a batch to those of its images that have versions, and one of each."""
    if one.kind != "pairs":
        return None
    if data.versions is None:
        raise InputError(f"recipe:{NO_EDIT}")
    known: dict[int, list[int]] = {}
    for j, row in enumerate(data.versions.of.tolist()):
        known.setdefault(row, []).append(j)

    def partners(rows: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng(seed)
        some = [(k, known[row]) for k, row in enumerate(rows.tolist()) if row in known]
        drawn = [(k, own[int(rng.integers(len(own)))]) for k, own in some]
        both = torch.tensor(drawn, dtype=torch.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    return partners


def upweighted(wrong: np.ndarray) -> np.ndarray:
    """What each image weighs, 1 on average, mistakes `UPWEIGHT` times as much as others.

    >>> upweighted(np.array([True, False, False, False])).tolist()
    [2.5, 0.5, 0.5, 0.5]
    """
    if wrong.sum() < LEAST and len(wrong) > LEAST:
        raise InputError(
            f"recipe:jtt needs {LEAST} fit images that the model gets wrong, and there are "
            f"{int(wrong.sum())}: give more images to fix on, or leave recipe:jtt out."
        )
    share = np.where(wrong, UPWEIGHT, 1.0)
    scaled: np.ndarray = share * len(share) / share.sum()
    return scaled


def shuffled_within(by: Grouped, flags: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """As many flags in each class, on images drawn at random."""
    out = flags.copy()
    for label in np.unique(by.labels):
        rows: Int64[np.ndarray, "m"] = np.flatnonzero(by.labels == label)
        out[rows] = flags[rng.permutation(rows)]
    return out
