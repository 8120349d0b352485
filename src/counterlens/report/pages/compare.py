"""The sections of a comparison: models side by side, failures flagged, differences paired."""

from collections.abc import Mapping, Sequence
from typing import Any

from counterlens.report.kit import plots
from counterlens.report.kit.blocks import (
    Badge,
    Block,
    Cell,
    Column,
    Figure,
    Protocols,
    Row,
    Section,
    Table,
    Tone,
)
from counterlens.report.kit.parts import digits, number_cell, number_list, plain_table
from counterlens.report.pages import families, seen
from counterlens.runs import Number, Run
from counterlens.runs.keys import meaning, show

TABLES = (
    "models",
    "summary",
    "failures",
    "paired",
    "everything",
    "notes",
    "flips",
    "group_flips",
    "parity",
    *families.TABLES,
    *seen.TABLES,
)
_BADGES: dict[str, tuple[str, Tone]] = {
    "best": ("best", "good"),
    "fail": ("fails", "bad"),
    "worse": ("worse, not clearly", "warn"),
    "do not quote": ("do not quote", "bad"),
}


def sections(run: Run) -> list[Section]:
    """Summary first, then pairs, then every number."""
    summary = run.table("summary")
    out = [
        Section("summary", "Side by side", _summary(run, summary), _lead(run, summary)),
        *seen.sections(run),
        Section("plots", "The same numbers as plots", _plots(summary)),
        *families.sections(run),
        Section("paired", "Paired differences", _paired(run.table("paired")), _PAIRED),
        Section("flips", "Flips", _flips(run), _FLIPS),
        Section("parity", "Parity of logits", _parity(run), _PARITY),
        Section("everything", "Every shared number", _everything(run.table("everything"))),
        Section("models", "Runs compared", plain_table("models", run.table("models"))),
    ]
    return [section for section in out if section.blocks]


_PAIRED = (
    "Two models on the same images: the images both get right or wrong cancel out, so these "
    "intervals are narrower than those of either number alone."
)


_FLIPS = (
    "Answers that changed from the first run to a later one: a higher accuracy may hide images "
    "that were right before and are wrong now."
)


def _flips(run: Run) -> list[Block]:
    rates = {
        k: n
        for k, n in run.numbers.items()
        if meaning(k).area == "flips" and (".groups." not in k or ".groups.worst." in k)
    }
    if not rates:
        return []
    rows = run.table("flips")
    listed = plain_table("flipped images", rows, folded=True) if rows else []
    groups = run.table("group_flips")
    by_group = [_group_flips(groups)] if groups else []
    return [number_list(rates, caption="Flip rates"), *by_group, *listed]


