"""Cut files into parts of a limited size, and join them again; every part is checked by its hash.

    python tools/parts.py cut FOLDER MIB PATH ...     FOLDER/NAME.part00 ..., FOLDER/NAME.parts.json
    python tools/parts.py join FOLDER OUT             what was cut, under OUT

Nothing is encoded anew: the files go into one uncompressed archive, and the archive is cut. A part
that is missing or damaged is named.
"""

import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from counterlens.errors import CounterlensError, InputError
from counterlens.runs import atomic, write_json

MIB = 2**20
LIST = ".parts.json"


def cut(files: Mapping[str, Path], folder: Path, *, name: str, mib: float) -> list[Path]:
    """Write files (by their names in the archive) as parts; returns the parts.

    Args:
        mib: most MiB of a part.
    """
    size = int(mib * MIB)
    if size < 1:
        raise InputError(f"parts of {mib} MiB were asked for, expected more than 0.")
    for path in files.values():
        if not path.is_file():
            raise InputError(f"{path} is no file, expected one to be cut.")
    folder.mkdir(parents=True, exist_ok=True)
    writer = _Cutter(folder, name, size)
    with tarfile.open(fileobj=writer, mode="w|") as archive:  # type: ignore[call-overload]
        for inside, path in files.items():
            archive.add(path, inside, recursive=False)
    return writer.close()


class _Cutter(io.RawIOBase):
    """A file to write to that begins a new part whenever one is full."""

    def __init__(self, folder: Path, name: str, size: int) -> None:
        self.folder, self.label, self.size = folder, name, size
        self.buffer = bytearray()
        self.hashes: list[str] = []

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.buffer += data
        while len(self.buffer) >= self.size:
            self._flush(self.size)
        return len(data)

    def _flush(self, count: int) -> None:
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        with atomic(part_path(self.folder, self.label, len(self.hashes))) as part:
            part.write_bytes(data)
        self.hashes.append(hashlib.sha256(data).hexdigest())

    def close(self) -> list[Path]:  # type: ignore[override]
        """Write what is left and the list of parts."""
        if self.buffer:
            self._flush(len(self.buffer))
        write_json(self.folder / f"{self.label}{LIST}", {"sha256": self.hashes})
        return [part_path(self.folder, self.label, i) for i in range(len(self.hashes))]


def part_path(folder: Path, name: str, number: int) -> Path:
    """Where a part lies.

    >>> part_path(Path("a"), "data", 3).as_posix()
    'a/data.part03'
    """
    return folder / f"{name}.part{number:02d}"


def join(folder: Path, out: Path) -> list[str]:
    """Write what the parts of a folder hold to `out`; returns the names of the files."""
    lists = sorted(folder.glob(f"*{LIST}"))
    if not lists:
        raise InputError(f"{folder} has no parts: no file *{LIST} came.")
    names: list[str] = []
    for file in lists:
        name = file.name.removesuffix(LIST)
        hashes = json.loads(file.read_text())["sha256"]
        parts = [part_path(folder, name, i) for i in range(len(hashes))]
        missing = [path.name for path in parts if not path.is_file()]
        if missing:
            raise InputError(f"{folder} lacks {', '.join(missing)} of {len(parts)} parts.")
        stream = _Joined(_checked(parts, hashes))
        with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
            for entry in archive:
                archive.extract(entry, out, filter="data")
                names.append(entry.name)
    return names


def _checked(parts: Sequence[Path], hashes: Sequence[str]) -> Iterator[bytes]:
    """The bytes of each part, refused where they are not those that were written."""
    for path, wanted in zip(parts, hashes, strict=True):
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != wanted:
            raise InputError(f"{path} is damaged: its hash is not that of the part that was cut.")
        yield data


class _Joined(io.RawIOBase):
    """A file to read from, made of pieces."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.pieces, self.buffer = iter(pieces), b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self.buffer) < size:
            piece = next(self.pieces, None)
            if piece is None:
                break
            self.buffer += piece
        size = len(self.buffer) if size < 0 else size
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data


def main(arguments: Sequence[str]) -> int:
    """The command."""
    try:
        match arguments:
            case ["cut", folder, mib, *paths] if paths:
                files = {Path(path).name: Path(path) for path in paths}
                for part in cut(files, Path(folder), name="files", mib=float(mib)):
                    print(part)
            case ["join", folder, out]:
                for name in join(Path(folder), Path(out)):
                    print(Path(out) / name)
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except (CounterlensError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
