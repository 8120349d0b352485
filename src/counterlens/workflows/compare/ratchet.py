"""Ratchet: failures that were mended must not come back.

A suite is one JSON file: ids of images, each `open` (wrong in every release so far) or `mended`
(right in one, and required to stay right). Each release is checked against it; what it gets right
becomes mended, so that the suite only ever tightens. A release that gets a mended image wrong, or
that did not see one of the suite, fails and changes nothing.

    {"schema": 1, "data": "shots", "images": {"a.jpg": "mended", "b.jpg": "open"},
     "history": [{"model": …, "run": …, "date": …, "mended": 1, "open": 1}]}
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterlens.errors import InputError
from counterlens.runs import (
    Number,
    Run,
    check_gates,
    parse_gate,
    read_lines,
    read_object,
    reading,
    stored_logits,
    user_path,
    write_json,
)
from counterlens.runs.gates import Gate
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import running
from counterlens.workflows.compare.options import RatchetOptions
from counterlens.workflows.compare.pairs import right_rows

STATES = ("open", "mended")
_COLUMNS = ("image", "id", "path")


@takes(RatchetOptions)
def ratchet(suite: str | Path, run: str | Path | Run | Result, options: RatchetOptions) -> Result:
    """Check a release against the failures that were collected, and tighten the suite.

    Args:
        suite: the file of the suite; made by the first call that has `add`.
        run: the audit of the release, a run, its folder or its result.

    >>> import counterlens as cl
    >>> cl.ratchet("failures.json", "runs/first", add="wrong")              # doctest: +SKIP
    >>> cl.ratchet("failures.json", "runs/second").numbers["ratchet.broken"]  # doctest: +SKIP
    """
    gates = [parse_gate(text) for text in options.require]
    path, audit = user_path(Path(suite)), _audit(run)
    with reading(audit):
        right, data = _answers(audit)
    known = _read(path, data) if path.exists() else {}
    if not path.exists() and options.add is None:
        raise InputError(
            f"{path} does not exist. Make it from the failures of a release: ratchet SUITE RUN "
            "with add=wrong, or a file of ids."
        )
    checked = check(known, right)
    added = [i for i in _added(options.add, right) if i not in known]
    with running(
        "ratchet", options, name=path.stem, inputs={"suite": str(path), "run": str(audit.folder)}
    ) as out:
        out.note(model=audit.manifest.get("model"), data=data)
        out.add_numbers(_numbers(checked, added))
        out.write_table("ratchet", checked.rows(added))
        passed = _gate_rows(checked, len(known), gates, out.numbers)
        out.write_table("gates", passed)
    if passed[0]["passed"]:
        _write(path, known, checked, added, audit, data)
    return Result(out, (Result(audit),))


def _gate_rows(
    checked: "Checked", known: int, gates: Sequence[Gate], numbers: Mapping[str, Number]
) -> list[dict[str, Any]]:
    """The suite itself is the first gate; those of the caller follow."""
    broken, missing = len(checked.broken), len(checked.missing)
    why = f"{broken} mended images are wrong again, {missing} were not seen"
    first: dict[str, Any] = {"gate": f"{known} collected images", "value": float(broken + missing)}
    rows = [first | {"passed": not broken and not missing, "why": why}]
    for one in check_gates(gates, numbers):
        rows.append(
            {"gate": one.gate.text, "value": one.value, "passed": one.passed, "why": one.why}
        )
    return rows


@dataclass(frozen=True)
class Checked:
    """What a release does on the images of a suite.

    Args:
        broken: mended before, wrong now.
        missing: of the suite, but not among the images of the release.
        newly: open before, right now.
        open: wrong before and now.
        held: mended before, right now.
    """

    broken: tuple[str, ...]
    missing: tuple[str, ...]
    newly: tuple[str, ...]
    open: tuple[str, ...]
    held: tuple[str, ...]

    def rows(self, added: list[str]) -> list[dict[str, Any]]:
        """A row per image that changed or needs a look, the broken ones first."""
        parts = {
            "wrong again": self.broken,
            "not seen": self.missing,
            "mended now": self.newly,
            "still open": self.open,
            "added": tuple(added),
        }
        return [{"image": i, "state": state} for state, ids in parts.items() for i in ids]


def check(known: Mapping[str, str], right: Mapping[str, bool]) -> Checked:
    """Sort the images of a suite by what a release does on them.

    >>> check({"a": "mended", "b": "open"}, {"a": False, "b": True}).broken
    ('a',)
    """

    def among(state: str, answer: bool) -> tuple[str, ...]:
        return tuple(i for i, was in known.items() if was == state and right.get(i) is answer)

    return Checked(
        broken=among("mended", False),
        missing=tuple(i for i in known if i not in right),
        newly=among("open", True),
        open=among("open", False),
        held=among("mended", True),
    )


def _audit(given: str | Path | Run | Result) -> Run:
    run = given.run if isinstance(given, Result) else given
    folder = run.folder if isinstance(run, Run) else Path(run)
    opened = Run.open(folder)
    if not opened.done:
        raise InputError(f"{folder} is unfinished: it has no DONE. Finish it with resume first.")
    return opened


def _answers(run: Run) -> tuple[dict[str, bool], str]:
    """Whether each labelled image was answered right, and the name of the set."""
    inside = [one for one in stored_logits(run).values() if one.role == "in"]
    if not inside:
        raise InputError(f"{run.folder} has no answers on labelled images, expected an audit.")
    logits, rows = inside[0], [i for i, label in enumerate(inside[0].labels) if label >= 0]
    flags = right_rows(logits, rows)
    return {logits.ids[i]: bool(flag) for i, flag in zip(rows, flags, strict=True)}, logits.name


def _added(add: str | None, right: Mapping[str, bool]) -> list[str]:
    """The images to collect: all that are wrong, or those of a file."""
    if add is None:
        return []
    if add == "wrong":
        return [i for i, hit in right.items() if not hit]
    path = user_path(Path(add))
    if not path.is_file():
        raise InputError(f"add is {add!r}, expected wrong, or a .csv, .jsonl or .txt file of ids.")
    ids = _ids(path)
    strange = [i for i in ids if i not in right]
    if strange or not ids:
        raise InputError(
            f"{path}: {len(strange)} of its {len(ids)} ids are not among the audited images "
            f"({', '.join(strange[:3])}), expected ids such as {next(iter(right))}."
        )
    return ids


def _ids(path: Path) -> list[str]:
    """The ids in a file: a line each, or a column image, id or path."""
    if path.suffix == ".jsonl":
        rows: list[Mapping[str, Any]] = [row for _, row in read_lines(path)]
    elif path.suffix == ".csv":
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    else:
        return [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    column = next((name for name in _COLUMNS if rows and name in rows[0]), None)
    if column is None:
        raise InputError(f"{path} has no column {', '.join(_COLUMNS[:-1])} or {_COLUMNS[-1]}.")
    return list(dict.fromkeys(str(row[column]) for row in rows))


def _read(path: Path, data: str) -> dict[str, str]:
    stored = read_object(path)
    images = stored.get("images")
    if not isinstance(images, dict) or not set(images.values()) <= set(STATES):
        raise InputError(f"{path} is no suite of a ratchet: it was changed or torn.")
    if stored.get("data") != data:
        raise InputError(
            f"{path} collects images of {stored.get('data')}, and the run is about {data}: give an "
            "audit of the same images."
        )
    return {str(i): str(state) for i, state in images.items()}


def _write(
    path: Path,
    known: Mapping[str, str],
    checked: Checked,
    added: list[str],
    audit: Run,
    data: str,
) -> None:
    """The suite after this release: what is right now is mended for good."""
    images = {**known, **dict.fromkeys(checked.newly, "mended"), **dict.fromkeys(added, "open")}
    history = read_object(path)["history"] if path.exists() else []
    entry = {
        "model": audit.manifest.get("model"),
        "run": audit.folder.name,
        "date": audit.manifest.get("finished"),
        **{state: sum(one == state for one in images.values()) for state in STATES},
    }
    whole = {"schema": 1, "data": data, "images": images, "history": [*history, entry]}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, whole)


def _numbers(checked: Checked, added: list[str]) -> dict[str, Number]:
    """Counts of images; exact, so the interval is the value."""
    n = sum(map(len, (checked.broken, checked.missing, checked.newly, checked.open, checked.held)))
    counts = {
        "broken": (checked.broken, "mended before, wrong now"),
        "missing": (checked.missing, "of the suite, not among the images of the release"),
        "mended": ((*checked.held, *checked.newly), "right now"),
        "open": (checked.open, "wrong in every release so far"),
        "added": (added, "collected now"),
    }
    return {
        f"ratchet.{name}": Number(float(len(ids)), n, float(len(ids)), float(len(ids)), text)
        for name, (ids, text) in counts.items()
    }