def _group_flips(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rates by group, the most broken first."""
    models = len({row["model"] for row in rows}) > 1
    body = []
    for row in rows:
        name = f"{row['column']} = {row['value']}"
        cells = [
            Cell(name, str(row["model"]) if models else ""),
            Cell(f"{row['n']:,}", "", row["n"]),
        ]
        for kind in ("negative", "positive"):
            ends = f"[{100 * row[f'{kind}_low']:.1f}, {100 * row[f'{kind}_high']:.1f}]"
            cells.append(Cell(show(row[kind], "share"), ends, row[kind]))
        body.append(cells)
    columns = [
        Column("Group"),
        Column("n", numeric=True),
        Column("Right before, wrong after", numeric=True, sub="simultaneous 95 %"),
        Column("Wrong before, right after", numeric=True, sub="simultaneous 95 %"),
    ]
    return Table("Flips by group", columns, body, sortable=True, folded=len(rows) > 20)


_PARITY = (
    "Whether a later run gives the logits of the first on each image, as an export of it must. "
    "What makes them part: counterlens doctor MODEL DATA --exported-from MODEL."
)


def _parity(run: Run) -> list[Block]:
    numbers = {k: n for k, n in run.numbers.items() if meaning(k).area == "parity"}
    if not numbers:
        return []
    rows = run.table("parity")
    listed = plain_table("images that part most", rows, folded=True) if rows else []
    return [number_list(numbers, caption="Parity"), *listed]


def _lead(run: Run, summary: Sequence[Mapping[str, Any]]) -> str:
    models = list(dict.fromkeys(row["model"] for row in summary))
    failed = {row["model"] for row in summary if row["status"] == "fail"}
    clean = [m for m in models if m not in failed]
    if any(row["status"] == "apart" for row in summary):
        return "These runs saw different images, so they are shown but not judged."
    if not failed:
        return "No model has a clear failure."
    verb = "has" if len(clean) == 1 else "have"
    good = f"{', '.join(clean)} {verb} no clear failure. " if clean else ""
    return good + " ".join(_failing(model, summary) for model in models if model in failed)


def _failing(model: str, summary: Sequence[Mapping[str, Any]]) -> str:
    """Where a model fails, in a sentence with its value and the best one."""
    failed = []
    for row in summary:
        if row["model"] == model and row["status"] == "fail":
            best = next(
                (r for r in summary if r["key"] == row["key"] and r["status"] == "best"), None
            )
            against = f" against {_value(best)} of {best['model']}" if best else ""
            failed.append(f"{row['label']} ({_value(row)}{against})")
    more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
    return f"{model} fails on {'; '.join(failed[:3])}{more}."


def _value(row: Mapping[str, Any]) -> str:
    key = str(row["key"])
    return show(row["value"], meaning(key).unit, digits=digits(key))


def _summary(run: Run, rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    if not rows:
        return []
    models = list(dict.fromkeys(row["model"] for row in rows))
    keys = list(dict.fromkeys(row["key"] for row in rows))
    at = {(row["key"], row["model"]): row for row in rows}
    body = []
    for key in keys:
        first = at[key, models[0]]
        way = "higher is better" if first["better"] == "up" else "lower is better"
        limit = show(first["limit"], "share", digits=0) if first["limit"] is not None else "–"
        cells = [_cell(at[key, model]) for model in models]
        body.append([Cell(first["label"], sub=way), *cells, Cell(limit)])
    failures = [sum(at[key, m]["status"] == "fail" for key in keys) for m in models]
    counts = [Cell(str(n), badge=Badge("none", "good") if n == 0 else None) for n in failures]
    if not any(row["status"] == "apart" for row in rows):
        body.append([Cell("Clear failures"), *counts, Cell("")])
    columns = [Column("Metric"), *(Column(m, numeric=True) for m in models)]
    columns.append(Column("Limit", numeric=True, sub="allowed gap"))
    protocols = [(at[key, m]["label"], at[key, m]["protocol"]) for key in keys for m in models]
    protocols = [pair for pair in dict.fromkeys(protocols) if pair[1]]
    rule = ("Rule of the verdicts", str(run.manifest.get("rule", "")))
    table = Table("Models side by side", columns, body, quiet=True)
    return [table, Protocols([rule, *protocols])]


def _plots(rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    """A plot per number of the summary, one dot and interval per model."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    at = {(row["key"], row["model"]): row for row in rows}
    drawn = [_dots(key, models, at) for key in dict.fromkeys(row["key"] for row in rows)]
    figures = [figure for figure in drawn if figure]
    return [Row(figures, small=True)] if figures else []


def _cell(row: Mapping[str, Any]) -> Cell:
    if row["value"] is None:
        return Cell("–", sub=str(row.get("reason") or ""), tone="muted")
    number = Number(row["value"], row["n"], row["low"], row["high"], row["protocol"])
    plain = number_cell(row["key"], number)
    badge = _BADGES.get(row["status"])
    tone: Tone = "bad" if row["status"] in ("fail", "do not quote") else ""
    mark = Badge(*badge) if badge else None
    sub = f"{plain.sub}, weak attack" if row.get("trust") == "weak" else plain.sub
    return Cell(plain.text, sub, plain.sort, mark, tone=tone, more=plain.more)


def _dots(
    key: str, models: Sequence[str], at: Mapping[tuple[str, str], Mapping[str, Any]]
) -> Figure | None:
    rows = [at[key, m] for m in models if at[key, m]["value"] is not None]
    if len(rows) < 2:
        return None
    percent = meaning(key).unit == "share"
    title = str(rows[0]["label"])
    svg = plots.dots(
        [(r["model"], r["value"], r["low"], r["high"], r["status"] == "fail") for r in rows],
        title=title,
        percent=percent,
    )
    return Figure(title, svg)


def _paired(rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    if not rows:
        return []
    body = []
    for row in rows:
        unit = meaning(row["key"]).unit
        ends = [
            show(row[end], unit, digits=digits(row["key"])).split("\u202f")[0]
            for end in ("low", "high")
        ]
        wins = (
            row["difference"] > 0 if meaning(row["key"]).better == "up" else row["difference"] < 0
        )
        better = row["first"] if wins else row["second"]
        badge = (
            Badge(f"{better} is better", "good")
            if row["clear"]
            else Badge("no clear difference", "muted")
        )
        verdict = str((row.get("trust") or {}).get("verdict"))
        doubt = {"weak": "an attack is weak", "do not quote": "do not quote"}.get(verdict, "")
        split = (
            f"{row['only_first']:,} / {row['only_second']:,}"
            if row.get("only_first") is not None
            else "–"
        )
        body.append(
            [
                Cell(meaning(row["key"]).label),
                Cell(f"{row['first']} − {row['second']}"),
                Cell(show(row["difference"], unit), f"[{', '.join(ends)}]", row["difference"]),
                Cell("", doubt, badge=badge),
                Cell(split),
                Cell(f"{row['n']:,}", sort=row["n"]),
            ]
        )
    columns = [
        Column("Metric"),
        Column("Difference of"),
        Column("Value", numeric=True, sub="95 % interval"),
        Column("Verdict"),
        Column("Only one right", numeric=True, sub="first / second"),
        Column("n", numeric=True),
    ]
    protocols = dict.fromkeys((meaning(row["key"]).label, row["protocol"]) for row in rows)
    table = Table("Paired differences", columns, body, quiet=True)
    return [table, Protocols(list(protocols))]


def _everything(rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    models = list(dict.fromkeys(row["model"] for row in rows))
    numbers = {(row["key"], row["model"]): Number.from_json(row) for row in rows}
    body = []
    for key in dict.fromkeys(row["key"] for row in rows):
        cells = [number_cell(key, numbers.get((key, m))) for m in models]
        body.append([Cell(meaning(key).label, sub=key), *cells])
    columns = [Column("Number"), *(Column(m, numeric=True) for m in models)]
    return [Table("Show the table", columns, body, folded=True)]
