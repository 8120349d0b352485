"""Which class to raise: by name, by number, or in words (true, predicted, near, all, random)."""

import difflib
import hashlib
from collections.abc import Collection, Mapping, Sequence

import torch

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.label_spaces import match_classes
from counterlens.types import Labels, Probs

WORDS = ("true", "predicted", "near", "all", "random")


def class_named(classes: Sequence[str], name: str) -> int:
    """The class of that name, spelt as people spell it; −1 where there is none.

    >>> class_named(["automobile", "cat"], "Car"), class_named(["automobile", "cat"], "1")
    (0, -1)
    """
    try:
        return match_classes(classes, [name]).position[0]
    except InputError:
        return -1


def class_index(classes: Sequence[str], name: str) -> int:
    """The class of that name or of that number.

    >>> class_index(["automobile", "cat"], "Car"), class_index(["automobile", "cat"], "1")
    (0, 1)
    """
    place = class_named(classes, name)
    if place >= 0:
        return place
    if name.isascii() and name.isdigit():
        if int(name) < len(classes):
            return int(name)
        raise InputError(f"no class {name}: the model has the classes 0 … {len(classes) - 1}.")
    raise InputError(f"the model has no class {name!r}. {_nearest(name, classes)}")


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
        raise InputError(f"no target came, expected a class or one of {', '.join(WORDS)}.")
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


def _nearest(name: str, classes: Sequence[str]) -> str:
    folded = {c.lower(): c for c in classes}
    close = [folded[c] for c in difflib.get_close_matches(name.lower(), list(folded), 3, 0.5)]
    close += [c for c in classes if name.lower() in c.lower() and c not in close][: 5 - len(close)]
    if close:
        return f"Nearest: {', '.join(close)}."
    some = ", ".join(classes[:10]) + (f" and {len(classes) - 10} more" if len(classes) > 10 else "")
    return f"Its classes: {some}."
