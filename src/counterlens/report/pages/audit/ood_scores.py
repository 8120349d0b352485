"""The part of an audit on several OOD scores: one table of AUROCs, then which score wins."""

from collections.abc import Mapping, Sequence
from typing import Any

from counterlens.report.kit.blocks import Badge, Block, Cell, Column, Protocols, Table, Text
from counterlens.report.kit.parts import number_cell
from counterlens.runs import Number, Run, key_part
from counterlens.runs.keys import OOD_SCORES, show

GROUPS = {"near": "Near sets, mean", "far": "Far sets, mean", "all": "All sets, mean"}
_ORDER = ("all", "near", "far")


def blocks(run: Run) -> list[Block]:
    """Scores down, sets across, best first; then the winner and the rest of the numbers."""
    rows = run.table("ood_scores")
    if not rows:
        return []
    numbers = run.numbers
    pairs = run.table("ood_score_pairs")
    formulas = {str(r["score"]): str(r["formula"]) for r in rows if r["formula"]}
    lines = [(OOD_SCORES.get(score, score), text) for score, text in formulas.items()]
    means = [n.protocol for key, n in numbers.items() if key.startswith("ood_score.all.")]
    lines += [("Mean over sets", text) for text in dict.fromkeys(means)]
    shown, _ = _subjects(rows)
    out: list[Block] = [
        _auroc_table(rows, numbers),
        *(Text(sentence) for sentence in _sentences(shown or ["all"], pairs, numbers)),
        _details(rows),
        Protocols(lines),
    ]
    worst = _worst_table(rows, numbers)
    if worst:
        out.insert(1, worst)
    return out


def _subjects(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Groups that say more than a set alone, and sets."""
    every = [str(row["set"]) for row in rows if row["set"] not in GROUPS or row["sets"] > 1]
    every = list(dict.fromkeys(every))
    sets = [name for name in every if name not in GROUPS]
    shown = [name for name in _ORDER if name in every] if len(sets) > 1 else []
    return shown, sets


def _ranked(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    means = {str(row["score"]): row["auroc"] for row in rows if row["set"] == "all"}
    return sorted(means, key=lambda score: -means[score])


def _auroc_table(rows: Sequence[Mapping[str, Any]], numbers: Mapping[str, Number]) -> Table:
    shown, sets = _subjects(rows)
    scores = _ranked(rows)
    best = {
        name: max(scores, key=lambda score: _value(numbers, name, score) or 0.0)
        for name in [*shown, *sets]
    }
    body = []
    for score in scores:
        cells = [Cell(OOD_SCORES.get(score, score))]
        for name in [*shown, *sets]:
            key = f"ood_score.{key_part(name)}.{score}_auroc"
            number = numbers.get(key)
            interval = number_cell(key, number)
            cells.append(
                Cell(
                    interval.text,
                    sub=interval.sub,
                    sort=interval.sort,
                    badge=Badge("best", "good") if best[name] == score else None,
                )
            )
        body.append(cells)
    columns = [Column("Score"), *(Column(GROUPS.get(n, n), numeric=True) for n in [*shown, *sets])]
    note = "AUROC with 95 % interval, higher is better; the best of each column is marked."
    return Table("OOD scores: AUROC", columns, body, sortable=True, note=note)


def _value(numbers: Mapping[str, Number], name: str, score: str) -> float | None:
    number = numbers.get(f"ood_score.{key_part(name)}.{score}_auroc")
    return number.value if number else None


def _sentences(
    shown: Sequence[str], pairs: Sequence[Mapping[str, Any]], numbers: Mapping[str, Number]
) -> list[str]:
    """Which score is best in each group, and which are not clearly behind it."""
    lines = []
    for group in shown:
        part = [row for row in pairs if row["set"] == group]
        if not part:
            continue
        best = str(part[0]["best"])
        level = [row for row in part if not row["clear"]]
        closest = min(part, key=lambda row: row["difference"])
        ends = f"[{100 * closest['low']:.1f}, {100 * closest['high']:.1f}]"
        lead = (
            f"{GROUPS[group]}: {OOD_SCORES.get(best, best)} is highest "
            f"({show(_value(numbers, group, best), 'share')}), "
            f"{100 * closest['difference']:.1f} points {ends} above "
            f"{OOD_SCORES.get(str(closest['other']), str(closest['other']))}."
        )
        names = ", ".join(OOD_SCORES.get(str(row["other"]), str(row["other"])) for row in level)
        rest = (
            f" Not clearly behind it: {names}." if level else " All others are clearly behind it."
        )
        lines.append(f"{lead}{rest} The intervals of these paired differences hold together, 95 %.")
    return lines


def _worst_table(rows: Sequence[Mapping[str, Any]], numbers: Mapping[str, Number]) -> Table | None:
    """Worst-case AUROC of each attacked score."""
    _, sets = _subjects(rows)
    body = []
    for score in _ranked(rows):
        keys = [f"ood_score.{key_part(name)}.{score}_worst_auroc" for name in sets]
        if any(key in numbers for key in keys):
            cells = [number_cell(key, numbers.get(key)) for key in keys]
            body.append([Cell(OOD_SCORES.get(score, score)), *cells])
    if not body:
        return None
    columns = [Column("Score"), *(Column(name, numeric=True) for name in sets)]
    note = "Each score is attacked by its own gradient; an upper bound with its verdict."
    return Table("OOD scores under attack: worst-case AUROC", columns, body, note=note)


def _details(rows: Sequence[Mapping[str, Any]]) -> Table:
    """AUPR both ways and FPR95, folded."""
    metrics = (
        ("auroc", "AUROC"),
        ("aupr", "AUPR, unknown positive"),
        ("aupr_in", "AUPR, known positive"),
        ("fpr95", "FPR95"),
    )
    body = []
    for row in rows:
        if row["set"] in GROUPS:
            continue
        cells = [Cell(str(row["set"])), Cell(OOD_SCORES.get(str(row["score"]), str(row["score"])))]
        for metric, _ in metrics:
            low, high = row.get(f"{metric}_low"), row.get(f"{metric}_high")
            ends = "" if low is None or high is None else f"[{100 * low:.1f}, {100 * high:.1f}]"
            value = row.get(metric)
            cells.append(Cell(show(value, "share"), sub=ends, sort=value))
        body.append([*cells, Cell(f"{row['n']:,}", sort=row["n"])])
    columns = [Column("Set"), Column("Score")]
    columns += [Column(words, numeric=True) for _, words in metrics]
    columns.append(Column("n", numeric=True))
    note = (
        "FPR95: share of unknown images accepted when 95 % of the known are (known positive, as in "
        "the papers; OpenOOD 1.5 has the unknown positive). AUPR at the ratio of these sets."
    )
    return Table("All OOD scores", columns, body, sortable=True, note=note, folded=True)
