"""Licence, author and source of each image: one column each, whatever a set calls them.

An image keeps its own facts when sets are pooled, cut or written elsewhere. Empty text says that
the set does not state the fact; nothing is filled in from a neighbour.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Shaped

from counterlens.images import ImageSet

COLUMNS = {
    "licence": ("licence", "license"),
    "author": ("author", "creator", "photographer", "attribution"),
    "source": ("source", "source_url", "url"),
}
"""The columns of a manifest or pack that state each fact; the first that is not empty counts."""
NOT_STATED = "not stated"
"""What a card says in place of a fact that nobody stated."""
NAMES = frozenset(name for names in COLUMNS.values() for name in names)

Texts = Shaped[np.ndarray, "n"]


def provenance(images: ImageSet) -> dict[str, Texts]:
    """Licence, author and source of each image of a set as text; empty where not stated."""
    return {fact: _first(images, names) for fact, names in COLUMNS.items()}


def pooled_provenance(parts: Sequence[ImageSet]) -> dict[str, Texts]:
    """The facts of several sets, one after another."""
    each = [provenance(part) for part in parts]
    return {fact: np.concatenate([one[fact] for one in each]) for fact in COLUMNS}


def stated(images: ImageSet) -> dict[str, Texts]:
    """The facts that a set states for one image or more."""
    return {fact: texts for fact, texts in provenance(images).items() if (texts != "").any()}


def _first(images: ImageSet, names: Sequence[str]) -> Texts:
    result = np.full(len(images), "", dtype=object)
    for name in names:
        column = images.extra.get(name)
        if column is None or column.ndim != 1:
            continue
        texts = np.array([_text(value) for value in column.tolist()], dtype=object)
        result = np.where(result == "", texts, result)
    return result


def _text(value: object) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return "" if text.strip() == NOT_STATED else text.strip()
