"""Review a shortlist: in the terminal, or on a page whose verdicts come back as a file."""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterlens.errors import InputError
from counterlens.images import read, resize, thumbnail
from counterlens.report.sheet import write_sheet
from counterlens.review import Store, Verdict, agreement, decisions, same_person, store_path
from counterlens.review.shortlist import about, shortlist
from counterlens.runs import Run, inside
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import logger
from counterlens.workflows.curate.options import ReviewOptions

KEYS = {"a": "accept", "r": "reject", "u": "unsure"}
HELP = "a accept · r reject · u unsure, then a reason and #tags · s skip · b back · q quit"
_SIDE = 36  # pixels of a picture drawn in the terminal
_SHEET = 360  # and of one on a page


@takes(ReviewOptions)
def review(run: Path | str | Run | Result, options: ReviewOptions) -> dict[str, Any]:
    """Take verdicts on the shortlist of a curation; returns how far the review has come.

    Args:
        run: result or folder of the curation.
    """
    opened = Run.open(Path(run if isinstance(run, Path | str) else run.folder))
    folder = opened.folder
    rows = shortlist(opened)
    if not opened.done or not rows:
        raise InputError(f"{folder} has no shortlist. Make one: counterlens curate adversarial.")
    ids = [row["id"] for row in rows]
    session = _Session(
        opened,
        Store.create(store_path(folder), ids, about=about(opened)),
        rows,
        options.reviewer.strip(),
        options.adjudicate,
    )
    _act(session, options)
    state = progress(session.store, ids)
    log = logger(options)
    log(state["summary"])
    log(f"next: {_next_step(state['outcomes'], opened)}")
    return state


@dataclass(frozen=True)
class _Session:
    """One person at one shortlist.

    Args:
        run: the curation.
        store: where verdicts are.
        rows: the shortlist.
        reviewer: who judges.
        adjudicate: whether contested images alone are judged, to settle them.
    """

    run: Run
    store: Store
    rows: Sequence[dict[str, Any]]
    reviewer: str
    adjudicate: bool

    @property
    def role(self) -> str:
        """What the person's verdicts count as."""
        return "adjudicator" if self.adjudicate else "reviewer"


def _act(session: _Session, options: ReviewOptions) -> None:
    """Do what was asked for: files that come and go, or questions in the terminal."""
    store, log = session.store, logger(options)
    files = options.take or options.sheet or options.export or options.status
    if (not files or (options.sheet and session.adjudicate)) and not session.reviewer:
        raise InputError("nobody is named. Say who you are: reviewer=NAME.")
    for path in options.take:
        log(f"{store.take(path)} new verdicts from {path}")
    if options.sheet is not None:
        _write_sheet(session, options.sheet)
        log(f"open {options.sheet} in a browser; its verdicts come back with --take FILE.jsonl")
    if options.export is not None:
        log(f"{store.export(options.export)} verdicts written to {options.export}")
    if not files:
        _ask_all(session, sys.stdin)


def _next_step(outcomes: Mapping[str, int], opened: Run) -> str:
    run = opened.folder
    command = f"counterlens curate review {run} --reviewer NAME"
    if outcomes.get("pending"):
        return f"{command} ({outcomes['pending']} images have no verdict yet)"
    if outcomes.get("contested"):
        return (
            f"{command} --adjudicate, by somebody who reviewed none of the "
            f"{outcomes['contested']} contested images"
        )
    if opened.manifest.get("kind") == "labels":
        return f"counterlens curate relabel {run} --to FILE.csv"
    return f"counterlens curate freeze {run} --out FOLDER"


def _write_sheet(session: _Session, path: Path) -> None:
    """A page with the shortlist, or with what this adjudicator may settle and how others judged."""
    rows, store = session.rows, session.store
    others: list[list[str]] = [[] for _ in rows]
    if session.adjudicate:
        rows = _contested(store, rows, session.reviewer)
        others = [_others(store, row["id"]) for row in rows]
    images = [thumbnail(read(inside(session.run.folder, row["image"])), _SHEET) for row in rows]
    write_sheet(
        path,
        session.run,
        rows,
        images,
        reviewer=session.reviewer,
        role=session.role,
        others=others,
    )


def _contested(
    store: Store, rows: Sequence[dict[str, Any]], adjudicator: str
) -> list[dict[str, Any]]:
    """Contested images that this person did not review; it is an error if there are none."""
    decided = decisions([row["id"] for row in rows], store.latest())
    contested = [row for row in rows if decided[row["id"]].outcome == "contested"]
    free = [
        row
        for row in contested
        if same_person(adjudicator) not in map(same_person, decided[row["id"]].verdicts)
    ]
    if contested and not free:
        raise InputError(
            f"{adjudicator} reviewed all {len(contested)} contested images and cannot adjudicate "
            "them. Somebody else has to: adjudicate=True with reviewer=OTHER."
        )
    if not free:
        raise InputError("no image is contested, so there is nothing to adjudicate.")
    return free


