"""The evidence file of an audit: one document in the order in which auditors ask.

Purpose, system, data, protocol, performance, groups, robustness, gates, limits, versions, hashes.
What was not measured is stated as not measured. The document is a list of parts, which
`markdown` writes as Markdown; `explanations.pages` draws the same parts as a PDF.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from counterlens.report.kit.parts import digits
from counterlens.runs import Number, Run
from counterlens.runs.keys import (
    meaning,
    model_words,
    show,
    show_interval,
    show_number,
    verdict,
)

FEW = 30
"""Images of a class below which its accuracy is named a limit."""
AREAS = {
    "performance": ("accuracy", "calibration", "selective", "multilabel"),
    "groups": ("label", "groups"),
    "robustness": ("robust", "ood", "bias", "corruption"),
}
_HEAD = ("number", "value", "95 % interval", "n", "verdict")


@dataclass(frozen=True)
class Grid:
    """A table: its head and its rows, all texts."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class EvidencePart:
    """One numbered part of the document."""

    title: str
    lines: tuple[str, ...]
    grids: tuple[Grid, ...] = ()


def document(
    run: Run, *, purpose: str | None = None, users: str | None = None
) -> list[EvidencePart]:
    """All parts of the evidence of one audit."""
    facts, numbers = run.manifest, run.numbers
    return [
        EvidencePart("Purpose and intended use", _purpose(purpose, users)),
        EvidencePart("System", (), (_system(facts),)),
        EvidencePart("Data", (), (_data(run, facts),)),
        EvidencePart("Protocol", _protocol(facts, numbers), (_settings(facts),)),
        EvidencePart("Performance", (), _numbers(numbers, "performance")),
        EvidencePart("Groups", _groups(run), (*_classes(run), *_numbers(numbers, "groups"))),
        EvidencePart(
            "Robustness and unknown inputs",
            _unmeasured(numbers),
            _numbers(numbers, "robustness"),
        ),
        EvidencePart("Release gates", *_gates(run)),
        EvidencePart("Limits", _limits(run, numbers)),
        EvidencePart("Versions and hashes", (), (_versions(run, facts),)),
    ]


def title(run: Run) -> str:
    """The title of the document."""
    facts = run.manifest
    model = str(facts.get("model") or facts["settings"].get("model") or run.folder.name)
    return f"Evidence: {model_words(model)} on {facts.get('data') or '?'}"


def markdown(heading: str, parts: Sequence[EvidencePart]) -> str:
    """The document as Markdown."""
    lines = [f"# {heading}", ""]
    for number, part in enumerate(parts, 1):
        lines += [f"## {number}. {part.title}", ""]
        for line in part.lines:
            lines += [f"- {line}"] if len(part.lines) > 1 else [line]
        lines += [""] if part.lines else []
        for grid in part.grids:
            lines += [_row(grid.head), _row(["---"] * len(grid.head))]
            lines += [_row(row) for row in grid.rows]
            lines.append("")
    return "\n".join(lines).rstrip().replace("\u202f", " ") + "\n"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _purpose(purpose: str | None, users: str | None) -> tuple[str, ...]:
    return (
        f"Purpose: {purpose or 'not stated (--purpose)'}",
        f"Users and setting: {users or 'not stated (--users)'}",
    )


def _facts(pairs: Iterable[tuple[str, object]]) -> Grid:
    rows = ((name, str(value)) for name, value in pairs if value not in (None, "", [], {}))
    return Grid(("fact", "value"), tuple(rows))


def _system(facts: Mapping[str, Any]) -> Grid:
    about, prepared = facts.get("about") or {}, facts.get("preprocess") or {}
    return _facts(
        [
            ("model", facts.get("model")),
            ("spec", facts.get("spec") or facts["settings"].get("model")),
            ("SHA-256 of the weights", facts.get("weights_hash")),
            ("classes", facts.get("classes")),
            *((str(name), value) for name, value in about.items() if value not in (None, False)),
            ("preparation of pictures", ", ".join(f"{k} {v}" for k, v in prepared.items())),
        ]
    )


def _data(run: Run, facts: Mapping[str, Any]) -> Grid:
    settings, prints = facts["settings"], facts.get("data_fingerprint") or {}
    top = run.numbers.get("accuracy.top1") or run.numbers.get("multilabel.accuracy")
    notes = facts.get("notes") or {}
    return _facts(
        [
            ("data", settings.get("data")),
            ("images reported on", f"{top.n:,}" if top else None),
            ("classes matched", facts.get("matched")),
            ("calibration images", settings.get("calibrate")),
            ("unknown images", ", ".join(settings.get("ood") or ())),
            *((f"fingerprint of {name}", text) for name, text in prints.items()),
            *((f"note on {name}", " ".join(map(str, lines))) for name, lines in notes.items()),
        ]
    )


