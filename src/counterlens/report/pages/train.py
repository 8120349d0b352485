"""A training: held-out curves, the stronger probe beside them, losses, and warnings with cures."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from counterlens.report.kit import plots
from counterlens.report.kit.blocks import (
    Badge,
    Block,
    Cell,
    Column,
    Figure,
    Row,
    Section,
    Table,
    Text,
)
from counterlens.report.kit.parts import number_list, plain_table
from counterlens.runs import Run
from counterlens.runs.keys import show

TABLES = ("epochs", "warnings")
_ACCURACY = {
    "held_out.clean": "clean",
    "held_out.robust": "under the attack that judges",
    "held_out.near": "under the training attack",
    "probe.near": "under five times its steps",
}
_FLAT = 0.002  # of accuracy: less is no fall
_CONFIDENCE = {
    "held_out.confidence": "inside",
    "held_out.out_confidence": "outside",
    "held_out.far_confidence": "outside, under the training attack",
    "probe.far_confidence": "outside, under five times its steps",
}


def sections(run: Run) -> list[Section]:
    """Is it healthy, how it learnt, what it cost."""
    rows = run.table("epochs")
    if not rows:
        return []
    warned = run.table("warnings")
    held = {k: n for k, n in run.numbers.items() if k.startswith("held_out.")}
    blocks: list[Block] = [_warnings(warned)]
    if held:
        blocks.append(number_list(held, caption="The chosen weights on held-out images"))
    figures = [
        _figure(rows, _ACCURACY, "Held-out accuracy", "Accuracy"),
        _figure(rows, _CONFIDENCE, "Mean confidence on held-out images", "Mean confidence"),
    ]
    shown = [figure for figure in figures if figure]
    if shown:
        blocks.append(Row(shown))
    parts = [Section("health", "Health", blocks, _LEAD)]
    costs = _costs(rows)
    if costs:
        parts.append(Section("losses", "Losses and pace", [Row(costs, small=True)]))
    table = plain_table("epochs", rows, drawn=False)
    parts.append(Section("epochs", "Every epoch", table))
    return parts


_LEAD = (
    "Curves on training images held out from the updates. Where an attack of five times the steps "
    "finds much more than the training attack, the training attack is too weak."
)


def _warnings(rows: Sequence[Mapping[str, Any]]) -> Block:
    if not rows:
        return Text(
            "No warning: the attacks were strong enough and nothing collapsed or overfitted."
        )
    body = []
    for row in rows:
        epoch, what, cure = _read(str(row["warning"]))
        badge = Badge("warning", "warn")
        body.append(
            [Cell(epoch, sort=float(epoch or 0)), Cell("", badge=badge), Cell(what), Cell(cure)]
        )
    columns = [Column("Epoch", numeric=True), Column(""), Column("What"), Column("Cure", long=True)]
    return Table("Warnings", columns, body)


def _read(line: str) -> tuple[str, str, str]:
    """Epoch, what is wrong, and what to do, of a line `epoch 5: …. Do this`.

    >>> _read("epoch 5: it is 0.3 low. Use more steps: --set near.steps=9")
    ('5', 'it is 0.3 low.', 'Use more steps: --set near.steps=9')
    """
    match = re.fullmatch(r"(?:epoch (\d+): )?(.*?[^\d]\.|.*?\.(?=\s))\s+([A-Z].*)", line, re.DOTALL)
    if not match:
        return "", line, ""
    return match[1] or "", match[2], match[3]


def _figure(
    rows: Sequence[Mapping[str, Any]], names: Mapping[str, str], title: str, label: str
) -> Figure | None:
    lines = []
    for key, words in names.items():
        points = [(float(row["epoch"]), row[key]) for row in rows if row.get(key) is not None]
        if points:
            marked = [True] * len(points) if key.startswith("probe.") else None
            lines.append(plots.Series(words, points, (), marked))
    if not lines:
        return None
    svg = plots.curves(lines, title=title, x_label="Epoch", y_label=label, ys=(0.0, 1.0))
    legend = [(plots.swatch(i), line.name) for i, line in enumerate(lines)]
    body = [
        [Cell(f"{row['epoch']:g}"), *(Cell(show(row.get(key), "share")) for key in names)]
        for row in rows
        if any(row.get(key) is not None for key in names)
    ]
    columns = [Column("Epoch", numeric=True), *(Column(w, numeric=True) for w in names.values())]
    return Figure(
        title, svg, _best(rows) if names is _ACCURACY else "", legend, Table(title, columns, body)
    )


def _best(rows: Sequence[Mapping[str, Any]]) -> str:
    """Where robust accuracy peaked, which tells early overfitting from steady gain."""
    judged = [(row["held_out.robust"], row["epoch"]) for row in rows if "held_out.robust" in row]
    if not judged:
        return ""
    top, epoch = max(judged)
    last, end = judged[-1]
    if top - last < _FLAT:
        return f"Robust accuracy was highest at the end: {show(last, 'share')}."
    return (
        f"Robust accuracy was highest at epoch {epoch:g} of {end:g}: {show(top, 'share')}; it "
        f"ended at {show(last, 'share')}."
    )


def _costs(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    names = [k for k in dict.fromkeys(k for row in rows for k in row) if k.startswith("loss")]
    words = {k: f"Loss: {k.partition('.')[2] or 'all'}" for k in names}
    words |= {"lr": "Learning rate", "images_per_second": "Images per second"}
    figures = []
    for key, title in words.items():
        points = [(float(row["epoch"]), row[key]) for row in rows if row.get(key) is not None]
        if len(points) > 1:
            line = plots.Series(title, points)
            svg = plots.curves([line], title=title, x_label="Epoch", y_label="", percent=False)
            figures.append(Figure(title, svg))
    return figures
