"""Pools: several sets as one, opened so that nothing in them can stop a long run.

What cannot be read, is no picture or is no plain file is left out with a reason; the rest keeps
the order of the specs. Ids carry the name of their set where there are several.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from counterlens import images
from counterlens.data.open import open_set
from counterlens.data.provenance import NAMES, pooled_provenance
from counterlens.data.sets import Excluded, encoded, fingerprint, sample_rows, subset
from counterlens.data.sources.folders import open_folder
from counterlens.data.sources.frozen import is_frozen
from counterlens.data.sources.manifests import open_manifest
from counterlens.data.specs import split
from counterlens.errors import InputError
from counterlens.images import ImageSet, Pixels, Planes
from counterlens.types import Preprocess


@dataclass(frozen=True)
class ReadParts:
    """Picture i of several sets, one after another."""

    parts: tuple[Callable[[int], Pixels], ...]
    starts: Int64[np.ndarray, "p"]

    def __call__(self, i: int) -> Pixels:
        part, row = self._place(i)
        return part(row)

    def prepared(self, i: int, preprocess: Preprocess, channels: int) -> Planes:
        part, row = self._place(i)
        return images.prepared(part, row, preprocess, channels=channels)

    def encoded(self, i: int) -> bytes:
        return encoded(*self._place(i))

    def _place(self, i: int) -> tuple[Callable[[int], Pixels], int]:
        part = int(np.searchsorted(self.starts, i, side="right")) - 1
        return self.parts[part], i - int(self.starts[part])


def open_part(
    spec: str, excluded: list[Excluded], *, limit: int | None = None, seed: int = 0
) -> ImageSet:
    """One set of a pool; files and folders that cannot be used go to `excluded`."""
    name, scheme, rest = split(spec)
    path = Path(rest)
    if scheme == "noise":
        raise InputError(f"{spec} is made by code, expected a pool of photographs.")
    if scheme == "path" and path.is_dir() and not is_frozen(path):
        opened = open_folder(path, name=name, excluded=excluded)
    elif scheme == "path" and path.suffix.lower() in (".csv", ".tsv", ".jsonl") and path.is_file():
        opened = open_manifest(path, name=name, excluded=excluded)
    else:
        opened = open_set(spec)
    if not len(opened):
        raise InputError(f"{spec} holds no file that can be read; {len(excluded)} were set aside.")
    return subset(opened, sample_rows(len(opened), limit, seed))


def join_parts(parts: Sequence[ImageSet], labels: Int64[np.ndarray, "n"]) -> ImageSet:
    """Several sets as one, with labels of their own.

    Licence, author and source stay with each image; other facts stay where all sets have them.
    """
    several = len(parts) > 1
    names = [part.name for part in parts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"two sets are named {twice[0]!r}. Name one of them yourself: NAME=SPEC.")
    ids = [f"{part.name}/{i}" if several else i for part in parts for i in part.ids]
    shared = [
        key
        for key in parts[0].extra
        if key not in NAMES and all(key in part.extra for part in parts)
    ]
    facts = {key: np.concatenate([part.extra[key] for part in parts]) for key in shared}
    return replace(
        parts[0],
        name="+".join(names),
        ids=ids,
        labels=np.asarray(labels, np.int64),
        classes=(),
        read=ReadParts(
            tuple(part.read for part in parts),
            np.cumsum([0] + [len(part) for part in parts[:-1]], dtype=np.int64),
        ),
        space=None,
        extra={**facts, **pooled_provenance(parts)},
        fingerprint=fingerprint(part.fingerprint for part in parts),
        notes=tuple(f"{part.name}: {note}" for part in parts for note in part.notes),
    )
