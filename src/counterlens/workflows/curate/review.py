"""Review a shortlist: in the terminal, or on a page whose verdicts come back as a file."""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from counterlens.errors import InputError
from counterlens.images import read, resize, thumbnail
from counterlens.report.sheet import write_sheet
from counterlens.review import Store, Verdict, agreement, decisions, same_person, store_path
from counterlens.runs import Run, inside
from counterlens.workflows.curate.shortlist import shortlist

KEYS = {"a": "accept", "r": "reject", "u": "unsure"}
HELP = "a accept · r reject · u unsure, then a reason and #tags · s skip · b back · q quit"
_SIDE = 36  # pixels of a picture drawn in the terminal
_SHEET = 360  # and of one on a page


def review(
    run: Path,
    *,
    reviewer: str = "",
    adjudicate: bool = False,
    sheet: Path | None = None,
    take: Sequence[Path] = (),
    export: Path | None = None,
    status: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Take verdicts on the shortlist of a curation; returns how far the review has come.

    Args:
        run: folder of the curation.
        reviewer: whose verdicts are taken.
        adjudicate: show only contested images; the word given settles them.
        sheet: write a page for the browser here, and ask nothing.
        take: files that such pages saved.
        export: write all verdicts here, and ask nothing.
        status: ask nothing.
    """
    opened = Run.open(run)
    rows = shortlist(opened)
    if not opened.done or not rows:
        raise InputError(f"{run} has no shortlist. Make one: counterlens curate adversarial.")
    ids = [row["id"] for row in rows]
    reviewer = reviewer.strip()
    store = Store.create(store_path(opened.folder), ids, about=_about(opened))
    asks = not (take or sheet or export or status)
    if (asks or (sheet and adjudicate)) and not reviewer:
        raise InputError("nobody is named. Say who you are: --reviewer NAME.")
    for path in take:
        _say(f"{store.take(path)} new verdicts from {path}", quiet)
    if sheet is not None:
        _write_sheet(sheet, store, opened, rows, reviewer, adjudicate)
        _say(f"open {sheet} in a browser; its verdicts come back with --take FILE.jsonl", quiet)
    if export is not None:
        _say(f"{store.export(export)} verdicts written to {export}", quiet)
    if asks:
        _ask_all(store, opened, rows, reviewer, adjudicate, sys.stdin)
    found = progress(store, ids)
    _say(found["summary"], quiet)
    _say(f"next: {_next_step(found['outcomes'], run)}", quiet)
    return found


def _next_step(outcomes: Mapping[str, int], run: Path) -> str:
    command = f"counterlens curate review {run} --reviewer NAME"
    if outcomes.get("pending"):
        return f"{command} ({outcomes['pending']} images have no verdict yet)"
    if outcomes.get("contested"):
        return (
            f"{command} --adjudicate, by somebody who reviewed none of the "
            f"{outcomes['contested']} contested images"
        )
    return f"counterlens curate freeze {run} --out FOLDER"


def _write_sheet(
    path: Path,
    store: Store,
    run: Run,
    rows: Sequence[dict[str, Any]],
    reviewer: str,
    adjudicate: bool,
) -> None:
    """A page with the shortlist, or with what this adjudicator may settle and what was said."""
    others: list[list[str]] = [[] for _ in rows]
    if adjudicate:
        rows = _contested(store, rows, reviewer)
        others = [_others(store, row["id"]) for row in rows]
    pictures = [thumbnail(read(inside(run.folder, row["image"])), _SHEET) for row in rows]
    role = "adjudicator" if adjudicate else "reviewer"
    write_sheet(path, run, rows, pictures, reviewer=reviewer, role=role, others=others)


def _contested(
    store: Store, rows: Sequence[dict[str, Any]], adjudicator: str
) -> list[dict[str, Any]]:
    """Contested images that this person did not review; it is an error if there are none."""
    made = decisions([row["id"] for row in rows], store.latest())
    contested = [row for row in rows if made[row["id"]].outcome == "contested"]
    free = [
        row
        for row in contested
        if same_person(adjudicator) not in map(same_person, made[row["id"]].verdicts)
    ]
    if contested and not free:
        raise InputError(
            f"{adjudicator} reviewed all {len(contested)} contested images and cannot adjudicate "
            "them. Somebody else has to: --adjudicate --reviewer OTHER."
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


def _about(run: Run) -> str:
    """What ties a store to a run: its curation's settings and pool."""
    return f"{run.manifest['name']} {run.manifest['started']} {run.manifest['data_fingerprint']}"


def _ask_all(
    store: Store,
    run: Run,
    rows: Sequence[dict[str, Any]],
    reviewer: str,
    adjudicate: bool,
    answers: Iterable[str],
) -> None:
    """Go through the images this person has not judged; each verdict is kept at once."""
    role = "adjudicator" if adjudicate else "reviewer"
    if adjudicate:
        queue = _contested(store, rows, reviewer)
    else:
        todo = set(store.pending(reviewer, role=role))
        queue = [row for row in rows if row["id"] in todo]
    print(HELP, file=sys.stderr)
    place, lines = 0, iter(answers)
    while place < len(queue):
        row = queue[place]
        _show(run, row, place, len(queue), _others(store, row["id"]) if adjudicate else [])
        line = next(lines, None)
        if line is None or line.strip() == "q":
            return
        word = line.strip()
        if word in ("s", "b"):
            place = place + 1 if word == "s" else max(0, place - 1)
            continue
        verdict = parse(word, row["id"], reviewer, role)
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


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        print(text, file=sys.stderr)
