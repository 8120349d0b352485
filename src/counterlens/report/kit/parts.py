"""Pieces that several kinds of report share: cells, number tables, galleries, plain tables."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from counterlens.report.kit import plots
from counterlens.report.kit.blocks import (
    Badge,
    Block,
    Cell,
    Column,
    Figure,
    Gallery,
    Picture,
    Protocols,
    Row,
    Table,
    Tone,
)
from counterlens.runs import Number, Run
from counterlens.runs.keys import (
    meaning,
    metric_words,
    reasons,
    show,
    show_interval,
    show_number,
    subject_words,
    verdict,
)

PICTURES = 24  # per gallery; the rest stays in the run folder
ROWS = 400  # per plain table; the rest stays in the run folder
LONG = 60  # characters from which a column gets the room of a sentence
_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}
_TRUST: dict[str, Tone] = {"trusted": "good", "weak": "warn", "do not quote": "bad"}
_STATUS: dict[str, Tone] = {
    "ok": "good",
    "passed": "good",
    "warn": "warn",
    "weak": "warn",
    "fail": "bad",
    "bad": "bad",
    "failed": "bad",
    "skipped": "muted",
}
_STEPS = ("step", "epoch", "radius")


def status_badge(status: str) -> Badge:
    """ok, warn, fail, skipped as a badge."""
    return Badge(status, _STATUS.get(status, ""))


def trust_badge(number: Number) -> Badge | None:
    """The trust verdict of an attack result; numbers without one get none."""
    word = verdict(number)
    return Badge(word, _TRUST.get(word, "muted")) if word else None


def digits(key: str) -> int:
    """Decimals in per cent: calibration errors are small, so they get two."""
    return 2 if key.startswith("calibration.") else 1


def number_cell(key: str, number: Number | None) -> Cell:
    """A number with its interval; one that could not be measured says why."""
    if number is None:
        return Cell("–", tone="muted")
    unit = meaning(key).unit
    if number.value is None:
        return Cell("–", sub=number.reason or "", tone="muted")
    return Cell(
        show_number(number, unit, digits=digits(key)),
        sub=" ".join(
            filter(None, (show_interval(number, unit, digits=digits(key)), number.reason))
        ),
        sort=number.value,
        badge=trust_badge(number),
        more=f"n = {number.n:,}",
    )


def number_list(numbers: Mapping[str, Number], *, caption: str, keys: bool = False) -> Table:
    """One number a line: name, value, interval, n and protocol."""
    rows = []
    for key, number in numbers.items():
        unit = meaning(key).unit
        name = Cell(key if keys else meaning(key).label, sub="" if keys else key)
        interval = show_interval(number, unit, digits=digits(key)) or "–"
        value = Cell(
            show_number(number, unit, digits=digits(key)),
            sub=number.reason or "",
            badge=trust_badge(number),
        )
        why = "; ".join(reasons(number))
        protocol = Cell(number.protocol, sub=f"Verdict: {why}." if why else "")
        rows.append([name, value, Cell(interval), Cell(f"{number.n:,}", sort=number.n), protocol])
    columns = [
        Column("Key" if keys else "Number"),
        Column("Value", numeric=True),
        Column("95 % interval", numeric=True),
        Column("n", numeric=True),
        Column("Protocol", long=True),
    ]
    return Table(caption, columns, rows, quiet=True)


def number_matrix(
    numbers: Mapping[str, Number], area: str, *, caption: str, subject: str
) -> tuple[Table, Protocols] | None:
    """Subjects down, metrics across, for keys `area.subject.metric`."""
    shown = {k: n for k, n in numbers.items() if meaning(k).area == area and meaning(k).subject}
    if not shown:
        return None
    subjects = list(dict.fromkeys(meaning(k).subject for k in shown))
    metrics = list(dict.fromkeys(meaning(k).metric for k in shown))
    rows = []
    for name in subjects:
        cells = [
            number_cell(f"{area}.{name}.{m}", shown.get(f"{area}.{name}.{m}")) for m in metrics
        ]
        rows.append([Cell(subject_words(area, name)), *cells])
    arrows = {"up": "higher is better", "down": "lower is better", "": ""}
    columns = [
        Column(subject),
        *(
            Column(metric_words(area, m), numeric=True, sub=arrows[meaning(f"{area}.{m}").better])
            for m in metrics
        ),
    ]
    protocols = [
        (metric_words(area, m), line)
        for m in metrics
        for line in dict.fromkeys(n.protocol for k, n in shown.items() if meaning(k).metric == m)
    ]
    return Table(caption, columns, rows), Protocols(protocols)


def plain_table(
    name: str, rows: Sequence[Mapping[str, Any]], *, drawn: bool = True, folded: bool = False
) -> list[Block]:
    """Any table of a run without its empty columns.

    One that goes by step, epoch or radius is drawn as well.
    """
    names = [
        name
        for name in dict.fromkeys(key for row in rows for key in row)
        if any(row.get(name) not in (None, "", [], ()) for row in rows)
    ]
    if not names:
        return []
    numeric = {
        k for k in names if all(_is_number(row.get(k)) for row in rows if row.get(k) is not None)
    }
    body = [[_plain_cell(row.get(k)) for k in names] for row in rows[:ROWS]]
    longest = [max(len(line[i].text) for line in body) for i in range(len(names))]
    columns = [
        Column(k.replace("_", " ").capitalize(), numeric=k in numeric, long=length > LONG)
        for k, length in zip(names, longest, strict=True)
    ]
    note = f"The first {ROWS} of {len(rows):,} rows." if len(rows) > ROWS else ""
    title = name.replace("_", " ").capitalize()
    blocks: list[Block] = []
    axis = next((k for k in _STEPS if k in numeric and drawn), None)
    if (
        axis
        and len({row.get(axis) for row in rows}) >= 3
        and names == [k for k in names if k in numeric]
    ):
        lines = [k for k in names if k != axis][:6]
        blocks.append(Row([_line_figure(rows, axis, k) for k in lines], small=True))
    blocks.append(
        Table(
            title,
            columns,
            body,
            sortable=len(rows) > 4,
            note=note,
            folded=folded or len(rows) > 40,
        )
    )
    return blocks


def _line_figure(rows: Sequence[Mapping[str, Any]], axis: str, name: str) -> Figure:
    points = [(row[axis], row[name]) for row in rows if row.get(name) is not None]
    words = name.replace("_", " ")
    line = plots.Series(words, sorted(points))
    svg = plots.curves([line], title=words, x_label=axis, y_label="", percent=False)
    return Figure(words, svg)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _plain_cell(value: object) -> Cell:
    if value is None:
        return Cell("–", tone="muted")
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if isinstance(value, float):
        return Cell(show(value), sort=value)
    if isinstance(value, int):
        return Cell(f"{value:,}", sort=value)
    if isinstance(value, dict):
        return Cell(", ".join(f"{k} {v}" for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return Cell(", ".join(str(v) for v in value))
    text = str(value)
    return Cell(text, badge=None, sort=text)


def galleries(run: Run, groups: Iterable[str], titles: Mapping[str, str]) -> list[Gallery]:
    """Pictures of the given groups of the gallery table, most important first."""
    table = run.table("gallery")
    out = []
    for group in groups:
        rows = [row for row in table if row["group"] == group]
        pictures = [
            p for p in (_picture(run, row, i) for i, row in enumerate(rows[:PICTURES], 1)) if p
        ]
        if not pictures:
            continue
        note = f"The first {PICTURES} of {len(rows)}." if len(rows) > PICTURES else ""
        out.append(Gallery(titles.get(group, group), pictures, anchor(group), note))
    return out


def anchor(text: str) -> str:
    """A text as the name of a place on the page.

    >>> anchor("ood:textures, far")
    'ood-textures--far'
    """
    return "".join(c if c.isalnum() else "-" for c in text)


def embed(run: Run, name: object) -> tuple[str, bool] | None:
    """A picture of the run as a data address, and whether its pixels should stay sharp."""
    path = run.file(str(name))
    if path.suffix.lower() not in _TYPES or not path.is_file():
        return None
    data = path.read_bytes()
    address = f"data:{_TYPES[path.suffix.lower()]};base64,{base64.b64encode(data).decode()}"
    return address, _small(data)


def _picture(run: Run, row: Mapping[str, Any], number: int) -> Picture | None:
    embedded = embed(run, row["image"])
    if embedded is None:
        return None
    label, predicted = row.get("label"), row.get("predicted")
    sure = _confidence(row.get("confidence"))
    known = label not in (None, "", -1)
    wrong = known and label != predicted
    if predicted in (None, ""):
        title, line, alt = (
            str(label or row.get("id", "")),
            "",
            f"{label or row.get('id', 'Picture')}",
        )
    else:
        title = f"{predicted} {sure}"
        line = f"really {label}" if wrong else ("right" if known else "")
        truth = f"Label {label}. " if known else "Outside the model’s classes. "
        alt = f"{truth}Predicted {predicted} with confidence {sure}."
    return Picture(embedded[0], alt, title, line, str(row.get("id", "")), embedded[1], number)


def _confidence(value: float | None) -> str:
    """Near-certain is not certain: 99.98 % is not shown as 100 %."""
    if value is not None and 0.9995 <= value < 1:
        return "> " + show(0.999, "share")
    return show(value, "share")


def _small(data: bytes) -> bool:
    """Whether a PNG is so small that enlarging it should keep its pixels sharp."""
    return data[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(data[16:20], "big") <= 112
