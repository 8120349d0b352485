"""Pictures named on the command line: files, and places in sets (SPEC#ID, SPEC#3, SPEC#0:16)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8

from counterlens import images
from counterlens.classifier import Classifier, numbered
from counterlens.data import open_set, scheme_of, subset
from counterlens.data.masks import Mask, own_masks
from counterlens.data.sets import sample_rows
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals.pixel import confidences, rows_that_fit
from counterlens.explanations.counterfactuals.targets import class_named
from counterlens.generators.diffusion.cutouts import seen
from counterlens.images import ImageSet, Pixels
from counterlens.types import Images, Preprocess, Probs

WHOLE = 16
"""How many pictures of a set without a place (SPEC alone) are taken unless a limit says more."""

Given = str | Path | UInt8[np.ndarray, "h w 3"] | ImageSet


@dataclass(frozen=True)
class Pictures:
    """Pictures as a classifier sees them.

    Args:
        ids: a name for each.
        x: whole multiples of 1/255, of the classifier's size.
        labels: the true class as the classifier numbers it, −1 where unknown.
        notes: remarks on them for the report.
        masks: of the object, as large as the picture, where the set has them; else None.
    """

    ids: tuple[str, ...]
    x: Images
    labels: tuple[int, ...]
    notes: tuple[str, ...] = ()
    masks: tuple[Mask | None, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def only(self, rows: Sequence[int]) -> "Pictures":
        """Some of them, in the order given."""
        chosen = list(rows)
        return Pictures(
            tuple(self.ids[i] for i in chosen),
            self.x[chosen],
            tuple(self.labels[i] for i in chosen),
            self.notes,
            tuple(self.masks[i] for i in chosen) if self.masks else (),
        )


def open_pictures(
    given: Sequence[Given],
    classifier: Classifier,
    *,
    limit: int | None = None,
    seed: int = 0,
    preprocess: Preprocess | None = None,
) -> Pictures:
    """Read and prepare pictures for a classifier.

    Args:
        given: files, arrays, sets of images, SPEC#ID, SPEC#NUMBER, SPEC#FROM:TO, or a whole SPEC.
        limit: how many pictures of a whole SPEC, drawn by `seed`; by default 16.
        preprocess: None: the classifier's; a generator wants its own size.
    """
    if not given:
        raise InputError("no images, expected files or SPEC#ID, e.g. sample:cifar10#12.")
    ids: list[str] = []
    pixels: list[Pixels] = []
    labels: list[int] = []
    notes: list[str] = []
    masks: list[Mask | None] = []
    for number, one in enumerate(given):
        if isinstance(one, np.ndarray):
            ids.append(f"picture {number + 1}")
            pixels.append(one)
            labels.append(-1)
        elif not isinstance(one, ImageSet) and _is_file(one):
            ids.append(Path(one).name)
            pixels.append(images.read(one))
            labels.append(-1)
        else:
            opened = one if isinstance(one, ImageSet) else None
            part = opened or _chosen(str(one), classifier, limit, seed)
            ids += part.ids
            pixels += [part.read(i) for i in range(len(part))]
            labels += _labels(part, classifier)
            notes += part.notes
            source = str(one).rpartition("#")[0] or str(one)
            own = None if opened else own_masks(source, part, border=True)
            masks += [own[1](i) if own else None for i in range(len(part))]
        masks += [None] * (len(ids) - len(masks))
    fit = preprocess or classifier.preprocess
    ready = [images.prepare(p, fit, channels=classifier.channels) for p in pixels]
    x = torch.stack([torch.from_numpy(one) for one in ready]).float() / 255
    notes += [
        f"{name} has {p.shape[1]} × {p.shape[0]} pixels; the model sees it enlarged to "
        f"{x.shape[3]} × {x.shape[2]}."
        for name, p in zip(ids, pixels, strict=True)
        if 2 * min(p.shape[:2]) < min(x.shape[2:])
    ]
    return Pictures(tuple(ids), x, tuple(labels), tuple(dict.fromkeys(notes)), tuple(masks))


def confidences_of(classifier: Classifier, pictures: Pictures) -> Probs:
    """A classifier's confidences in each picture, after temperature."""
    size = rows_that_fit(pictures.x, classifier.mean.device)
    parts = torch.split(pictures.x, size)
    if pictures.x.shape[2:] != classifier.preprocess.size:  # they are of a generator's size
        parts = tuple(seen(part, classifier.preprocess.size[0]) for part in parts)
    return torch.cat([confidences(classifier, part) for part in parts])


def _chosen(text: str, classifier: Classifier, limit: int | None, seed: int) -> ImageSet:
    """The part of a set that a text names."""
    size, channels = images.fitting_size(classifier.preprocess), classifier.channels
    spec, sign, place = text.rpartition("#")
    if not sign or (re.fullmatch(r"(?:corrupted:[^#]*@)?hf:[^#]+", spec) and not _is_place(place)):
        if Path(text).suffix.lower() in images.SUFFIXES:
            raise InputError(f"no picture file {text}: there is no such file.")
        if limit or scheme_of(text) == "noise":
            return open_set(text, limit=limit or WHOLE, seed=seed, size=size, channels=channels)
        whole = open_set(text, seed=seed, size=size, channels=channels)
        cut = subset(whole, sample_rows(len(whole), WHOLE, seed))
        if len(cut) == len(whole):
            return cut
        note = f"{len(cut)} of {len(whole):,} pictures of {whole.name}; more: limit={len(whole)}."
        return replace(cut, notes=(*cut.notes, note))
    drawn = scheme_of(spec) == "noise" and _is_place(place)
    enough = int(place.rpartition(":")[2]) + 1 if drawn else None  # noise is endless
    whole = open_set(spec, limit=enough, seed=seed, size=size, channels=channels)
    if place in whole.ids:
        return subset(whole, [list(whole.ids).index(place)])
    if not _is_place(place):
        some = ", ".join(list(whole.ids)[:3])
        raise InputError(f"{whole.name} has no picture {place!r}. Its ids look like {some}.")
    first, colon, last = place.partition(":")
    start, stop = int(first), int(last) if colon else int(first) + 1
    if not 0 <= start < stop <= len(whole):
        raise InputError(f"{text}: {whole.name} has the pictures 0 … {len(whole) - 1}.")
    return subset(whole, range(start, stop))


def _is_file(given: str | Path) -> bool:
    path = Path(given)
    return path.is_file() and path.suffix.lower() not in (".csv", ".tsv", ".jsonl")


def _is_place(text: str) -> bool:
    return re.fullmatch(r"\d+(:\d+)?", text) is not None


def _labels(part: ImageSet, classifier: Classifier) -> list[int]:
    """Labels in the classifier's numbering; a class it does not know is unknown."""
    known = {int(k) for k in part.labels if k >= 0}
    if part.classes == numbered(len(part.classes)):  # nobody named them: the model's numbers
        places = {k: k for k in known if k < len(classifier.classes)}
    else:
        places = {k: class_named(classifier.classes, part.classes[k]) for k in known}
    return [places.get(int(k), -1) for k in part.labels]
