"""Verdicts in SQLite: many writers at once, nothing said is lost, nothing is overwritten.

Every verdict is a row of its own; a reviewer who thinks again adds one, and the latest counts. The
file lies beside the run, which is never changed. Write-ahead logging lets readers and a writer
work at once; a verdict is on disk before `add` returns.
"""

import json
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from counterlens.errors import InputError
from counterlens.runs import atomic, parse_json, read_lines

VERDICTS = ("accept", "reject", "unsure")
ROLES = ("reviewer", "adjudicator")
TAGS = ("texture", "background", "over-generalisation", "fickleness")
"""Why classifiers fail, as section 4 of nae2021 tells them apart; other words are allowed."""
_PATIENCE = 60.0  # seconds to wait for other writers
_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS items (place INTEGER PRIMARY KEY, item TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS verdicts (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    mark TEXT NOT NULL UNIQUE,
    item TEXT NOT NULL REFERENCES items (item),
    reviewer TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('reviewer', 'adjudicator')),
    verdict TEXT NOT NULL CHECK (verdict IN ('accept', 'reject', 'unsure')),
    reason TEXT NOT NULL,
    tags TEXT NOT NULL,
    at TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS by_item ON verdicts (item, reviewer, role);
CREATE TABLE IF NOT EXISTS work (reviewer TEXT, place INTEGER, PRIMARY KEY (reviewer, place))
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gold (item TEXT PRIMARY KEY REFERENCES items (item),
    verdict TEXT NOT NULL);
"""
_KNOWN = "SELECT 1 FROM items WHERE item = ?"


@dataclass(frozen=True)
class Verdict:
    """What one person said of one image.

    Args:
        item: the image's id.
        reviewer: who said it.
        verdict: accept, reject or unsure.
        reason: in words; may be empty.
        tags: failure modes that were seen.
        role: an adjudicator's word settles what reviewers disagree on.
        at: when, ISO 8601.
        mark: a name for this very verdict: the same one taken twice is kept once.
    """

    item: str
    reviewer: str
    verdict: str
    reason: str = ""
    tags: tuple[str, ...] = ()
    role: str = "reviewer"
    at: str = ""
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise InputError(f"got verdict {self.verdict!r}, expected {', '.join(VERDICTS)}.")
        if self.role not in ROLES:
            raise InputError(f"got role {self.role!r}, expected {' or '.join(ROLES)}.")
        if not self.reviewer.strip():
            raise InputError("a verdict has no reviewer's name. Add --reviewer NAME.")


@dataclass(frozen=True)
class Store:
    """The verdicts on the images of one run."""

    path: Path

    @classmethod
    def create(cls, path: Path, items: Sequence[str], *, about: str) -> "Store":
        """Open the store, making it if need be; one that is about other images is refused."""
        store = cls(Path(path))
        store.path.parent.mkdir(parents=True, exist_ok=True)
        with store.writing() as base:
            for statement in _SCHEMA.split(";"):
                base.execute(statement)
            held = base.execute("SELECT value FROM facts WHERE key = 'about'").fetchone()
            if held and held[0] != about:
                raise InputError(
                    f"{path} holds verdicts on other images. Move it away, or review its own run."
                )
            if not held:
                base.execute("INSERT INTO facts VALUES ('about', ?)", (about,))
                base.executemany("INSERT INTO items VALUES (?, ?)", enumerate(items))
        return store

    @classmethod
    def open(cls, path: Path) -> "Store":
        """Open a store that exists."""
        if not Path(path).is_file():
            raise InputError(
                f"there are no verdicts at {path}. Review first: counterlens curate review RUN."
            )
        return cls(Path(path))

    def add(self, verdicts: Verdict | Iterable[Verdict]) -> int:
        """Keep verdicts, all of them or none; returns how many were new.

        Nobody adjudicates an image that they reviewed, nor reviews one that they adjudicated.
        """
        rows = [verdicts] if isinstance(verdicts, Verdict) else list(verdicts)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        with self.writing() as base:
            for row in rows:
                if not base.execute(_KNOWN, (row.item,)).fetchone():
                    raise InputError(
                        f"a verdict is on {row.item!r}, which is not in the shortlist."
                    )
            before = base.total_changes
            base.executemany(
                "INSERT OR IGNORE INTO verdicts "
                "(mark, item, reviewer, role, verdict, reason, tags, at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        *(row.mark, row.item, row.reviewer.strip(), row.role, row.verdict),
                        *(row.reason, json.dumps(list(row.tags)), row.at or now),
                    )
                    for row in rows
                ],
            )
            _refuse_two_roles(base, rows)
            return base.total_changes - before

    def items(self) -> list[str]:
        """Ids of the images, in the order of the shortlist."""
        with self.reading() as base:
            return [row[0] for row in base.execute("SELECT item FROM items ORDER BY place")]

    def history(self) -> list[Verdict]:
        """Everything that was ever said, in the order in which it was kept."""
        with self.reading() as base:
            rows = base.execute(
                "SELECT item, reviewer, verdict, reason, tags, role, at, mark "
                "FROM verdicts ORDER BY number"
            ).fetchall()
        return [
            Verdict(
                item,
                who,
                word,
                reason,
                tuple(map(str, parse_json(tags, self.path))),
                role,
                at,
                mark,
            )
            for item, who, word, reason, tags, role, at, mark in rows
        ]

    def latest(self) -> list[Verdict]:
        """The last word of each person in each role on each image."""
        last = {(v.item, v.reviewer, v.role): v for v in self.history()}
        return list(last.values())

    def pending(self, reviewer: str, *, role: str = "reviewer") -> list[str]:
        """Images on which this person has not spoken yet."""
        judged = {v.item for v in self.history() if v.reviewer == reviewer and v.role == role}
        return [item for item in self.items() if item not in judged]

    def export(self, path: Path) -> int:
        """Write the whole history as JSON lines; returns their number."""
        rows = self.history()
        with atomic(Path(path)) as part:
            lines = (json.dumps(as_row(row), ensure_ascii=False) + "\n" for row in rows)
            part.write_text("".join(lines), encoding="utf-8")
        return len(rows)

    def take(self, path: Path) -> int:
        """Keep the verdicts of a file of JSON lines; returns how many were new."""
        return self.add(read_verdicts(Path(path)))

    def held(self) -> sqlite3.Connection:
        """A connection to keep open, and to close in the end.

        SQLite tidies up when the last connection closes. While this one is open a verdict costs
        one wait for the disk, without it three or four.
        """
        base = sqlite3.connect(self.path, timeout=_PATIENCE, check_same_thread=False)
        base.execute("PRAGMA journal_mode = WAL")
        base.execute("SELECT COUNT(*) FROM facts").fetchone()
        return base

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A connection whose changes are kept together, or not at all."""
        with self._connected() as base:
            base.execute("PRAGMA journal_mode = WAL")
            base.execute("PRAGMA synchronous = FULL")
            base.execute("BEGIN IMMEDIATE")
            try:
                yield base
            except BaseException:
                base.execute("ROLLBACK")
                raise
            base.execute("COMMIT")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection to look with."""
        with self._connected() as base:
            yield base

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            base = sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None)
            try:
                base.execute("PRAGMA foreign_keys = ON")
                yield base
            finally:
                base.close()
        except sqlite3.DatabaseError as error:
            raise InputError(
                f"{self.path} cannot be used as a store of verdicts: {error}."
            ) from None


def same_person(name: str) -> str:
    """A name as it is compared: case and spaces around it do not make another person.

    >>> same_person(" Ann") == same_person("ann")
    True
    """
    return " ".join(name.split()).casefold()


def _refuse_two_roles(base: sqlite3.Connection, rows: Sequence[Verdict]) -> None:
    """Refuse verdicts by which somebody would be reviewer and adjudicator of one image."""
    query = "SELECT DISTINCT reviewer FROM verdicts WHERE item = ? AND role != ?"
    for row in rows:
        others = [same_person(name) for (name,) in base.execute(query, (row.item, row.role))]
        if same_person(row.reviewer) in others:
            raise InputError(
                f"{row.reviewer} would be both reviewer and adjudicator of {row.item!r}. Someone "
                "who did not review the image has to adjudicate it: --adjudicate --reviewer OTHER."
            )


def store_path(folder: Path) -> Path:
    """Where the verdicts on a run lie: beside its folder, for the run itself is never changed."""
    folder = Path(folder).resolve()
    return folder.with_name(f"{folder.name}.review.sqlite")


def as_row(verdict: Verdict) -> dict[str, object]:
    """The form in which a verdict is exported."""
    return {
        "item": verdict.item,
        "reviewer": verdict.reviewer,
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "tags": list(verdict.tags),
        "role": verdict.role,
        "at": verdict.at,
        "mark": verdict.mark,
    }


def read_verdicts(path: Path) -> list[Verdict]:
    """Verdicts of a file of JSON lines, as `export` or a review sheet wrote it."""
    if not path.is_file():
        raise InputError(f"{path} does not exist, expected a file of verdicts, one JSON a line.")
    out = []
    for where, row in read_lines(path):
        try:
            given = {k: str(row[k]) for k in ("item", "reviewer", "verdict")}
            more = {k: str(row[k]) for k in ("reason", "role", "at", "mark") if row.get(k)}
            tags = tuple(str(tag) for tag in row.get("tags", ()))
        except (KeyError, TypeError) as error:
            raise InputError(
                f'{where}: expected {{"item": …, "reviewer": …, "verdict": …}} '
                f"({type(error).__name__})."
            ) from None
        out.append(Verdict(**given, **more, tags=tags))
    return out