def progress(store: Store, ids: Sequence[str]) -> dict[str, Any]:
    """Where a review stands: outcomes, people, agreement."""
    latest = store.latest()
    outcomes = Counter(d.outcome for d in decisions(ids, latest).values())
    people = Counter(v.reviewer for v in latest if v.role == "reviewer")
    numbers = agreement(ids, latest) if people else {}
    kappa = numbers.get("review.fleiss")
    words = ("accept", "reject", "contested", "pending")
    summary = ", ".join(f"{outcomes[w]} {w}" for w in words)
    if kappa is not None and kappa.value is not None:
        summary += f"; Fleiss' kappa {kappa.value:.2f} [{kappa.low:.2f}, {kappa.high:.2f}]"
    return {
        "store": str(store.path),
        "images": len(ids),
        "outcomes": dict(outcomes),
        "reviewers": dict(people),
        "agreement": {key: number.to_json() for key, number in numbers.items()},
        "summary": summary,
    }


def _ask_all(session: _Session, answers: Iterable[str]) -> None:
    """Go through the images this person has not judged; each verdict is stored at once."""
    store, rows = session.store, session.rows
    if session.adjudicate:
        queue = _contested(store, rows, session.reviewer)
    else:
        todo = set(store.pending(session.reviewer, role=session.role))
        queue = [row for row in rows if row["id"] in todo]
    print(HELP, file=sys.stderr)
    place, lines = 0, iter(answers)
    while place < len(queue):
        row = queue[place]
        others = _others(store, row["id"]) if session.adjudicate else []
        _show(session.run, row, place, len(queue), others)
        line = next(lines, None)
        if line is None or line.strip() == "q":
            return
        word = line.strip()
        if word in ("s", "b"):
            place = place + 1 if word == "s" else max(0, place - 1)
            continue
        verdict = parse(word, row["id"], session.reviewer, session.role)
        if verdict is None:
            print(HELP, file=sys.stderr)
            continue
        store.add(verdict)
        place += 1


def parse(text: str, item: str, reviewer: str, role: str = "reviewer") -> Verdict | None:
    """A line such as "r blurred #background" as a verdict; None where it is none.

    >>> v = parse("r too dark #background", "a.png", "ann")
    >>> v.verdict, v.reason, v.tags
    ('reject', 'too dark', ('background',))
    """
    key, _, rest = text.partition(" ")
    word = KEYS.get(key.lower(), key.lower())
    if word not in KEYS.values():
        return None
    pieces = rest.split()
    tags = tuple(piece[1:] for piece in pieces if piece.startswith("#") and len(piece) > 1)
    reason = " ".join(piece for piece in pieces if not piece.startswith("#"))
    return Verdict(item, reviewer, word, reason, tags, role)


def _others(store: Store, item: str) -> list[str]:
    return [
        f"{v.reviewer}: {v.verdict} {v.reason}".rstrip()
        for v in store.latest()
        if v.item == item and v.role == "reviewer"
    ]


def _show(run: Run, row: dict[str, Any], place: int, count: int, others: Sequence[str]) -> None:
    path = inside(run.folder, row["image"])
    if sys.stderr.isatty():
        print(draw(path), file=sys.stderr)
    print(f"[{place + 1}/{count}] {path}", file=sys.stderr)
    print(
        f"  is it {row['label']}? the filter says {row['answer']} "
        f"({row['confidence']:.0%}); {row['id']}",
        file=sys.stderr,
    )
    for line in others:
        print(f"  {line}", file=sys.stderr)


def draw(path: Path, *, side: int = _SIDE) -> str:
    """A picture as coloured half blocks, two pixels a character."""
    pixels = read(path)
    height, width = pixels.shape[:2]
    scale = side / max(height, width)
    rows, columns = max(2, round(height * scale) // 2 * 2), max(1, round(width * scale))
    small = resize(pixels, (rows, columns), "box")
    lines = []
    for y in range(0, rows, 2):
        cells = []
        for x in range(columns):
            upper, lower = (";".join(map(str, small[y + k, x].tolist())) for k in (0, 1))
            cells.append(f"\033[38;2;{upper}m\033[48;2;{lower}m▀")
        lines.append("".join(cells) + "\033[0m")
    return "\n".join(lines)
