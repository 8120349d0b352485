"""Matching the class names of a data set with those of a model, visibly.

Ways to match, tried in this order; a class of the model is given away once:
exact · spelling (case, signs between words, a leading number, plural) · wnid (WordNet id) ·
synonym (ImageNet's names) · synonyms listed ("tabby, tabby cat") · alias (car = automobile) ·
index (folders named 0, 1, 2, …).
"""

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from counterlens.errors import InputError
from counterlens.label_spaces.imagenet import WNID, by_name, by_wnid, imagenet_index, plain
from counterlens.label_spaces.maps import SPACES, LabelMap, declared_map, everything

ALIASES = (
    ("airplane", "aeroplane", "plane", "aircraft"),
    ("automobile", "car", "motorcar", "auto"),
    ("bicycle", "bike", "push bike"),
    ("cell phone", "cellphone", "mobile phone", "cellular telephone"),
    ("couch", "sofa"),
    ("cow", "cattle"),
    ("instrument", "musical instrument"),
    ("motorcycle", "motorbike"),
    ("ship", "boat"),
    ("television", "tv", "tv monitor", "tvmonitor"),
    ("truck", "lorry"),
    ("vehicle", "wheeled vehicle"),
)
ALIAS = {name: names[0] for names in ALIASES for name in names}


@dataclass(frozen=True, slots=True)
class Match:
    """One class of the data: which classes of the model it is, and how it was matched."""

    data_class: str
    model_class: str | None
    how: str


@dataclass(frozen=True)
class Matching:
    """How the classes of a data set relate to a model's.

    Args:
        rows: one per class of the data.
        map: the protocol under which answers are counted.
        position: for each class of the data its place in `map.classes`, −1 where it has none.
    """

    rows: tuple[Match, ...]
    map: LabelMap
    position: tuple[int, ...]

    @property
    def unmatched(self) -> tuple[str, ...]:
        """Classes of the data that the model does not know."""
        return tuple(row.data_class for row in self.rows if row.model_class is None)

    def relabel(self, labels: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
        """Labels of the data as places in `map.classes`; −1 where there is none."""
        table = np.array([*self.position, -1], dtype=np.int64)  # −1 picks the last entry
        places: Int64[np.ndarray, "n"] = table[labels]
        return places

    def table(self) -> list[dict[str, str | None]]:
        """Rows for a report."""
        return [
            {"data_class": row.data_class, "model_class": row.model_class, "how": row.how}
            for row in self.rows
        ]

    def summary(self) -> str:
        """One line: how many classes matched in which way."""
        ways = Counter(row.how for row in self.rows if row.model_class is not None)
        counts = ", ".join(f"{count} by {how}" for how, count in ways.most_common())
        rest = f"; not known to the model: {_some(self.unmatched)}" if self.unmatched else ""
        return f"{sum(ways.values())} of {len(self.rows)} classes matched ({counts}){rest}"


def match_classes(
    model_classes: Sequence[str],
    data_classes: Sequence[str],
    space: str | None = None,
    *,
    least: float = 0.5,
) -> Matching:
    """Relate the classes of a data set to a model's, or raise an error that names what is missing.

    Args:
        model_classes: names of the model's outputs, in order.
        data_classes: names of the data's classes, in order.
        space: a declared label space; with a model of ImageNet's classes its protocol holds.
        least: share of the data's classes that must match.

    >>> m = match_classes(["automobile", "cat"], ["Cats", "car"])
    >>> [(row.data_class, row.model_class, row.how) for row in m.rows]
    [('Cats', 'cat', 'spelling'), ('car', 'automobile', 'alias')]
    """
    declared = declared_map(space, model_classes) if space in SPACES else None
    protocol = declared or everything(model_classes)
    pairs = pair_classes(protocol.classes, data_classes)
    rows = tuple(
        Match(name, _named(protocol, model_classes, i) if i >= 0 else None, how or "none")
        for name, (i, how) in zip(data_classes, pairs, strict=True)
    )
    matched = sum(row.model_class is not None for row in rows)
    if matched < max(least * len(rows), min(2, len(rows))) or not rows:
        raise InputError(_refusal(model_classes, rows))
    return Matching(rows, protocol, tuple(i for i, _ in pairs))


def _named(protocol: LabelMap, model_classes: Sequence[str], i: int) -> str:
    group = protocol.groups[i]
    if len(group) == 1:
        return model_classes[group[0]]
    return f"{protocol.classes[i]}: {len(group)} classes"


def pair_classes(
    model_classes: Sequence[str], data_classes: Sequence[str]
) -> list[tuple[int, str]]:
    """For each class of the data the model's class and how it was matched, (−1, "") for none."""
    pairs = [(-1, "")] * len(data_classes)
    taken: set[int] = set()
    labels = imagenet_index(model_classes) or [-1] * len(model_classes)
    own_labels = [{str(label)} if label >= 0 else set() for label in labels]
    for how, keys in WAYS:
        table = _table(own_labels if how in ("wnid", "synonym") else map(keys, model_classes))
        for d, name in enumerate(data_classes):
            hits = {table[key] for key in keys(name) if table.get(key, -1) >= 0} - taken
            if pairs[d][0] < 0 and len(hits) == 1:
                pairs[d] = (hits.pop(), how)
                taken.add(pairs[d][0])
    if not taken and _numbered(data_classes, len(model_classes)):
        return [(int(name), "index") for name in data_classes]
    return pairs


def _table(keys: Iterable[set[str]]) -> dict[str, int]:
    """Key → class; −1 where two classes share a key, so that neither is guessed."""
    table: dict[str, int] = {}
    for i, names in enumerate(keys):
        for key in names:
            table[key] = -1 if key in table else i
    return table


def word(name: str) -> str:
    """A plain name without a leading number (Caltech's "001.ak47") and in the singular."""
    word = re.sub(r"^\d+ (?=\D)", "", plain(name))
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "xes", "sses")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def _wnid_label(name: str) -> set[str]:
    wnid = WNID.search(name)
    return {str(by_wnid()[wnid[0]])} if wnid and wnid[0] in by_wnid() else set()


