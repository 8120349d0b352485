"""The part of an audit on corruptions: accuracy per corruption and severity, the worst first."""

from collections.abc import Mapping, Sequence
from typing import Any

from counterlens.report.kit import plots
from counterlens.report.kit.blocks import Block, Cell, Column, Protocols, Section, Table, Text
from counterlens.report.kit.parts import number_list
from counterlens.runs import Number, Run, key_part
from counterlens.runs.keys import show

LOST = 0.2  # points of accuracy below the clean one from which a cell is marked
_TOTALS = (
    "corruption.common.accuracy",
    "corruption.common.mce",
    "corruption.common.relative_mce",
)


def section(run: Run) -> Section | None:
    """One table, and the means where all fifteen were run."""
    rows = run.table("corruptions")
    if not rows:
        return None
    numbers = run.numbers
    clean = numbers.get("accuracy.top1")
    blocks: list[Block] = []
    totals = {key: numbers[key] for key in _TOTALS if key in numbers}
    if totals:
        blocks.append(number_list(totals, caption="Over all common corruptions"))
    names = _ranked(rows)
    means = {n: numbers[f"corruption.{key_part(n)}.accuracy"] for n in names}
    blocks += [Text(_sentence(names, means, clean)), _table(rows, names, means, clean)]
    texts = dict.fromkeys(n.protocol.split("; ", 1)[-1] for n in means.values())
    blocks.append(Protocols([("Accuracy under a corruption", text) for text in texts]))
    lead = "The same images under noise, blur, weather and what happens to files in practice."
    return Section("corruptions", "Corruptions", blocks, lead)


def _ranked(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names by their mean accuracy, the worst first."""
    parts: dict[str, list[float]] = {}
    for row in rows:
        parts.setdefault(str(row["corruption"]), []).append(row["accuracy"])
    return sorted(parts, key=lambda name: sum(parts[name]) / len(parts[name]))


def _words(name: str) -> str:
    return name.replace("_", " ").replace("jpeg", "JPEG")


def _sentence(names: Sequence[str], means: Mapping[str, Number], clean: Number | None) -> str:
    first = f"{_words(names[0])} ({show(means[names[0]].value, 'share')})"
    others = ", ".join(_words(name) for name in names[1:3])
    text = f"Lowest under {first}{f', then {others}' if others else ''}."
    return text + (f" Without corruption {show(clean.value, 'share')}." if clean else "")


def _table(
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    means: Mapping[str, Number],
    clean: Number | None,
) -> Table:
    severities = sorted({row["severity"] for row in rows})
    at = {(str(row["corruption"]), row["severity"]): row for row in rows}
    body = []
    for name in names:
        mean = means[name]
        cells = [Cell(_words(name)), _mean_cell(mean)]
        for severity in severities:
            row = at[name, severity]
            low = clean is not None and clean.value is not None and row["high"] < clean.value - LOST
            ends = f"[{100 * row['low']:.0f}, {100 * row['high']:.0f}]"
            cells.append(
                Cell(
                    show(row["accuracy"], "share"),
                    sub=ends,
                    sort=row["accuracy"],
                    tone="bad" if low else "",
                )
            )
        body.append(cells)
    columns = [
        Column("Corruption"),
        Column("Mean", numeric=True, sub="95 % interval"),
        *(Column(f"Severity {s}", numeric=True) for s in severities),
    ]
    n = max(row["n"] for row in rows)
    note = (
        f"n = {n:,} images each; Wilson intervals. Marked: the whole interval lies {LOST:.0%} or "
        "more below the clean accuracy. Of colour order and resize filter the columns are kinds, "
        "not strengths."
    )
    return Table("Accuracy by severity", columns, body, sortable=True, note=note)


def _mean_cell(number: Number) -> Cell:
    if number.value is None:
        return Cell("–", sub=number.reason or "", tone="muted")
    low, high = number.low or 0.0, number.high or 0.0
    return Cell(
        show(number.value, "share"),
        sub=f"[{100 * low:.1f}, {100 * high:.1f}]",
        sort=number.value,
        bar=plots.interval_bar(number.value, number.low, number.high),
    )
