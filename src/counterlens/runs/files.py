"""Files that are either whole or not there."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; move it into place once the block ends well.

    The data is on disk before the rename, so a crash leaves the old file or the new one,
    never a torn one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        with part.open("rb+") as written:
            os.fsync(written.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole text file or nothing."""
    with atomic(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    """Write JSON with a stable layout; NaN and infinity are errors, never written."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False, default=_plain)
    write_text(path, text + "\n")


def read_json(path: Path) -> Any:
    """Read one JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def append_line(path: Path, row: Mapping[str, object]) -> None:
    """Append one JSON line; a reader ignores a torn last line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json_line(row) + "\n")


def json_line(row: Mapping[str, object]) -> str:
    """One JSON object on one line; NaN and infinity are errors, never written."""
    return json.dumps(dict(row), ensure_ascii=False, allow_nan=False, default=_plain)


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