def _synonym_labels(name: str) -> set[str]:
    return {str(i) for part in name.split(",") for i in by_name().get(plain(part), ())}


WAYS: tuple[tuple[str, Callable[[str], set[str]]], ...] = (
    ("exact", lambda name: {name}),
    ("spelling", lambda name: {plain(name)}),
    ("spelling", lambda name: {word(name)}),
    ("wnid", _wnid_label),
    ("synonym", _synonym_labels),
    ("synonyms listed", lambda name: {word(part) for part in name.split(",")}),
    ("alias", lambda name: {ALIAS.get(word(part), "") for part in name.split(",")} - {""}),
)


def _numbered(names: Sequence[str], outputs: int) -> bool:
    if not all(name.isascii() and name.isdigit() for name in names):
        return False
    numbers = {int(name) for name in names}
    # 1 … K, or a few numbers of many, would be a guess
    fits = 0 in numbers and max(numbers) < outputs and len(numbers) == len(names)
    return fits and 2 * len(numbers) >= outputs


def _refusal(model_classes: Sequence[str], rows: Sequence[Match]) -> str:
    if not rows:
        return "the data has no class names, expected a sub-folder per class or a label column."
    missing = [row.data_class for row in rows if row.model_class is None]
    folded = {plain(name): name for name in model_classes}
    near = [
        f"{name} ~ {folded[close[0]]}"
        for name in missing[:50]
        if (close := difflib.get_close_matches(plain(name), list(folded), 1, 0.7))
    ]
    hint = f"; nearest: {_some(near, 3)}" if near else ""
    return (
        f"{len(rows) - len(missing)} of {len(rows)} classes of the data are classes of the model: "
        f"it does not know {_some(missing)}{hint}. Expected names such as "
        f"{_some([name.split(',')[0] for name in model_classes], 3)}; rename the folders or labels."
    )


def _some(names: Sequence[str], most: int = 6) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
