"""Where groups come from: a column, masks, a shortcut or slices that were found, tags, or none."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import torch

from counterlens.classifier import Classifier
from counterlens.data.sets import subset
from counterlens.data.sources.slices import slices_by_id
from counterlens.errors import InputError, nearest
from counterlens.explanations.features.directions import Direction, logits_of, unit_direction
from counterlens.images import ImageSet
from counterlens.models.weights import weights_hash
from counterlens.review.store import Store, store_path
from counterlens.runs import Run, user_path
from counterlens.workflows.neurons.data import read_known
from counterlens.workflows.neurons.npca import components
from counterlens.workflows.repair.data import Data, Opened, on_backgrounds
from counterlens.workflows.repair.features import Features
from counterlens.workflows.repair.groups import (
    LEAST,
    Grouped,
    column_texts,
    grouped_pair,
)

KINDS = ("column", "masks", "shortcut", "tags", "slices", "none")
FORMS = "column:NAME, masks:SPEC, shortcut:RUN, tags:RUN, slices:RUN[,RUN] or none"
NO_TAG = "no tag"
Passes = Callable[[int], Features]
"""Features of the fix images (0) or of the check images (1)."""


def parse_source(text: str) -> tuple[str, str]:
    """Kind and rest of the groups' source.

    >>> parse_source("column:place"), parse_source("none")
    (('column', 'place'), ('none', ''))
    """
    kind, colon, rest = text.partition(":")
    if kind not in KINDS or (kind == "none") == bool(rest) or (kind == "none" and colon):
        near = nearest(kind, KINDS)
        hint = f" Did you mean {near}:…?" if near and near != kind and colon else ""
        hint = hint or ("" if colon else f" For a column of the manifests: column:{text}.")
        raise InputError(f"groups is {text!r}, expected {FORMS}.{hint}")
    return kind, rest


def grouped(opened: Opened, source: str, classifier: Classifier, passes: Passes) -> Data:
    """The two sets with the groups that a source names.

    Args:
        opened: the sets, split.
        source: KIND:REST, see FORMS.
        classifier: the model.
        passes: features, for sources that look at them.
    """
    kind, rest = parse_source(source)
    if kind == "masks":
        return on_backgrounds(opened, rest)
    if kind == "column":
        texts = tuple(column_texts(images, rest) for images in opened.sets)
        return _by_texts(opened, (texts[0], texts[1]), f"column {rest!r}", ())
    if kind == "tags":
        return _tagged(opened, rest)
    if kind == "slices":
        return _by_slices(opened, rest)
    if kind == "shortcut":
        return _by_shortcut(opened, rest, classifier, passes)
    return _by_errors(opened, classifier, passes)


def _by_texts(
    opened: Opened, texts: tuple[list[str], list[str]], source: str, notes: tuple[str, ...]
) -> Data:
    fix_by, check_by = grouped_pair(opened.labels, texts, opened.classes, source)
    fix, check = opened.sets
    return Data(fix, check, fix_by, check_by, opened.fit, opened.choose, None, notes)


def _tagged(opened: Opened, folder: str) -> Data:
    """By the tag that reviewers gave most often to an image; every image must be reviewed."""
    path = user_path(folder)
    given: dict[str, Counter[str]] = {}
    for verdict in Store.open(store_path(path)).latest():
        given.setdefault(verdict.item, Counter()).update(sorted(verdict.tags))
    texts: list[list[str]] = []
    for images in opened.sets:
        unseen = [str(one) for one in images.ids if str(one) not in given]
        if unseen:
            raise InputError(
                f"{len(unseen)} of the {len(images)} images of {images.name} were not reviewed in "
                f"{path}, for example {unseen[0]}: review them, or give images that were."
            )
        tags = [given[str(one)].most_common(1) for one in images.ids]
        texts.append([one[0][0] if one else NO_TAG for one in tags])
    note = "Groups are the tags of reviewers: an image with several has the most frequent one."
    return _by_texts(opened, (texts[0], texts[1]), f"the review of {path}", (note,))


def searched(
    source: str, sets: tuple[ImageSet, ImageSet]
) -> tuple[tuple[ImageSet, ImageSet], tuple[str, ...]]:
    """The sets without images that the audits of `slices:RUN` did not search, and a note on them.

    An audit does not search the images that its temperature is fitted on.
    """
    kind, rest = parse_source(source)
    if kind != "slices":
        return sets, ()
    own = _slices(rest)
    searched, notes = [], []
    for images in sets:
        rows = [i for i, one in enumerate(images.ids) if str(one) in own]
        if not rows:
            raise InputError(
                f"none of the {len(images)} images of {images.name} was searched for slices in "
                f"{rest}: audit a set that holds the images to fix and those to check with, with "
                f"slices=True; the ids there are such as {next(iter(own))}."
            )
        if len(rows) < len(images):
            notes.append(
                f"{len(images) - len(rows)} of the {len(images)} images of {images.name} take no "
                f"part: the audit did not search them, for instance those that its temperature "
                "was fitted on."
            )
        searched.append(subset(images, rows))
    return (searched[0], searched[1]), tuple(notes)


def _slices(folders: str) -> dict[str, str]:
    """The slice of each image that one of the audits searched."""
    own: dict[str, str] = {}
    for folder in folders.split(","):
        own |= slices_by_id(folder.strip())
    return own


def _by_slices(opened: Opened, folders: str) -> Data:
    """By the confirmed slices of audits; an image in none of them is in a group of its own."""
    own = _slices(folders)
    texts = [[own[str(one)] for one in images.ids] for images in opened.sets]
    note = (
        "Groups are slices that an audit found by the errors of the model, named after what sets "
        "them apart. Where check images took part in the search, their errors are seen as worse "
        "than they are, before and after alike; give other images for a clean proof."
    )
    return _by_texts(opened, (texts[0], texts[1]), f"the slices of {folders}", (note,))


def _by_shortcut(opened: Opened, folder: str, classifier: Classifier, passes: Passes) -> Data:
    """By whether the first feature that lives on the background is active."""
    direction = shortcut(Run.open(user_path(folder)), classifier)
    values = [
        direction.values(torch.from_numpy(passes(which)).double()).numpy() for which in (0, 1)
    ]
    cut = two_means(values[0][opened.fit])
    texts = [
        [f"{direction.name} {'high' if one > cut else 'low'}" for one in part.tolist()]
        for part in values
    ]
    note = (
        f"Groups come from the model itself: {direction.name} above or below {cut:.4g}, the cut "
        "that splits its values on the fitting half best in two. They miss what it does not react "
        "to."
    )
    return _by_texts(opened, (texts[0], texts[1]), f"the shortcut of {folder}", (note,))


def shortcut(run: Run, classifier: Classifier) -> Direction:
    """The first feature of a run of `neurons spurious` that lives on the background."""
    rows = run.table("spurious")
    if not rows:
        raise InputError(
            f"{run.folder} ranks no features: give the run of counterlens neurons spurious."
        )
    expected, own = run.manifest.get("weights_hash"), weights_hash(classifier)
    if expected != own:
        raise InputError(
            f"{run.folder} looked into weights of hash {str(expected)[:12]}, and the model has "
            f"{own[:12]}: rank the features of this model first."
        )
    first = next((row for row in rows if row["verdict"] == "background"), None)
    if first is None:
        raise InputError(
            f"{run.folder} found no feature that lives on the background, so there is no shortcut "
            "to group by."
        )
    if first["kind"] == "unit":
        return unit_direction(classifier, int(first["number"]))
    settings = run.manifest["settings"]
    known = read_known(
        classifier, str(settings["data"]), limit=settings["limit"], seed=settings["seed"],
        log=lambda line: None,
    )  # fmt: skip
    return components(classifier, known, [f"{first['class']}:{first['number']}"])[0][1]


def two_means(values: np.ndarray) -> float:
    """The cut that leaves the least squared distance to the means on both sides.

    >>> two_means(np.array([0.0, 1.0, 9.0, 10.0]))
    5.0
    """
    order = np.sort(values.astype(np.float64))
    n = len(order)
    if n < 2 or order[0] == order[-1]:
        raise InputError("the shortcut has one value on all fix images: it tells no groups apart.")
    sums, counts = np.cumsum(order)[:-1], np.arange(1, n)
    between = sums**2 / counts + (order.sum() - sums) ** 2 / (n - counts)
    between[order[1:] == order[:-1]] = -np.inf  # no cut through equal values
    best = int(between.argmax())
    return float((order[best] + order[best + 1]) / 2)


def _by_errors(opened: Opened, classifier: Classifier, passes: Passes) -> Data:
    """No groups: fit images by whether the model errs; the worst class is what is proved."""
    fix, check = opened.sets
    answers = logits_of(classifier, torch.from_numpy(passes(0))).argmax(1).numpy()
    wrong = (answers != opened.labels[0]).astype(np.int64)
    wrong[opened.choose] = 0
    few = int(wrong.sum()) < LEAST
    wrong *= not few
    names = ("all", "errors of the model")
    fix_by = Grouped(opened.labels[0], wrong, opened.classes, names)
    check_by = Grouped(opened.labels[1], np.zeros_like(opened.labels[1]), opened.classes, names)
    stand = "The classes stand" if few else "Errors of the model on the fitting half stand"
    note = (
        f"No groups were named. {stand} for them, and what is proved is the worst class: a "
        "shortcut that hurts in every class alike stays unseen."
    )
    if few:
        note += f" The model gets fewer than {LEAST} of the images to fit on wrong."
    return Data(fix, check, fix_by, check_by, opened.fit, opened.choose, None, (note,))
