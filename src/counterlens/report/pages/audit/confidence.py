"""The section on confidence: reliability, calibration errors, selective answering."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from counterlens.report.kit import plots
from counterlens.report.kit.blocks import (
    Block,
    Cell,
    Column,
    Figure,
    Protocols,
    Row,
    Section,
    Table,
)
from counterlens.report.kit.parts import number_cell
from counterlens.runs import Number, Run
from counterlens.runs.keys import SCALED, meaning, show


def section(run: Run) -> Section:
    """Figures, then every error as it is and after temperature."""
    blocks: list[Block] = []
    figures = _reliability(run.table("reliability"))
    rates = sorted((row["rate"], row["accuracy"]) for row in run.table("response_rate"))
    if rates:
        figures.append(_response(rates))
    if figures:
        blocks.append(Row(figures, small=True))
    blocks += _calibration(
        {k: n for k, n in run.numbers.items() if meaning(k).area in ("calibration", "selective")}
    )
    lead = "Whether its confidence can be believed, and what it gains by declining to answer."
    return Section("confidence", "Confidence", blocks, lead)


def _calibration(numbers: Mapping[str, Number]) -> list[Block]:
    """Each error as it is and after temperature, side by side."""
    if not numbers:
        return []
    plain = sorted((k for k in numbers if not k.endswith(SCALED)), key=lambda k: "temperature" in k)
    scaled = any(k.endswith(SCALED) for k in numbers)
    rows = []
    for key in plain:
        cells = [replace(number_cell(key, numbers[key]), more="")]
        if scaled:
            after = numbers.get(key + SCALED)
            cells.append(replace(number_cell(key, after), more="") if after else Cell(""))
        count = Cell(f"{numbers[key].n:,}", sort=numbers[key].n)
        rows.append([Cell(meaning(key).label, sub=key), *cells, count])
    columns = [Column("Number"), Column("As it is", numeric=True)]
    if scaled:
        columns.append(Column("After temperature", numeric=True))
    columns.append(Column("n", numeric=True))
    protocols = [(meaning(key).label, number.protocol) for key, number in numbers.items()]
    return [
        Table("Calibration and selective answering", columns, rows, quiet=True),
        Protocols(protocols),
    ]


def _reliability(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    words = {"before": "Reliability as it is", "after": "Reliability after temperature"}
    legend = (
        (plots.swatch(0, "bar s0"), "accuracy"),
        (plots.swatch(0, "gap over"), "too sure"),
        (plots.swatch(0, "gap under"), "not sure enough"),
    )
    figures = []
    for when in dict.fromkeys(row["when"] for row in rows):
        part = [row for row in rows if row["when"] == when]
        data = Table(
            f"Reliability, {when}",
            [
                Column("Bin"),
                *(Column(c, numeric=True) for c in ("n", "Mean confidence", "Accuracy")),
            ],
            [
                [
                    Cell(f"{100 * r['bin_low']:.0f}–{100 * r['bin_high']:.0f} %"),
                    Cell(f"{r['n']:,}"),
                    Cell(show(r["confidence"] if r["n"] else None, "share")),
                    Cell(show(r["accuracy"] if r["n"] else None, "share")),
                ]
                for r in part
            ],
        )
        title = words.get(when, f"Reliability, {when}")
        total = sum(r["n"] for r in part)
        drawn = [r for r in part if r["n"]]
        svg = plots.reliability(drawn, title=title)
        caption = f"On the dashed line, confidence equals accuracy. n = {total:,}."
        figures.append(Figure(title, svg, caption, legend, data))
    return figures


def _response(points: Sequence[tuple[float, float]]) -> Figure:
    low = min(y for _, y in points)
    svg = plots.curves(
        [plots.Series("accuracy", points)],
        title="Accuracy against response rate",
        x_label="Coverage: share of images answered, most confident first",
        y_label="Accuracy",
        x_percent=True,
        narrow=True,
        ys=(max(0.0, (low * 20 // 1 - 1) / 20), 1.0),
    )
    sample = points[:: max(1, len(points) // 20)]
    data = Table(
        "Response rate and accuracy",
        [Column("Response rate", numeric=True), Column("Accuracy", numeric=True)],
        [[Cell(show(x, "share")), Cell(show(y, "share"))] for x, y in sample],
    )
    caption = "Left: it answers only its most confident images. Right: it answers all."
    return Figure("Accuracy against coverage", svg, caption, (), data)
