"""ImageNet-1k: the thousand WordNet ids in order, their names and what they belong to.

imagenet.tsv has a line per class, in label order: WordNet id; names, the usual one first; class
of ImageNet-9; category of the 16-class set; CIFAR-10 class it shows; letters of the 200-class
subsets it is in (A, O, R); group of classes that WordNet puts close together (`tools/
wordnet_groups.py` says how). A dash stands for none. Names are lemmas of WordNet 3.0, © 2006
Princeton University; "crane bird" and "maillot tank suit" are added so that first names differ.
The CIFAR-10 column is ours and generous: big cats count as cat, antelopes as deer, wolves as
dog, buses and tanks as truck, so that what is left over shows none of the ten.
"""

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

WNID = re.compile(r"(?<![a-z0-9])n\d{8}(?!\d)")


@dataclass(frozen=True, slots=True)
class Synset:
    """One class of ImageNet-1k; `names` has the usual one first, empty text stands for none."""

    wnid: str
    names: tuple[str, ...]
    nine: str
    sixteen: str
    cifar10: str
    subsets: frozenset[str]
    group: str = ""


@functools.cache
def imagenet() -> tuple[Synset, ...]:
    """The thousand classes in label order."""
    lines = Path(__file__).with_name("imagenet.tsv").read_text(encoding="utf-8").splitlines()
    rows = (["" if cell == "-" else cell for cell in line.split("\t")] for line in lines)
    return tuple(
        Synset(wnid, tuple(names.split("|")), nine, sixteen, cifar10, frozenset(subsets), *group)
        for wnid, names, nine, sixteen, cifar10, subsets, *group in rows
    )


def imagenet_names() -> tuple[str, ...]:
    """One name per class, all different, in label order.

    >>> imagenet_names()[0], imagenet_names()[134], imagenet_names()[517]
    ('tench', 'crane bird', 'crane')
    """
    return tuple(synset.names[0] for synset in imagenet())


@functools.cache
def by_wnid() -> dict[str, int]:
    """Label of each WordNet id."""
    return {synset.wnid: i for i, synset in enumerate(imagenet())}


@functools.cache
def by_name() -> dict[str, tuple[int, ...]]:
    """Labels of each plain name; some names are shared by two classes."""
    table: dict[str, list[int]] = {}
    for i, synset in enumerate(imagenet()):
        for name in dict.fromkeys(plain(name) for name in synset.names):
            table.setdefault(name, []).append(i)
    return {name: tuple(labels) for name, labels in table.items()}


def plain(name: str) -> str:
    """A name without case, signs between its words or ways to encode its letters.

    >>> plain("Great_White-Shark")
    'great white shark'
    """
    folded = unicodedata.normalize("NFKC", name).casefold()
    return " ".join(re.sub(r"[\W_]+", " ", folded).split())


def imagenet_index(classes: Sequence[str]) -> tuple[int, ...] | None:
    """The ImageNet-1k label of each class, −1 for none; None where less than 90 % are its classes.

    A class is known by a WordNet id in its name, or by any of its names, as in "tench, Tinca
    tinca". A name shared by two classes is the one of which it is the first name, or, where
    the list has it twice, the one at its own position.

    >>> imagenet_index(["n01440764", "goldfish, Carassius auratus"])
    (0, 1)
    """
    twice = {name for name, count in Counter(classes).items() if count > 1}
    labels = tuple(_index(name, i if name in twice else None) for i, name in enumerate(classes))
    known = [i for i in labels if i >= 0]
    enough = len(known) >= 0.9 * len(classes) and len(set(known)) == len(known) >= 2
    return labels if enough else None


def imagenet_groups(classes: Sequence[str]) -> tuple[str, ...] | None:
    """The WordNet group of each class, empty for none; None where they are not ImageNet's.

    >>> imagenet_groups(["Norwich terrier", "Norfolk terrier", "candle"])
    ('dog', 'dog', 'source of illumination')
    """
    labels = imagenet_index(classes)
    return None if labels is None else tuple(imagenet()[i].group if i >= 0 else "" for i in labels)


def _index(name: str, position: int | None) -> int:
    wnid = WNID.search(name)
    if wnid:
        return by_wnid().get(wnid[0], -1)
    for part in (name, *name.split(",")):
        labels = by_name().get(plain(part), ())
        if len(labels) == 1:
            return labels[0]
        if position in labels:
            return position
        first = [i for i in labels if imagenet()[i].names[0] == part.strip()]  # Cardigan, cardigan
        if len(first) == 1:
            return first[0]
    return -1