def _protocol(facts: Mapping[str, Any], numbers: Mapping[str, Number]) -> tuple[str, ...]:
    """How each number was measured; numbers of one protocol share a line."""
    shared: dict[str, list[str]] = {}
    for key, number in numbers.items():
        shared.setdefault(number.protocol, []).append(meaning(key).label)
    known = [
        f"{', '.join(labels[:4])}{' and others' if labels[4:] else ''}: {text}"
        for text, labels in shared.items()
    ]
    return (
        "Intervals are 95 %: they speak about other images drawn as these were, with model, "
        "classes, bins and temperature held fixed.",
        *known,
    )


def _settings(facts: Mapping[str, Any]) -> Grid:
    settings = {
        name: ", ".join(map(str, value)) if isinstance(value, list) else value
        for name, value in facts["settings"].items()
        if value not in (None, "", [], (), False, 0) and name != "device"
    }
    return _facts([*settings.items(), ("seed", facts.get("seed")), ("device", facts.get("device"))])


def _numbers(numbers: Mapping[str, Number], kind: str) -> tuple[Grid, ...]:
    rows = []
    for key, number in numbers.items():
        known = meaning(key)
        if known.area not in AREAS[kind]:
            continue
        shown = show_number(number, known.unit, digits=digits(key))
        if number.value is None:
            shown = "not measured"
        interval = show_interval(number, known.unit, digits=digits(key)) or "–"
        rows.append((known.label, shown, interval, f"{number.n:,}", verdict(number) or "–"))
    return (Grid(_HEAD, tuple(rows)),) if rows else ()


def _groups(run: Run) -> tuple[str, ...]:
    if not run.table("per_class"):
        return ()
    return ("Accuracy by class, the lowest first; other groups where they were measured.",)


def _classes(run: Run) -> tuple[Grid, ...]:
    rows = sorted(run.table("per_class"), key=lambda row: row["accuracy"])
    if not rows:
        return ()
    body = tuple(
        (
            str(row["class"]),
            show(row["accuracy"], "share"),
            f"[{100 * row['low']:.1f}, {100 * row['high']:.1f}]",
            f"{row['n']:,}",
            str(row.get("confused_with") or "–"),
        )
        for row in rows[:50]
    )
    return (Grid(("class", "accuracy", "95 % interval", "n", "mostly taken for"), body),)


def _unmeasured(numbers: Mapping[str, Number]) -> tuple[str, ...]:
    """Which questions this audit did not ask."""
    areas = {meaning(key).area for key in numbers}
    questions = {
        "robust": "Robustness to adversarial changes was not measured (--attack).",
        "ood": "Images of none of the classes were not measured (--ood).",
        "bias": "Changes of colour and frame were not measured (--flips).",
    }
    return tuple(text for area, text in questions.items() if area not in areas)


def _gates(run: Run) -> tuple[tuple[str, ...], tuple[Grid, ...]]:
    rows = run.table("gates")
    if not rows:
        return ("No release gate was set (--require).",), ()
    body = tuple(
        (str(r["gate"]), "passed" if r["passed"] else "FAILED", str(r["why"])) for r in rows
    )
    return (), (Grid(("gate", "result", "measured"), body),)


def _limits(run: Run, numbers: Mapping[str, Number]) -> tuple[str, ...]:
    """What a reader must know before quoting a number."""
    lines = [
        f"{meaning(key).label}: {verdict(number)}, {_why(number)}"
        for key, number in numbers.items()
        if verdict(number) in ("weak", "do not quote")
    ]
    lines += [
        f"{meaning(key).label} is only the {number.bound} bound: {number.reason}"
        for key, number in numbers.items()
        if number.bound
    ]
    lines += [
        f"{meaning(key).label} was not measured: {number.reason}"
        for key, number in numbers.items()
        if number.value is None
    ]
    lines += [
        f"Doctor, {row['status']}: {row['check']}: {row['found']}"
        for row in run.table("doctor")
        if row["status"] in ("warn", "fail")
    ]
    few = [str(row["class"]) for row in run.table("per_class") if row["n"] < FEW]
    if few:
        shown = ", ".join(few[:10]) + (" …" if len(few) > 10 else "")
        lines.append(f"{len(few)} classes have fewer than {FEW} images: {shown}")
    missing = [r["data_class"] for r in run.table("matching") if not r.get("model_class")]
    if missing:
        lines.append(f"Classes of the data that the model does not know: {', '.join(missing[:10])}")
    return (
        *lines,
        "All numbers hold for images drawn as those of the data were, prepared as stated; they say "
        "nothing of other places, devices or times.",
    )


def _why(number: Number) -> str:
    given = (number.trust or {}).get("reasons") or (number.trust or {}).get("reason") or ""
    return given if isinstance(given, str) else "; ".join(map(str, given))


def _versions(run: Run, facts: Mapping[str, Any]) -> Grid:
    files = [run.folder / "result.json", *sorted((run.folder / "logits").glob("*.npy"))]
    return _facts(
        [
            ("run", run.folder.name),
            ("command", " ".join(map(str, facts.get("argv", ())))),
            ("started", facts.get("started")),
            ("finished", facts.get("finished")),
            *((f"version of {name}", text) for name, text in facts.get("versions", {}).items()),
            *((f"SHA-256 of {p.name}", sha256(p.read_bytes()).hexdigest()) for p in files),
        ]
    )
