"""Classes by name or by number, and in words: true, predicted, near, all, random."""

import difflib
from collections.abc import Sequence

from counterlens.errors import InputError
from counterlens.label_spaces.matching import match_classes

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
    raise InputError(f"the model has no class {name!r}. {nearest_classes(name, classes)}")


def nearest_classes(name: str, classes: Sequence[str]) -> str:
    """The classes that a mistyped name may mean, else the first ones."""
    folded = {c.lower(): c for c in classes}
    close = [folded[c] for c in difflib.get_close_matches(name.lower(), list(folded), 3, 0.5)]
    close += [c for c in classes if name.lower() in c.lower() and c not in close][: 5 - len(close)]
    if close:
        return f"Nearest: {', '.join(close)}."
    some = ", ".join(classes[:10]) + (f" and {len(classes) - 10} more" if len(classes) > 10 else "")
    return f"Its classes: {some}."
