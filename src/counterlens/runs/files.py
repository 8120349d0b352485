"""Files: written whole or not at all, and read so that a damaged one is named in one line."""

import errno
import hashlib
import json
import math
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from counterlens.errors import CounterlensError, DiskFull, InputError
from counterlens.runs.lock import check_present

LONGEST = 120
"""Bytes of a name that is made of other people's words; file systems allow 255 in all."""
_LITTLE = 1 << 16  # bytes that are left of a disk that is full
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode), "a device"),
)


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; move it into place once the block ends well.

    The data is on disk before the rename, so a crash leaves the old file or the new one,
    never a torn one. A run folder that was removed while it was written is not made again.
    """
    check_present(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{short_name(path.name)}.{os.getpid()}.part")
    try:
        yield part
        with part.open("rb+") as written:
            os.fsync(written.fileno())
        part.replace(path)
    except Exception as error:
        if _no_space(path, error):
            raise DiskFull(
                f"the disk is full: {path} could not be written. Free some space, then go on "
                "with resume=True."
            ) from error
        raise
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _no_space(path: Path, error: Exception) -> bool:
    """Whether a write failed for want of space; libraries say so in many ways."""
    if isinstance(error, CounterlensError):
        return False
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    try:  # NumPy, torch and safetensors lose the system's error number
        return shutil.disk_usage(path.parent).free < _LITTLE
    except OSError:
        return False


def write_text(path: Path, text: str) -> None:
    """Write a whole text file or nothing."""
    with atomic(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    """Write JSON with a stable layout; NaN and infinity are errors, never written."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False, default=_plain)
    write_text(path, text + "\n")


def plain_file(path: str | Path, *, what: str = "file") -> os.stat_result:
    """Facts of a plain file; anything else is refused before it is opened.

    Reading a FIFO waits for a writer, and reading a device such as /dev/zero may never end.
    """
    try:
        facts = os.stat(path)  # noqa: PTH116  # paths come by the million
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {what} {str(path)!r}: {why}.") from None
    if not stat.S_ISREG(facts.st_mode):
        kind = next((words for test, words in _KINDS if test(facts.st_mode)), "no plain file")
        raise InputError(f"cannot read {what} {str(path)!r}: it is {kind}, expected a plain file.")
    return facts


def user_path(text: str | Path) -> Path:
    """A path with ~ filled in; a user whom this machine does not know is left as text."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def inside(folder: Path, name: str | Path) -> Path:
    """A file of a folder by its path in it; one that lies outside, also by a link, is refused.

    A run or a frozen set may come from someone else: a row that names `../../secret.png`, or a
    link that leads there, must not be read, shown or copied.
    """
    path = folder / name
    try:
        whole = Path(os.path.realpath(path))
        within = whole.is_relative_to(os.path.realpath(folder))
    except (OSError, ValueError):  # for instance a NUL in the name
        within = False
    if not within:
        raise InputError(
            f"{folder} names the file {str(name)!r}, which lies outside of it. Its files never "
            "leave the folder: it was changed, do not trust it."
        )
    return path


def file_bytes(path: str | Path, *, what: str = "file") -> bytes:
    """The bytes of a plain file; one that cannot be read is named."""
    plain_file(path, what=what)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {what} {str(path)!r}: {error.strerror or error}.") from None


def read_text(path: Path) -> str:
    """The text of a plain file, UTF-8 with or without a mark at its start."""
    try:
        return file_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text. Save it as UTF-8.") from None


def parse_json(text: str, where: object) -> Any:
    """A JSON value; `where` says in an error which file or line it came from."""
    try:
        return json.loads(text)
    except RecursionError:
        raise InputError(f"{where}: not JSON that can be read, it nests too deeply.") from None
    except ValueError as error:
        raise InputError(f"{where}: not JSON, or cut short ({error}).") from None


def read_json(path: Path) -> Any:
    """Read one JSON file."""
    return parse_json(read_text(path), path)


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds one object."""
    return _object(read_json(path), path)


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file of JSON lines, each with its place ("FILE, line 3") for errors.

    Lines end at a line feed alone: U+2028 and its kind may stand inside a JSON string.
    """
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, _object(parse_json(line, where), where)


def _object(value: object, where: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected an object {{…}}, not {type(value).__name__}.")
    return value


def append_line(path: Path, row: Mapping[str, object]) -> None:
    """Append one JSON line; a reader ignores a torn last line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json_line(row) + "\n")


def json_line(row: Mapping[str, object]) -> str:
    """One JSON object on one line; NaN and infinity are errors, never written."""
    return json.dumps(dict(row), ensure_ascii=False, allow_nan=False, default=_plain)


def short_name(text: str, most: int = LONGEST) -> str:
    """A name of at most so many bytes; one that is cut ends in a hash of the whole.

    >>> short_name("cat"), short_name("猫" * 120, 24)
    ('cat', '猫猫猫猫猫-9c374a51')
    """
    data = text.encode("utf-8", "surrogateescape")
    if len(data) <= most:
        return text
    start = data[: most - 9].decode("utf-8", "ignore")
    return f"{start}-{hashlib.sha256(data).hexdigest()[:8]}"


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    item = getattr(value, "item", None)  # NumPy and torch scalars
    if callable(item):
        plain = item()
        return None if isinstance(plain, float) and not math.isfinite(plain) else plain
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
