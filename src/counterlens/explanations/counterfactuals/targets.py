"""Which class to raise: by name, by number, or in words (true, predicted, near, all, random)."""

import hashlib
from collections.abc import Collection, Mapping, Sequence

import torch

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.label_spaces.named import WORDS as WORDS
from counterlens.label_spaces.named import class_index as class_index
from counterlens.label_spaces.named import class_named as class_named
from counterlens.types import Labels, Probs


def matched(net: Classifier, classes: Sequence[str], target: Labels) -> Labels:
    """Targets of one classifier in the numbering of another."""
    places = {k: class_named(net.classes, classes[k]) for k in set(target.tolist())}
    missing = sorted(classes[k] for k, place in places.items() if place < 0)
    if missing:
        raise InputError(f"{net.name} has no class {missing[0]!r}, so it cannot take part.")
    return torch.tensor([places[k] for k in target.tolist()])


def targets_of(
    words: Sequence[str],
    classes: Sequence[str],
    probs: Probs,
    *,
    labels: Sequence[int],
    ids: Sequence[str],
    seed: int = 0,
    similar_classes: Mapping[str, Sequence[int]] | None = None,
) -> list[list[int]]:
    """For each image the classes that the words ask for, without doubles, in order.

    Args:
        words: class names, numbers, or `WORDS`. "near" is the surest class but the predicted one,
            "random" a class neither predicted nor true, drawn by id and seed.
        probs: what the model says of each image.
        labels: the true class of each image, −1 where unknown.
        ids: names of the images; an id draws the same random class for every model.
        similar_classes: more words, and for each class the one they mean where it is predicted.
    """
    similar_classes = similar_classes or {}
    if not words:
        raise InputError(f"no target given, expected a class or one of {', '.join(WORDS)}.")
    named = {
        word: class_index(classes, word) for word in words if word not in (*WORDS, *similar_classes)
    }
    targets = []
    for row, label, name in zip(probs, labels, ids, strict=True):
        order = row.argsort(descending=True, stable=True).tolist()
        wanted: list[int] = []
        for word in words:
            if word == "true":
                if label < 0:
                    raise InputError(
                        "target=true needs a known label. Take the image from a labelled set "
                        "(SPEC#ID) or name the class."
                    )
                wanted.append(label)
            elif word == "predicted":
                wanted.append(order[0])
            elif word == "near":
                wanted.append(order[1])
            elif word in similar_classes:
                wanted.append(similar_classes[word][order[0]])
            elif word == "all":
                wanted += range(len(classes))
            elif word == "random":
                wanted.append(_random(len(classes), {order[0], label}, f"{seed} {name}"))
            else:
                wanted.append(named[word])
        targets.append(list(dict.fromkeys(wanted)))
    return targets


def seeded(count: int, taken: Collection[int], salt: str) -> list[int]:
    """All classes but the taken ones, in an order drawn by the salt.

    >>> seeded(4, {1}, "a") == seeded(4, {1}, "a"), sorted(seeded(4, {1}, "a"))
    (True, [0, 2, 3])
    """
    order = sorted(range(count), key=lambda k: hashlib.blake2b(f"{salt} {k}".encode()).digest())
    return [k for k in order if k not in taken]


def _random(count: int, taken: set[int], salt: str) -> int:
    """The first of a shuffled row of classes that is not taken; two classes leave no choice."""
    return (seeded(count, taken, salt) or seeded(count, (), salt))[0]
