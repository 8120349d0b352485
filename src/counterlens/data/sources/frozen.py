"""Frozen sets: what `curate freeze` writes, with a card that says under which protocol to judge.

card.json           schema, kind, classes, funnel, filters, agreement, transfer, licences
images.jsonl        a line per image: id, file, label, source, licence, checksum
checksums.sha256    as `sha256sum -c` reads it
images/CLASS/…      the pictures, or shards/*.tar for WebDataset
"""

import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from counterlens.data.provenance import COLUMNS
from counterlens.data.sets import file_set, fingerprint
from counterlens.errors import InputError, first_line
from counterlens.images import ImageSet, Pixels, decode
from counterlens.runs import inside, read_lines, read_object

SCHEMA = "counterlens-set/1"
SPACES = {"adversarial": "subset", "ood": "unknown-to-subset"}
"""Label space of each kind: answers count over the card's classes alone."""


@dataclass(frozen=True)
class ReadTar:
    """Picture i of tar files; pickles as places in them."""

    places: tuple[tuple[Path, int, int], ...]

    def __call__(self, i: int) -> Pixels:
        return decode(self.encoded(i), name=f"{self.places[i][0]}, picture {i}")

    def encoded(self, i: int) -> bytes:
        path, start, size = self.places[i]
        with path.open("rb") as file:
            file.seek(start)
            return file.read(size)


def is_frozen(path: Path) -> bool:
    """Whether a folder is a frozen set."""
    try:
        return bool(read_object(path / "card.json").get("schema") == SCHEMA)
    except InputError:
        return False


def filters_of(path: Path) -> dict[str, str]:
    """Hash of the weights and spec of each model that a frozen set was mined with."""
    card = read_object(path / "card.json")
    with _damaged(path):
        return {str(row["weights_hash"]): str(row["model"]) for row in card["filters"]}


def open_frozen(path: Path, *, name: str) -> ImageSet:
    """A frozen set under its own protocol; an adversarial one is labelled, an OOD one is not."""
    card = read_object(path / "card.json")
    rows = [row for _, row in read_lines(path / "images.jsonl")]
    with _damaged(path):
        return _opened(path, name, card, rows)


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    """Inside, a card or a row without what a frozen set writes is one line."""
    try:
        yield
    except (AttributeError, LookupError, OSError, TypeError, ValueError, tarfile.TarError) as error:
        raise InputError(
            f"{path} is damaged: its card or its list of images does not hold what curate freeze "
            f"writes ({type(error).__name__}: {first_line(error)})."
        ) from error


def _opened(path: Path, name: str, card: dict[str, Any], rows: list[dict[str, Any]]) -> ImageSet:
    if len(rows) != card["images"]:
        raise InputError(f"{path} is damaged: {len(rows)} of {card['images']} images are listed.")
    classes: list[str] = card["classes"]
    number = {label: k for k, label in enumerate(classes)}
    known = card["kind"] == "adversarial"
    labels = [number[row["label"]] if known else -1 for row in rows]
    ids = [str(row["id"]) for row in rows]
    for row in rows:
        inside(path, row["file"].partition("#")[0])
    facts = {key: np.array([row.get(key, "") for row in rows]) for key in COLUMNS}
    if card["format"] == "folder":
        files = [row["file"] for row in rows]
        space = SPACES[card["kind"]]
        opened = file_set(name, path, files, labels, classes, space=space, ids=ids)
        return replace(opened, extra=facts)
    empty = file_set(name, path, [], [], classes, space=SPACES[card["kind"]])
    return replace(
        empty,
        ids=ids,
        labels=np.asarray(labels, np.int64),
        read=ReadTar(tuple(_places(path, [row["file"] for row in rows]))),
        extra=facts,
        fingerprint=fingerprint(row["sha256"] for row in rows),
    )


def _places(root: Path, files: Sequence[str]) -> Iterator[tuple[Path, int, int]]:
    """Where members of tar files lie, from names such as "shards/000000.tar#00001.jpg"."""
    held: dict[str, dict[str, tuple[int, int]]] = {}
    for file in files:
        archive, _, member = file.partition("#")
        if archive not in held:
            with tarfile.open(root / archive) as tar:
                held[archive] = {m.name: (m.offset_data, m.size) for m in tar}
        yield (root / archive, *held[archive][member])
