"""Packed sets: all encoded pictures of a set in one .npz file.

Arrays: `encoded` (uint8, one encoded picture after another), `offsets` (int64, n + 1), `labels`
(int64), `classes` (str); optional `ids` (str or bytes, n), `space` (str) and other arrays of
n rows, which become `extra`; a licence, author or source may also be one text for all pictures.
Files written by `numpy.savez` are memory-mapped, so that worker processes share one copy;
compressed ones are unpacked once per process.
"""

import functools
import hashlib
import mmap
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from counterlens.data.provenance import NAMES, pooled_provenance, stated
from counterlens.data.sets import check_range, fingerprint, unique
from counterlens.errors import InputError, first_line
from counterlens.images import ImageSet, Pixels, Planes, decode, decode_prepared, webp_bytes
from counterlens.runs import atomic
from counterlens.types import Preprocess

LAYOUT = ("encoded", "offsets", "labels", "classes")


@dataclass(frozen=True)
class ReadPack:
    """Picture i of a packed file; pickles as path and offsets, the bytes stay in the file."""

    path: Path
    stamp: tuple[int, int]
    offsets: Int64[np.ndarray, "n"]

    def __call__(self, i: int) -> Pixels:
        return decode(self._data(i), name=f"{self.path}, picture {i}")

    def prepared(self, i: int, preprocess: Preprocess, channels: int) -> Planes:
        name = f"{self.path}, picture {i}"
        return decode_prepared(self._data(i), preprocess, channels=channels, name=name)

    def encoded(self, i: int) -> bytes:
        return self._data(i)

    def _data(self, i: int) -> bytes:
        start, stop = int(self.offsets[i]), int(self.offsets[i + 1])
        return bytes(buffer(self.path, self.stamp)[start:stop])


@dataclass(frozen=True)
class ReadJoined:
    """Picture i of several packs, one after another."""

    parts: tuple[ReadPack, ...]
    starts: tuple[int, ...]

    def __call__(self, i: int) -> Pixels:
        part = self._part(i)
        return self.parts[part](i - self.starts[part])

    def prepared(self, i: int, preprocess: Preprocess, channels: int) -> Planes:
        part = self._part(i)
        return self.parts[part].prepared(i - self.starts[part], preprocess, channels)

    def encoded(self, i: int) -> bytes:
        part = self._part(i)
        return self.parts[part].encoded(i - self.starts[part])

    def _part(self, i: int) -> int:
        return int(np.searchsorted(self.starts, i, side="right")) - 1


def open_packs(text: str, *, name: str) -> ImageSet:
    """`A.npz`, or `A.npz+B.npz`: parts of one set with the same classes."""
    if Path(text).exists():  # a file whose own name has a plus in it
        return open_pack(Path(text), name=name)
    parts = [open_pack(Path(part), name=name) for part in text.split("+")]
    return join(parts, text) if len(parts) > 1 else parts[0]


def open_pack(path: Path, *, name: str) -> ImageSet:
    """One packed file."""
    if not path.is_file():
        raise InputError(f"packed file {path} does not exist, expected FILE.npz.")
    arrays = load_npz(path)
    missing = [key for key in LAYOUT if key not in arrays and key != "encoded"]
    if missing or not _has_member(path, "encoded"):
        raise InputError(
            f"{path} is not a packed set: it has no {' or '.join(missing or ['encoded'])}, "
            f"expected arrays {', '.join(LAYOUT)}."
        )
    offsets = arrays["offsets"].astype(np.int64)
    labels = arrays["labels"].astype(np.int64)
    classes = tuple(str(c) for c in arrays["classes"])
    if len(offsets) != len(labels) + 1 or (np.diff(offsets) < 0).any() or offsets[0] != 0:
        raise InputError(f"{path} is damaged: its offsets do not fit {len(labels)} pictures.")
    stamp = (path.stat().st_mtime_ns, path.stat().st_size)
    if int(offsets[-1]) != len(buffer(path, stamp)):
        raise InputError(f"{path} is damaged: its offsets do not fit its encoded pictures.")
    check_range(labels, len(classes), str(path))
    rows = len(labels)
    ids = [f"{path.stem}/{i}" for i in range(rows)]
    if "ids" in arrays:
        ids = [i.decode() if isinstance(i, bytes) else str(i) for i in arrays["ids"].tolist()]
    extra = {
        key: value
        for key, value in arrays.items()
        if key not in (*LAYOUT, "ids", "space") and value.ndim and len(value) == rows
    }
    extra |= {key: np.full(rows, arrays[key]) for key in NAMES & set(arrays) - set(extra)}
    space = str(arrays["space"]) if "space" in arrays else None
    return ImageSet(
        name=name,
        ids=unique(tuple(ids)),
        labels=labels,
        classes=classes,
        read=ReadPack(path, stamp, offsets),
        space=space or ("cue-conflict" if "texture_labels" in extra else None),
        extra=extra,
        fingerprint=_digest(path),
    )


