"""Table 1 of the RATIO paper beside ours: numbers, sets, recipes and differences of protocol."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from counterlens.report.kit.blocks import (
    Badge,
    Block,
    Cell,
    Column,
    Protocols,
    Section,
    Table,
    Text,
    Tone,
)
from counterlens.report.kit.parts import number_cell, plain_table
from counterlens.runs import Number, Run
from counterlens.runs.keys import Unit, show, verdict

TABLES = (
    "table1",
    "table1_sets",
    "table1_rows",
    "table1_counts",
    "table1_pairs",
    "differences",
)
_LOWER = ("ECE", "MMC")
_DIGITS = {"ECE": 2}


def sections(run: Run) -> list[Section]:
    """The table, its sets, what makes each row, and what differs."""
    rows, origins = run.table("table1"), run.table("table1_rows")
    blocks: list[Block] = [_table(rows, origins), *_protocols(rows)]
    lead = (
        "Ours in large with its 95 % interval, the paper's figure in brackets. Ours come from "
        "stored audits; rows without one say so. Arrows: lower is better. AUC, WC-AUC and MMC are "
        "not like for like: ours are means over four far natural sets that no training saw, the "
        "paper’s over six, with CIFAR-100 and ImageNet− (near, hard) and two noises among them. "
        "Set by set they are below."
    )
    parts = [Section("table1", "Side by side", blocks, lead)]
    sets = run.table("table1_sets")
    if sets:
        parts.append(Section("sets", "Set by set", [_sets(sets)], _SETS))
    if run.table("table1_pairs"):
        parts.append(_all_pairs(run))
    differs = plain_table("differences of protocol", run.table("differences"), drawn=False)
    parts.append(Section("differences", "What differs", differs, _DIFFERS, "Differences"))
    parts.append(Section("rows", "What makes each row", [_rows(origins)], _ORIGINS, "Recipes"))
    return parts


_SETS = (
    "The paper’s figure in brackets, on its own sets. Both measured smooth and uniform noise; no "
    "other set is shared. Sets whose kind training saw, and noise, stay out of our means above."
)
_PAIRS = (
    "Every two models of Table 1 and TRADES 0.5 in every column that the paper prints and that can "
    "be compared image by image; generated, none chosen. Reproduced: the 95 % interval of our "
    "difference lies wholly on the paper’s side of 0; reversed: wholly on the other; open: it "
    "holds 0. Of K pairs of equal models K/40 would be called reproduced and K/40 reversed by "
    "chance; “beyond chance”: the verdict stands at the level 1 − 0.05/K (Bonferroni). Our models "
    "were not trained for the same number of epochs, so a verdict is about these models and not "
    "about their losses alone; AUC, WC-AUC and MMC are of other sets than the paper’s. From stored "
    "audits, whatever was audited again."
)
_DIFFERS = "The two sides do not measure the same quantity where one of these differs."
_ORIGINS = (
    "Failure cases by the limits in docs/papers/ratio2020.md. The card of a row, with the command "
    "that trains it where its weights are not shipped: counterlens zoo RECIPE. Audit it again: "
    "counterlens reproduce table ratio-table1 --rerun RECIPE[=MODEL]."
)


def _table(rows: Sequence[Mapping[str, Any]], origins: Sequence[Mapping[str, Any]]) -> Table:
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    states = {row["row"]: row["state"] for row in origins}
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
            *(_set_cell(k, row[k], row.get(f"paper_{k}")) for k in ("auroc", "worst_auroc", "mmc")),
        ]
        for row in rows
    ]
    numeric = [Column(c, numeric=True) for c in ("AUC", "WC-AUC", "MMC")]
    columns = [Column("Model"), Column("Set"), Column("Kind"), *numeric]
    return Table("Each out-distribution set", columns, body, sortable=True, quiet=True)


def _set_cell(metric: str, stored: Mapping[str, Any] | None, paper: float | None) -> Cell:
    """A number with interval, n and the paper's; only a doubt about the attack is marked."""
    theirs = "" if paper is None else f"({100 * paper:.1f})"
    if stored is None:
        return replace(number_cell(metric, None), more=theirs)
    number = Number.from_json(stored)
    cell = number_cell(f"ood.set.{metric}", number)
    cell = replace(cell, more=" ".join(filter(None, (f"n = {number.n:,}", theirs))))
    return replace(cell, badge=None) if verdict(number) == "trusted" else cell


def _all_pairs(run: Run) -> Section:
    """How often our models stand in the paper's order, and every pair."""
    rows = run.table("table1_counts")
    names = list(rows[0])
    body = [
        [Cell(str(row["column"])), *(Cell(str(row[k]), sort=row[k]) for k in names[1:])]
        for row in rows
    ]
    columns = [Column("Column"), *(Column(name, numeric=True) for name in names[1:])]
    counted = Table("Pairs by verdict", columns, body, quiet=True)
    pairs = [_pair(row) for row in run.table("table1_pairs")]
    wide = [Column(c) for c in ("Column", "Higher in the paper", "Lower")]
    wide += [Column(c, numeric=True) for c in ("Paper", "Ours", "n")]
    wide += [Column("Verdict"), Column("Attacks")]
    whole = Table("Every pair, differences in points", wide, pairs, sortable=True, quiet=True)
    return Section("pairs", "All pairs", [counted, whole], _PAIRS)


def _pair(row: Mapping[str, Any]) -> list[Cell]:
    start = [Cell(str(row[key])) for key in ("column", "higher", "lower")]
    start.append(Cell(f"{100 * row['paper']:+.2f}", sort=row["paper"]))
    if row["value"] is None:
        nothing = Cell("–", tone="muted")
        return [*start, nothing, nothing, Cell(row["verdict"]), nothing]
    value, low, high = (100 * row[key] for key in ("value", "low", "high"))
    sure = "beyond chance" if row["beyond_chance"] else ""
    tones: dict[str, Tone] = {"reproduced": "good", "reversed": "bad"}
    state = Cell("", sub=sure, badge=Badge(row["verdict"], tones.get(row["verdict"], "")))
    attack = ", ".join(filter(None, (row["attack"] or "", row["trust"] or "")))
    return [
        *start,
        Cell(f"{value:+.1f}", f"[{low:+.1f}, {high:+.1f}]", value),
        Cell(f"{row['n']:,}", sort=row["n"]),
        state,
        Cell(attack),
    ]


def _rows(rows: Sequence[Mapping[str, Any]]) -> Table:
    body = []
    for row in rows:
        failed = row["failures"]
        state = Cell("–", tone="muted")
        if failed is not None:
            badge = Badge(f"{len(failed)}", "bad") if failed else Badge("none", "good")
            unjudged = "".join(f"Not judged: {text}." for text in row["unjudged"])
            state = Cell("", sub="; ".join(failed), badge=badge, more=unjudged)
        took = f"{row['minutes']:g} min on {row['device']}" if row["minutes"] is not None else "–"
        took = f"{row['epochs']} epochs, {took}" if row["epochs"] is not None else took
        cells = [str(row["row"]), str(row["recipe"] or "–"), str(row["state"]), took]
        body.append([*(Cell(text) for text in cells), state])
    names = ("Model", "Recipe", "State", "Training", "Failure cases")
    return Table("What makes each row", [Column(n) for n in names], body, quiet=True)
