"""Who judges what: split and overlapping work, the next images of a person, gold items.

Images are given out by a hash of the seed and their id, so that the same plan comes out again.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from counterlens.errors import InputError
from counterlens.review.store import VERDICTS, Store, same_person
from counterlens.runs import Number

_LATEST = (
    "(SELECT verdict FROM verdicts v WHERE v.item = i.item AND v.reviewer = :who "
    "AND v.role = :role ORDER BY number DESC LIMIT 1)"
)
_MINE = (
    "(NOT EXISTS (SELECT 1 FROM work w WHERE w.reviewer = :who) OR "
    "EXISTS (SELECT 1 FROM work w WHERE w.reviewer = :who AND w.place = i.place))"
)


@dataclass(frozen=True)
class Task:
    """One image that a person judges.

    Args:
        place: in the shortlist; the next tasks are those behind a place.
        verdict: what this person said last; empty where nothing yet.
    """

    place: int
    item: str
    verdict: str = ""


def share_out(
    store: Store, reviewers: Sequence[str], *, overlap: float = 0.2, seed: int = 0
) -> dict[str, int]:
    """Give every image to one reviewer, and a share of them to all; returns how many each got.

    Args:
        overlap: share of the images that everybody judges, by which agreement is measured.
    """
    names = list(dict.fromkeys(" ".join(name.split()) for name in reviewers if name.strip()))
    if len(names) < 2 or len({same_person(name) for name in names}) < len(names):
        raise InputError(f"got {len(names)} reviewers, expected two different names or more.")
    if not 0 <= overlap <= 1:
        raise InputError(f"the overlap is {overlap:g}, expected a share in [0, 1].")
    given: dict[str, list[int]] = {name: [] for name in names}
    for place, item in enumerate(store.items()):
        draw, turn = _draws(f"{seed} {item}")
        for name in names if draw < overlap else (names[turn % len(names)],):
            given[name].append(place)
    with store.writing() as base:
        base.execute("DELETE FROM work")
        rows = [(name, place) for name, places in given.items() for place in places]
        base.executemany("INSERT INTO work VALUES (?, ?)", rows)
    return {name: len(places) for name, places in given.items()}


def shares(store: Store) -> dict[str, int]:
    """How many images each reviewer was given; empty where everybody judges everything."""
    with store.reading() as base:
        counts = base.execute("SELECT reviewer, COUNT(*) FROM work GROUP BY reviewer").fetchall()
    return dict(counts)


def tasks(
    store: Store,
    reviewer: str,
    *,
    role: str = "reviewer",
    after: int = -1,
    most: int = 20,
    judged: bool = False,
) -> list[Task]:
    """The next images of a person, behind a place.

    Args:
        judged: also those that this person has judged.
    """
    open_only = "" if judged else f" AND {_LATEST} IS NULL"
    query = (
        f"SELECT i.place, i.item, {_LATEST} FROM items i WHERE i.place > :after AND {_MINE}"
        f"{open_only} ORDER BY i.place LIMIT :most"
    )
    given = {"who": reviewer, "role": role, "after": after, "most": most}
    with store.reading() as base:
        return [Task(p, item, note or "") for p, item, note in base.execute(query, given)]


def places(store: Store, reviewer: str) -> list[int]:
    """Places of all images of a person."""
    with store.reading() as base:
        rows = base.execute(
            f"SELECT i.place FROM items i WHERE {_MINE} ORDER BY i.place", {"who": reviewer}
        )
        return [place for (place,) in rows]


def counts(store: Store, reviewer: str, *, role: str = "reviewer") -> tuple[int, int]:
    """How many images of a person are judged, of how many."""
    given = {"who": reviewer, "role": role}
    with store.reading() as base:
        done = base.execute(
            "SELECT COUNT(DISTINCT item) FROM verdicts WHERE reviewer = :who AND role = :role",
            given,
        ).fetchone()[0]
        own = base.execute("SELECT COUNT(*) FROM work WHERE reviewer = :who", given).fetchone()[0]
        every = base.execute("SELECT COUNT(*) FROM items").fetchone()[0]
    return done, own or every


def spelled(store: Store, name: str) -> str:
    """A name as the store knows it already, so that one person is not two."""
    with store.reading() as base:
        rows = base.execute(
            "SELECT DISTINCT reviewer FROM verdicts UNION SELECT DISTINCT reviewer FROM work"
        ).fetchall()
    known = [text for (text,) in rows if same_person(text) == same_person(name)]
    return known[0] if known else " ".join(name.split())


def set_gold(store: Store, answers: Mapping[str, str]) -> int:
    """Name images whose verdict is known, in place of those named before."""
    known = set(store.items())
    for item, verdict in answers.items():
        if item not in known:
            raise InputError(f"gold item {item!r} is not in the shortlist.")
        if verdict not in VERDICTS:
            raise InputError(f"{item}: got {verdict!r}, expected {', '.join(VERDICTS)}.")
    with store.writing() as base:
        base.execute("DELETE FROM gold")
        base.executemany("INSERT INTO gold VALUES (?, ?)", list(answers.items()))
    return len(answers)


def gold(store: Store) -> dict[str, str]:
    """The known verdicts by image."""
    with store.reading() as base:
        return dict(base.execute("SELECT item, verdict FROM gold").fetchall())


def gold_numbers(store: Store) -> dict[str, Number]:
    """How often each reviewer's last word on a gold item is the known verdict."""
    known = gold(store)
    right: dict[str, list[bool]] = {}
    for verdict in store.latest():
        if verdict.role == "reviewer" and verdict.item in known:
            right.setdefault(verdict.reviewer, []).append(verdict.verdict == known[verdict.item])
    return {
        f"review.{name}.gold": Number.share(
            sum(flags), len(flags), f"last word of {name} on {len(flags)} gold items is right"
        )
        for name, flags in sorted(right.items())
    }


def _draws(text: str) -> tuple[float, int]:
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64, int.from_bytes(digest[8:16], "big")
