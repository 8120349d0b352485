"""Table 1 of the RATIO paper beside ours: numbers, sets, recipes and differences of protocol."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from counterlens.report.blocks import Badge, Block, Cell, Column, Protocols, Section, Table, Text
from counterlens.report.parts import number_cell, plain_table
from counterlens.runs import Number, Run
from counterlens.runs.keys import Unit, show, verdict

TABLES = ("table1", "table1_sets", "table1_rows", "differences")
_LOWER = ("ECE", "MMC")
_DIGITS = {"ECE": 2}


def sections(run: Run) -> list[Section]:
    """The table, its sets, what makes each row, and what differs."""
    rows, made = run.table("table1"), run.table("table1_rows")
    blocks: list[Block] = [_table(rows, made), *_protocols(rows)]
    lead = (
        "Ours in large with its 95 % interval, the paper's figure in brackets. Ours come from "
        "stored audits; rows without one say so. Arrows: lower is better. AUC, WC-AUC and MMC of "
        "ours are means over the unseen natural sets."
    )
    found = [Section("table1", "Side by side", blocks, lead)]
    sets = run.table("table1_sets")
    if sets:
        found.append(Section("sets", "Set by set", [_sets(sets)], _SETS))
    differs = plain_table("differences of protocol", run.table("differences"), drawn=False)
    found.append(Section("differences", "What differs", differs, _DIFFERS, "Differences"))
    found.append(Section("rows", "What makes each row", [_rows(made)], _MADE, "Recipes"))
    return found


_SETS = "Sets whose kind training saw, and noise, stay out of the means of the table above."
_DIFFERS = "The two sides do not measure the same thing where one of these differs."
_MADE = (
    "Failure cases by the limits in docs/papers/ratio2020.md. The card of a row, with the command "
    "that trains it where its weights are not shipped: counterlens zoo RECIPE. Audit it again: "
    "counterlens reproduce ratio-table1 --rerun RECIPE[=MODEL]."
)


def _table(rows: Sequence[Mapping[str, Any]], made: Sequence[Mapping[str, Any]]) -> Table:
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    states = {row["row"]: row["state"] for row in made}
    body = []
    for name in dict.fromkeys(row["row"] for row in rows):
        cells = [_cell(row) for row in rows if row["row"] == name]
        body.append([Cell(name, sub=str(states.get(name, ""))), *cells])
    columns = [Column("Model")]
    columns += [Column(f"{m} ↓" if m in _LOWER else m, numeric=True) for m in metrics]
    return Table("Table 1, CIFAR-10", columns, body, quiet=True)


def _cell(row: Mapping[str, Any]) -> Cell:
    metric = row["metric"]
    unit: Unit = "plain" if metric == "T" else "share"
    digits = _DIGITS.get(metric, 1)
    scale = 1 if metric == "T" else 100
    paper = "" if row["paper"] is None else f"({round(scale * row['paper'], 2):g})"
    if row["ours"] is None:
        return Cell("–", more=paper, tone="muted")
    ends = f"[{scale * row['low']:.{digits + (metric == 'T')}f}, " if row["low"] is not None else ""
    ends += f"{scale * row['high']:.{digits + (metric == 'T')}f}]" if ends else ""
    word = row.get("verdict")
    badge = (
        Badge(word, "warn" if word == "weak" else "bad")
        if word not in (None, "", "trusted")
        else None
    )
    return Cell(show(row["ours"], unit, digits=digits), ends, row["ours"], badge, more=paper)


def _protocols(rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    lines = dict.fromkeys(
        (row["metric"], f"{row['protocol']} (n = {row['n']:,})")
        for row in rows
        if row["protocol"] is not None
    )
    if not lines:
        return [Text("No audit is stored yet: only the paper's figures are shown.")]
    return [Protocols(list(lines))]


def _sets(rows: Sequence[Mapping[str, Any]]) -> Table:
    body = [
        [
            Cell(str(row["row"])),
            Cell(str(row["set"])),
            Cell(str(row["kind"])),
            *(_set_cell(k, row[k]) for k in ("auroc", "worst_auroc", "mmc")),
        ]
        for row in rows
    ]
    numeric = [Column(c, numeric=True) for c in ("AUC", "WC-AUC", "MMC")]
    columns = [Column("Model"), Column("Set"), Column("Kind"), *numeric]
    return Table("Each out-distribution set", columns, body, sortable=True, quiet=True)


def _set_cell(metric: str, stored: Mapping[str, Any] | None) -> Cell:
    """A number with interval and n; only a doubt about the attack is marked."""
    if stored is None:
        return number_cell(metric, None)
    number = Number.from_json(stored)
    cell = replace(number_cell(f"ood.set.{metric}", number), more=f"n = {number.n:,}")
    return replace(cell, badge=None) if verdict(number) == "trusted" else cell


def _rows(rows: Sequence[Mapping[str, Any]]) -> Table:
    body = []
    for row in rows:
        failed = row["failures"]
        said = Cell("–", tone="muted")
        if failed is not None:
            badge = Badge(f"{len(failed)}", "bad") if failed else Badge("none", "good")
            told = "".join(f"Not judged: {text}." for text in row["unjudged"])
            said = Cell("", sub="; ".join(failed), badge=badge, more=told)
        took = f"{row['minutes']:g} min on {row['device']}" if row["minutes"] is not None else "–"
        took = f"{row['epochs']} epochs, {took}" if row["epochs"] is not None else took
        cells = [str(row["row"]), str(row["recipe"] or "–"), str(row["state"]), took]
        body.append([*(Cell(text) for text in cells), said])
    names = ("Model", "Recipe", "State", "Training", "Failure cases")
    return Table("What makes each row", [Column(n) for n in names], body, stack=True, quiet=True)
