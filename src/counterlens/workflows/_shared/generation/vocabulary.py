"""The words a generator was trained with, for the classes of a classifier."""

from collections.abc import Mapping, Sequence
from typing import Any

from counterlens.data.synthetic import captions
from counterlens.errors import nearest
from counterlens.label_spaces.imagenet import by_name, imagenet, plain


def own_word(card: Mapping[str, Any] | None, name: str) -> str | None:
    """What a generator calls a class; None where its card names classes and this is none of them.

    A class is known by its name, by another name of the same ImageNet class, without the kind that
    a generator's name may end with, and with attributes. Without classes on the card any word may
    be known.

    >>> card = {"classes": ["Siamese cat", "pug dog", "English springer"],
    ...         "recipe": {"kinds": ["English springer=dog"]}}
    >>> [own_word(card, name) for name in ("n02110958 pug, pug-dog", "siamese_cat", "shark", "dog")]
    ['pug dog', 'Siamese cat', None, 'dog']
    >>> own_word(card, "a black dog")
    'a black dog'
    >>> own_word({}, "shark")
    'shark'
    """
    word = captions.word(name)
    classes, kinds = vocabulary(card)
    if not classes:
        return word
    known = {plain(one): one for one in (*kinds, *classes)}
    for one in classes:
        if " " in one:
            known.setdefault(plain(one.rpartition(" ")[0]), one)
    found = next((known[plain(text)] for text in synonyms(name) if plain(text) in known), None)
    if found is None and any(f" {one} " in f" {plain(word)} " for one in known):
        return word
    return found


def synonyms(name: str) -> list[str]:
    """The names of a class: its own, and those of the ImageNet class of this name."""
    own = [captions.word(name), *(part.strip() for part in name.split(",")[1:])]
    places = by_name().get(plain(own[0]), ())
    return [*own, *(imagenet()[places[0]].names if len(places) == 1 else ())]


def vocabulary(card: Mapping[str, Any] | None) -> tuple[list[str], list[str]]:
    """Classes and kinds of a generator, as words; empty where its card names none."""
    given = card or {}
    classes = [captions.word(one) for one in given.get("classes") or ()]
    named = [text.partition("=")[2] for text in (given.get("recipe") or {}).get("kinds") or ()]
    ends = [one.split()[-1] for one in classes]
    shared = [end for end in ends if ends.count(end) > 2 and end.islower()]
    return classes, list(dict.fromkeys([*named, *shared]))


def unknown(card: Mapping[str, Any] | None, names: Sequence[str]) -> str:
    """A line about the classes that a generator was not trained on; empty if there are none."""
    missing = [captions.word(name) for name in names if own_word(card, name) is None]
    if not missing:
        return ""
    classes, _ = vocabulary(card)
    by_plain = {plain(one): one for one in classes}
    near = dict.fromkeys(
        by_plain[found] for found in (nearest(plain(one), by_plain) for one in missing) if found
    )
    hint = f" (similar names it knows: {', '.join(near)})" if near else ""
    words = ", ".join(dict.fromkeys(missing))
    return (
        f"the generator was not trained on {words}{hint}: what it draws for that says little. "
        "Choose a target that it knows, or name another generator: generator=FOLDER."
    )
