"""`wds:SHARDS`: WebDataset shards, read where they lie.

A shard is a tar file whose members share a key: `0001.jpg` the picture, and `0001.cls` (a number or
a name), `0001.txt` (a name) or `0001.json` with a `label` the class. Only names and places are
read when the set is opened, so that a set larger than memory is streamed; a picture is read by its
place in the shard. SHARDS is a file, a folder of .tar files, or a pattern such as s-{000..009}.tar.
"""

import json
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

from counterlens import images
from counterlens.data.sets import fingerprint, unique
from counterlens.data.sources.items import ItemLabel, numbered_labels
from counterlens.errors import InputError, first_line
from counterlens.images import SUFFIXES, ImageSet, Pixels, Planes
from counterlens.types import Preprocess

LABELS = (".cls", ".txt", ".json")
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
LARGEST = 1 << 20
"""Bytes of a label that is read at most."""


@dataclass(frozen=True)
class ReadShards:
    """Picture i by its shard, its place and its length."""

    shards: tuple[str, ...]
    places: tuple[tuple[int, int, int], ...]
    names: tuple[str, ...]

    def encoded(self, i: int) -> bytes:
        """The bytes of the picture as the shard holds them."""
        shard, start, length = self.places[i]
        try:
            with Path(self.shards[shard]).open("rb") as file:
                file.seek(start)
                return file.read(length)
        except OSError as error:
            raise InputError(f"{self.shards[shard]} cannot be read ({error.strerror}).") from None

    def __call__(self, i: int) -> Pixels:
        return images.decode(self.encoded(i), name=self.names[i])

    def prepared(self, i: int, preprocess: Preprocess, channels: int) -> Planes:
        """The picture as a classifier's input."""
        data = self.encoded(i)
        return images.decode_prepared(data, preprocess, channels=channels, name=self.names[i])


def expanded(pattern: str) -> list[str]:
    """The files that a pattern names.

    >>> expanded("s-{08..10}.tar"), expanded("s.tar")
    (['s-08.tar', 's-09.tar', 's-10.tar'], ['s.tar'])
    """
    match = _RANGE.search(pattern)
    if not match:
        return [pattern]
    first, last = match[1], match[2]
    names = []
    for number in range(int(first), int(last) + 1):
        text = str(number).zfill(len(first))
        names += expanded(pattern[: match.start()] + text + pattern[match.end() :])
    return names


def open_shards(text: str, *, name: str) -> ImageSet:
    """The pictures of some shards as one set."""
    folder = Path(text)
    paths = sorted(map(str, folder.glob("*.tar"))) if folder.is_dir() else expanded(text)
    if not paths:
        raise InputError(f"{text} holds no .tar files, expected wds:FOLDER, with shards in it.")
    places: list[tuple[int, int, int]] = []
    names: list[str] = []
    given: list[ItemLabel] = []
    for number, path in enumerate(paths):
        for key, start, length, label in _index(Path(path)):
            places.append((number, start, length))
            names.append(f"{Path(path).name}/{key}")
            given.append(label)
    if not places:
        raise InputError(f"{text} holds no pictures, expected members such as 0001.jpg, 0001.cls.")
    labels, classes = numbered_labels(given, None, name)
    ids = unique(names)
    facts = zip(ids, places, given, strict=True)
    lines = (f"{key}\t{length}\t{label}" for key, (_, _, length), label in facts)
    return ImageSet(
        name=name,
        ids=ids,
        labels=labels,
        classes=classes,
        read=ReadShards(tuple(paths), tuple(places), tuple(names)),
        fingerprint=fingerprint(lines),
    )


def _index(path: Path) -> list[tuple[str, int, int, ItemLabel]]:
    """Key, place, length and label of every picture of a shard, in their order."""
    pictures: dict[str, tuple[int, int]] = {}
    labels: dict[str, ItemLabel] = {}
    try:
        with tarfile.open(path, "r:") as stored:
            for member in stored:
                if not member.isfile():
                    continue
                key, ending = _parted(member.name)
                if ending in SUFFIXES:
                    pictures[key] = (member.offset_data, member.size)
                elif ending in LABELS and member.size <= LARGEST:
                    file = stored.extractfile(member)
                    label = _label(file.read() if file else b"", ending, f"{path}/{member.name}")
                    if label is not None:
                        labels[key] = label
    except FileNotFoundError:
        raise InputError(f"{path} does not exist, expected a WebDataset shard.") from None
    except (tarfile.TarError, OSError) as error:
        raise InputError(
            f"{path} is no whole uncompressed tar file ({first_line(error, 90)}). Shards are read "
            "in place, so they must not be compressed."
        ) from None
    return [(key, *place, labels.get(key)) for key, place in pictures.items()]


def _parted(member: str) -> tuple[str, str]:
    """Key and ending of a member: the ending begins at the first dot of its last part."""
    head, slash, last = member.rpartition("/")
    stem, dot, ending = last.partition(".")
    key = f"{head}{slash}{stem}"
    return key, f".{ending.lower()}" if dot else ""


def _label(data: bytes, ending: str, where: str) -> ItemLabel:
    try:
        text = data.decode("utf-8").strip()
        if ending == ".json":
            facts = json.loads(text)
            value = facts.get("label") if isinstance(facts, dict) else None
            return value if isinstance(value, int | str) else None
    except ValueError as error:
        raise InputError(f"{where} is no label ({first_line(error, 60)}).") from None
    return int(text) if text.isdigit() else text or None
