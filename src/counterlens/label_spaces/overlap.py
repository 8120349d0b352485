"""Which classes of one set show what a class of another set shows, by their names.

Generous on purpose: a class that overlaps must not pass for something else. Ways, in this order:
the same name (spelling, plural, listed synonyms, aliases such as car = automobile) · the same
WordNet id or ImageNet synonym · a group ImageNet's table knows (a tabby is a cat) · one name
within the other as whole words ("tabby cat", but not "polecat").
"""

from collections.abc import Sequence
from dataclasses import dataclass

from counterlens.label_spaces.imagenet import WNID, Synset, by_name, by_wnid, imagenet, plain
from counterlens.label_spaces.matching import ALIAS, word


@dataclass(frozen=True, slots=True)
class Overlap:
    """A class of the other set that shows a class of the first, and how it was matched."""

    other: int
    own: int
    how: str


def overlaps(own_classes: Sequence[str], other_classes: Sequence[str]) -> list[Overlap]:
    """The classes of the other set that overlap with one of the first, by the first match.

    >>> result = overlaps(["cat", "automobile"], ["Cats", "toy car", "n02123045", "polecat"])
    >>> [(o.other, o.own, o.how) for o in result]
    [(0, 0, 'same name'), (1, 1, 'word'), (2, 0, 'ImageNet group')]
    """
    own = [_Known.of(name) for name in own_classes]
    result = []
    for j, name in enumerate(other_classes):
        other = _Known.of(name)
        hits = ((i, how) for how in _WAYS for i, one in enumerate(own) if _WAYS[how](one, other))
        first = next(hits, None)
        if first:
            result.append(Overlap(j, *first))
    return result


@dataclass(frozen=True, slots=True)
class _Known:
    """A class name: its spellings, the ImageNet labels it may be, and the groups of those."""

    names: frozenset[str]
    labels: frozenset[int]
    groups: frozenset[str]

    @classmethod
    def of(cls, name: str) -> "_Known":
        wnid = WNID.search(name)
        parts = [part for part in WNID.sub(" ", name).split(",") if plain(part)]
        labels = {by_wnid()[wnid[0]]} if wnid and wnid[0] in by_wnid() else set()
        if not wnid:
            labels |= {i for part in parts for i in by_name().get(plain(part), ())}
        synsets = [imagenet()[i] for i in labels]
        groups = {_alias(word(g)) for s in synsets for g in _groups(s)}
        return cls(
            frozenset(_alias(word(part)) for part in parts), frozenset(labels), frozenset(groups)
        )


def _alias(name: str) -> str:
    return ALIAS.get(name, name)


def _groups(synset: Synset) -> list[str]:
    return [g for g in (synset.nine, synset.sixteen, synset.cifar10) if g]


def _within(one: _Known, other: _Known) -> bool:
    """Whether all words of a name stand side by side in a longer name of the other class."""
    return any(
        f" {short} " in f" {long} " or f" {short} " in f" {_aliased(long)} "
        for short in one.names
        for long in other.names
    )


def _aliased(name: str) -> str:
    return " ".join(_alias(word(part)) for part in name.split())


_WAYS = {
    "same name": lambda one, other: bool(one.names & other.names),
    "ImageNet class": lambda one, other: bool(one.labels & other.labels),
    "ImageNet group": lambda one, other: bool(one.names & other.groups),
    "word": _within,
}

__all__ = ["Overlap", "overlaps"]
