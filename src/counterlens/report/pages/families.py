"""What size, attention and training do to a family of models.

Paper: Hendrycks et al. 2021, Natural Adversarial Examples (Figures 8 to 11 and 13 to 15).
Differs: every point has its interval; models are set against each other only where nothing else
         that is known tells them apart.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from counterlens.report.kit import plots
from counterlens.report.kit.blocks import Block, Cell, Column, Figure, Row, Section, Table, Text
from counterlens.report.kit.parts import number_cell
from counterlens.runs import Number, Run
from counterlens.runs.keys import meaning, show

TABLES = ("families", "response_rate")
_ASPECTS = ("family", "attention", "training")
_KEYS = ("accuracy.top1", "calibration.rms", "selective.aurra")
_LEAST_MODELS = 4  # fewer points against size say nothing
_BANDS = 4  # more bands than this hide each other
_SAME_SIZE = 0.1  # sizes nearer than this share count as one
_GATED_SIZE = 0.3  # gates themselves add parameters
_LEAST = 10  # the first few answers say nothing
_RATES = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0)

_Facts = Mapping[str, Any]
_Values = Mapping[tuple[str, str], Number]


def sections(run: Run) -> list[Section]:
    """One section, where the audits noted what kind of network each model is."""
    models = run.table("families")
    values = {(r["key"], r["model"]): Number.from_json(r) for r in run.table("everything")}
    keys = [
        key for key in _keys(values) if sum((key, row["model"]) in values for row in models) > 1
    ]
    curves = _responses(run.table("response_rate"))
    if len(models) < 2 or not keys:
        blocks: list[Block] = []
    else:
        paired = [row for row in run.table("paired") if row["key"] == "accuracy.top1"]
        blocks = [
            _table(models, keys, values),
            *_sizes(models, keys, values),
            *_alike("training", models, keys, values, paired),
            *_alike("attention", models, keys, values, paired),
        ]
    if curves:
        blocks.append(Row([curves]))
    lead = (
        "Read off the networks and their cards. Two models are set against each other only where "
        "nothing else that is known tells them apart."
    )
    return [Section("families", "Size, attention, training", blocks, lead)] if blocks else []


def _keys(values: _Values) -> list[str]:
    measured = list(dict.fromkeys(key for key, _ in values))
    outside = [k for k in measured if meaning(k).area == "ood" and meaning(k).metric == "aupr"]
    return [*(key for key in _KEYS if key in measured), *outside]


def _table(models: Sequence[_Facts], keys: Sequence[str], values: _Values) -> Table:
    columns = [Column("Model"), Column("Parameters", numeric=True)]
    columns += [Column(name) for name in ("Family", "Attention", "Training")]
    columns += [Column(meaning(key).label, numeric=True) for key in keys]
    body = [
        [
            Cell(row["model"], sub=_filter(row).strip(" ()")),
            Cell(_millions(row["parameters"]), sort=row["parameters"]),
            *(Cell(str(row[name])) for name in _ASPECTS),
            *(number_cell(key, values.get((key, row["model"]))) for key in keys),
        ]
        for row in models
    ]
    return Table("Models by kind", columns, body, sortable=len(models) > 2, quiet=True)


def _millions(count: float) -> str:
    return f"{count / 1e6:.3g} M"


def _sizes(models: Sequence[_Facts], keys: Sequence[str], values: _Values) -> list[Block]:
    """Each metric against the number of parameters; models that differ in nothing else joined."""
    if len(models) < _LEAST_MODELS or len({row["parameters"] for row in models}) < 2:
        return []
    sets = _grouped(models, lambda row: (*(row[k] for k in _ASPECTS), _filter(row)))
    differing = [k for k in _ASPECTS if len({row[k] for row in models}) > 1] or ["family"]
    names = [", ".join(_word(k, rows[0]) for k in differing) + _filter(rows[0]) for rows in sets]
    legend = [(plots.swatch(i), name) for i, name in enumerate(names)]
    figures = []
    for key in keys:
        series = []
        for name, rows in zip(names, sets, strict=True):
            known = sorted(
                (row["parameters"], row["model"], values[key, row["model"]])
                for row in rows
                if (key, row["model"]) in values and values[key, row["model"]].value is not None
            )
            points = [(size, float(n.value or 0.0)) for size, _, n in known]
            bounds = [_ends(n) for *_, n in known]
            series.append(plots.Series(name, points, bounds, labels=[m for _, m, _ in known]))
        m = meaning(key)
        title = f"{m.label} against size"
        svg = plots.sizes(series, title=title, y_label=m.label, percent=m.unit == "share")
        way = "Higher is better." if m.better == "up" else "Lower is better."
        figures.append(Figure(title, svg, f"{way} {_counts(key, models, values)}", legend))
    return [Row(figures, small=True)]


def _filter(row: _Facts) -> str:
    """A set was mined with this model: it is shown apart from its family."""
    return " (filter of the set)" if row.get("filter") else ""


def _word(key: str, row: _Facts) -> str:
    value = str(row[key])
    return f"no {key}" if value == "none" else f"{key} {value}" if value == "not stated" else value


def _ends(number: Number) -> tuple[float, float]:
    value = float(number.value or 0.0)
    return (
        value if number.low is None else number.low,
        value if number.high is None else number.high,
    )


def _counts(key: str, models: Sequence[_Facts], values: _Values) -> str:
    counts = sorted(
        {values[key, row["model"]].n for row in models if (key, row["model"]) in values}
    )
    text = "n = " + " to ".join(f"{n:,}" for n in dict.fromkeys((counts[0], counts[-1]))) + "."
    first = next(values[key, row["model"]] for row in models if (key, row["model"]) in values)
    chance = re.search(r"chance ([\d.]*\d)", first.protocol)
    return f"{text} Chance {show(float(chance[1]), 'share')}." if chance else text


def _alike(
    what: str,
    models: Sequence[_Facts],
    keys: Sequence[str],
    values: _Values,
    paired: Sequence[Mapping[str, Any]],
) -> list[Block]:
    """Models that differ in one aspect alone, side by side per metric."""
    other = next(k for k in ("training", "attention") if k != what)
    near = _GATED_SIZE if what == "attention" else _SAME_SIZE
    blocks: list[Block] = []
    judged = [row for row in models if not row.get("filter")]
    for rows in _grouped(judged, lambda row: (row["family"], row[other])):
        for alike in _of_one_size(rows, near):
            if len({row[what] for row in alike}) < 2:
                continue
            alike = sorted(alike, key=lambda row: row[what] not in ("none", "plain"))
            figures = [_dots(what, key, alike, values) for key in keys]
            size = _millions(sum(row["parameters"] for row in alike) / len(alike))
            head = f"{what.capitalize()}, {alike[0]['family']} of about {size} parameters. "
            blocks.append(Text(head + _difference(what, alike, paired)))
            blocks.append(Row([f for f in figures if f], small=True))
    return blocks


def _of_one_size(rows: Sequence[_Facts], near: float) -> list[list[_Facts]]:
    """Runs of sizes, each within `near` of the smallest of its run."""
    out: list[list[_Facts]] = []
    for row in sorted(rows, key=lambda row: row["parameters"]):
        if out and row["parameters"] <= out[-1][0]["parameters"] * (1 + near):
            out[-1].append(row)
        else:
            out.append([row])
    return out


def _dots(what: str, key: str, rows: Sequence[_Facts], values: _Values) -> Figure | None:
    words = [str(row[what]) for row in rows]
    lines = []
    for row, word in zip(rows, words, strict=True):
        number = values.get((key, row["model"]))
        if number is not None and number.value is not None:
            name = word if words.count(word) == 1 else f"{word}: {row['model']}"
            name = f"no {what}" if name == "none" else name
            lines.append((name, number.value, number.low, number.high, False))
    m = meaning(key)
    title = f"{m.label} by {what}"
    svg = plots.dots(lines, title=title, percent=m.unit == "share") if len(lines) > 1 else None
    return Figure(title, svg, _counts(key, rows, values)) if svg else None


def _difference(what: str, rows: Sequence[_Facts], paired: Sequence[Mapping[str, Any]]) -> str:
    """Accuracy of each model less that of the first, on the same images."""
    first, gaps, n = rows[0], [], 0
    for row in rows[1:]:
        pair = {first["model"], row["model"]}
        match = next((p for p in paired if {p["first"], p["second"]} == pair), None)
        if match:
            sign = 1 if match["first"] == row["model"] else -1
            ends = sorted(100 * sign * match[end] for end in ("low", "high"))
            gap = f"{100 * sign * match['difference']:+.1f} points [{ends[0]:+.1f}, {ends[1]:+.1f}]"
            gaps.append(f"{row[what]} " + gap.replace("-", "−"))
            n = match["n"]
    against = f"no {what}" if first[what] == "none" else first[what]
    return (
        f"Accuracy against {against} on the same {n:,} images: {'; '.join(gaps)}." if gaps else ""
    )


def _responses(rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Response-rate–accuracy curves of all models on one plot."""
    known = [row for row in rows if row.get("n", 0) >= _LEAST]
    sets = _grouped(known, lambda row: row["model"])
    if len(sets) < 2:
        return None
    heights = [row["accuracy"] for own in sets for row in own]
    low, high = min(heights), max(heights)
    ys = max(0.0, (low * 20 // 1 - 1) / 20), 1.0 if high > 0.6 else high * 1.5 + 0.05
    lines = []
    for own in sets:
        own = sorted(own, key=lambda row: float(row["rate"]))
        inside = [(max(r["low"], ys[0]), min(r["high"], ys[1])) for r in own]
        bounds = inside if len(sets) <= _BANDS else ()
        lines.append(
            plots.Series(own[0]["model"], [(r["rate"], r["accuracy"]) for r in own], bounds)
        )
    svg = plots.curves(
        lines,
        title="Accuracy against response rate",
        x_label="Coverage: share of images answered, most confident first",
        y_label="Accuracy",
        x_percent=True,
        ys=ys,
    )
    columns = [Column("Model"), *(Column(show(r, "share", digits=0), numeric=True) for r in _RATES)]
    body = [[Cell(own[0]["model"]), *(_at(own, rate) for rate in _RATES)] for own in sets]
    data = Table("Accuracy at a response rate", columns, body)
    counts = sorted({max(int(row["n"]) for row in own) for own in sets})
    caption = (
        "Left: each model answers only its most confident images. Right: it answers all. "
        f"n = {counts[-1]:,} images at the right end; curves start at {_LEAST} images."
    )
    if len(sets) > _BANDS:
        caption += " Intervals are in the table."
    legend = [(plots.swatch(i), line.name) for i, line in enumerate(lines)]
    return Figure("Accuracy against coverage", svg, caption, legend, data)


def _at(own: Sequence[Mapping[str, Any]], rate: float) -> Cell:
    row = min(own, key=lambda r: abs(float(r["rate"]) - rate))
    number = Number(row["accuracy"], row["n"], row["low"], row["high"], "")
    return number_cell("accuracy.top1", number)


def _grouped(
    rows: Sequence[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], object]
) -> list[list[Mapping[str, Any]]]:
    groups: dict[object, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())