def join(parts: Sequence[ImageSet], text: str) -> ImageSet:
    """Several packs as one set; ids of equal names are made distinct."""
    first = parts[0]
    for part in parts[1:]:
        if part.classes != first.classes:
            raise InputError(
                f"the parts of {text} differ in their classes ({len(first.classes)} and "
                f"{len(part.classes)}), expected parts of one set."
            )
    starts = np.cumsum([0] + [len(part) for part in parts[:-1]])
    keys = [
        key for key in first.extra if key not in NAMES and all(key in part.extra for part in parts)
    ]
    facts = {key: np.concatenate([part.extra[key] for part in parts]) for key in keys}
    return replace(
        first,
        ids=unique([i for part in parts for i in part.ids]),
        labels=np.concatenate([part.labels for part in parts]),
        read=ReadJoined(
            tuple(p.read for p in parts if isinstance(p.read, ReadPack)), tuple(starts.tolist())
        ),
        extra={**facts, **(pooled_provenance(parts) if any(map(stated, parts)) else {})},
        fingerprint=fingerprint(part.fingerprint for part in parts),
    )


def write_pack(
    path: Path,
    pictures: Sequence[Pixels],
    labels: Sequence[int],
    classes: Sequence[str],
    **arrays: np.ndarray,
) -> None:
    """Write pictures as lossless WebP in the packed layout, a whole file or nothing."""
    write_encoded(path, [webp_bytes(picture) for picture in pictures], labels, classes, **arrays)


def write_encoded(
    path: Path,
    encoded: Sequence[bytes],
    labels: Sequence[int],
    classes: Sequence[str],
    **arrays: np.ndarray,
) -> None:
    """Write pictures that are encoded already in the packed layout, a whole file or nothing."""
    contents: Mapping[str, np.ndarray] = {
        "encoded": np.frombuffer(b"".join(encoded), np.uint8),
        "offsets": np.cumsum([0] + [len(data) for data in encoded], dtype=np.int64),
        "labels": np.asarray(labels, np.int64),
        "classes": np.asarray(classes),
        **arrays,
    }
    with atomic(path) as part, zipfile.ZipFile(part, "w") as archive:
        for key, value in contents.items():  # as numpy.savez, but with no time stamp in it
            with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, value, allow_pickle=False)


def load_npz(path: Path, *, leave: tuple[str, ...] = ("encoded",)) -> dict[str, np.ndarray]:
    """The arrays of an .npz file but those left for later; a damaged file is refused by name."""
    try:
        with path.open("rb") as file:  # numpy leaves a damaged file open
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it is one array")
            return {key: archive[key] for key in archive.files if key not in leave}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, struct.error) as error:
        raise InputError(
            f"{path} is not a whole .npz file ({first_line(error, 80)}). Copy or download it again."
        ) from None


@functools.lru_cache(maxsize=16)
def buffer(path: Path, stamp: tuple[int, int]) -> memoryview:
    """The encoded bytes of a pack: mapped from the file where it is not compressed.

    Args:
        path: the packed file.
        stamp: time and size of the file, so that one written anew is mapped anew.
    """
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("encoded.npy")
    if member.compress_type != zipfile.ZIP_STORED:
        return memoryview(load_npz(path, leave=())["encoded"].tobytes())
    with path.open("rb") as file:
        file.seek(member.header_offset)
        header = file.read(30)
        name_length, extra_length = struct.unpack("<HH", header[26:30])
        file.seek(member.header_offset + 30 + name_length + extra_length)
        version = np.lib.format.read_magic(file)
        read_header = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read_header(file)
        if len(shape) != 1 or dtype != np.uint8:
            raise InputError(f"{path} holds encoded pictures as {dtype}, expected uint8 bytes.")
        start = file.tell()
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return mapped[start : start + shape[0]]


def _has_member(path: Path, key: str) -> bool:
    with zipfile.ZipFile(path) as archive:
        return f"{key}.npy" in archive.namelist()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
