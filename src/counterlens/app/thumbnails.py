"""Small pictures, kept in SQLite: one file, read by key, made once."""

import hashlib
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_SCHEMA = "CREATE TABLE IF NOT EXISTS thumbnails (key BLOB PRIMARY KEY, data BLOB) WITHOUT ROWID"


@dataclass(frozen=True)
class Thumbnails:
    """A cache of thumbnails; with an empty path it lives in memory.

    A lost cache is made again, so nothing waits for the disk.
    """

    path: str
    local: threading.local = field(default_factory=threading.local, repr=False)
    held: dict[bytes, bytes] = field(default_factory=dict, repr=False)

    def get(self, key: str, make: Callable[[], bytes]) -> bytes:
        """The picture kept under a key, else the one that `make` gives, kept from then on."""
        digest = hashlib.sha256(key.encode()).digest()
        if not self.path:
            if digest not in self.held:
                self.held[digest] = make()
            return self.held[digest]
        try:
            base = self._base()
            row = base.execute("SELECT data FROM thumbnails WHERE key = ?", (digest,)).fetchone()
        except sqlite3.Error:
            return make()
        if row is not None:
            return bytes(row[0])
        data = make()
        try:
            base.execute("INSERT OR REPLACE INTO thumbnails VALUES (?, ?)", (digest, data))
        except sqlite3.Error:  # a full or locked disk: the picture is shown all the same
            return data
        return data

    def _base(self) -> sqlite3.Connection:
        base: sqlite3.Connection | None = getattr(self.local, "base", None)
        if base is None:
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            base = sqlite3.connect(self.path, timeout=5, isolation_level=None)
            base.execute("PRAGMA journal_mode = WAL")
            base.execute("PRAGMA synchronous = OFF")
            base.execute(_SCHEMA)
            self.local.base = base
        return base


def file_key(path: Path, side: int) -> str:
    """What a thumbnail of a file is kept under: a changed file has another key."""
    facts = path.stat()
    return f"{path} {facts.st_size} {facts.st_mtime_ns} {side}"
