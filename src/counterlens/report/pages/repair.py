"""A repair: the verdict, what changed for whom, which answers turned, and what else was tried."""

from collections.abc import Mapping, Sequence
from typing import Any

from counterlens.report.kit import plots
from counterlens.report.kit.blocks import (
    Badge,
    Block,
    Cell,
    Code,
    Column,
    Figure,
    Row,
    Section,
    Table,
    Text,
    Tone,
)
from counterlens.report.kit.parts import galleries, plain_table
from counterlens.runs import Run
from counterlens.runs.keys import meaning, show

TABLES = (
    *("verdict", "receipt", "tried", "placebos", "sizes", "notes", "keys", "plan"),
    *("flips", "gallery", "pairs"),
)
_TONES: dict[str, Tone] = {"better": "good", "not shown": "warn", "worse": "bad"}
_FLIPS = {
    "now right": "Wrong before, right after",
    "now wrong": "Right before, wrong after",
}
_KINDS = {"all": "", "class": "class", "group": "group"}
_Rows = Sequence[Mapping[str, Any]]


def sections(run: Run) -> list[Section]:
    """Verdict and receipt first, then the turned answers, then how the remedy was picked."""
    out: list[Section] = []
    for row in run.table("verdict"):
        out.append(_receipt(run, row))
        flips = galleries(run, _FLIPS, _FLIPS)
        if flips:
            lead = "Check images whose answer turned, those first that turned most."
            out.append(Section("flips", "Answers that turned", flips, lead))
    if tried := run.table("tried"):
        out.append(_tried(tried, run.table("placebos")))
    if keys := run.table("keys"):
        out.append(Section("keys", "Accuracy and calibration", [_keys(keys)], _KEYS))
    if plan := run.table("plan"):
        blocks = plain_table("Remedies", plan)
        out.append(Section("plan", "What could be tried", blocks))
        if pairs := galleries(run, ("pairs",), {"pairs": "Original and edited"}):
            out.append(Section("pairs", "Pairs to judge", pairs, _PAIRS))
    out.append(Section("sizes", "Groups and splits", _groups(run), _GROUPS))
    return out


_PAIRS = (
    "The first of the pairs that were written. Judge them in the app (counterlens app FOLDER, page "
    "Repairs); a repair with --pairs run:FOLDER then trains on those that were accepted."
)
_KEYS = "On the check images; the difference is paired. Confidence has no better side by itself."
_GROUPS = (
    "One half of the fix images fits the heads, the other chooses among settings and remedies. The "
    "check images did neither; no image is, or nearly is, in two of the three."
)


def badge(run: Run) -> Badge | None:
    """The verdict for the head of the page."""
    for row in run.table("verdict"):
        return Badge(str(row["verdict"]), _TONES.get(str(row["verdict"]), ""))
    return None


def _receipt(run: Run, verdict: Mapping[str, Any]) -> Section:
    rows = run.table("receipt")
    blocks: list[Block] = [Text(str(verdict["why"]))]
    if (run.folder / "repaired.json").is_file():
        blocks.append(
            Code(
                "Use the repaired model",
                f"counterlens audit repaired:{run.folder} IMAGES",
                folded=False,
                copy=True,
            )
        )
    body = []
    for row in rows:
        signs = [Badge("worse", "bad")] if row["worse"] else []
        if not signs and row["low"] > 0:
            signs = [Badge("better", "good")]
        change = Cell(
            _points(row["change"]),
            sub=f"[{_points(row['low'])}, {_points(row['high'])}]",
            sort=row["change"],
            badge=signs[0] if signs else None,
            bar=plots.interval_bar(row["change"], row["low"], row["high"], scale=(-1.0, 1.0)),
        )
        body.append(
            [
                Cell(str(row["name"]), sub=_KINDS.get(str(row["kind"]), "")),
                Cell(f"{row['n']:,}", sort=row["n"]),
                Cell(show(row["before"], "share"), sort=row["before"]),
                Cell(show(row["after"], "share"), sort=row["after"]),
                change,
                Cell(f"{row['gained']:,}", sort=row["gained"]),
                Cell(f"{row['lost']:,}", sort=row["lost"]),
                Cell(show(row["p_worse_holm"]), sort=row["p_worse_holm"]),
            ]
        )
    columns = [
        Column("Check images"),
        Column("n", numeric=True),
        Column("Before", numeric=True),
        Column("After", numeric=True),
        Column("Change in points", numeric=True, sub="paired, 95 %"),
        Column("Now right", numeric=True),
        Column("Now wrong", numeric=True),
        Column("p of worse", numeric=True, sub="McNemar, Holm"),
    ]
    note = (
        "Intervals of single rows are Newcombe's for paired shares and not corrected. Worse: exact "
        "one-sided McNemar test, corrected by Holm over all rows of this table."
    )
    table = Table("Before and after on the check images", columns, body, note=note)
    return Section("receipt", f"Receipt: {verdict['verdict']}", [*blocks, table])


def _tried(rows: _Rows, placebos: _Rows) -> Section:
    done = [row for row in rows if not row.get("refused")]
    figures = [
        _figure(done, "worst_group", ("worst_low", "worst_high"), "Worst group"),
        _figure(done, "accuracy", ("accuracy_low", "accuracy_high"), "Accuracy"),
    ]
    body = [_candidate(row) for row in rows]
    columns = [
        Column("Head"),
        Column("Worst group", numeric=True, sub="choose"),
        Column("Worst group", numeric=True, sub="check"),
        Column("Change in points", numeric=True, sub="check, 95 %"),
        Column("Accuracy", numeric=True, sub="check"),
        Column("Change in points", numeric=True, sub="check, 95 %"),
        Column("Fit", numeric=True, sub="seconds"),
    ]
    note = (
        "Picked by the choosing images alone; only the picked head decides the verdict, the other "
        "rows are shown to compare and are not corrected for their number. Intervals of the worst "
        "group hold whichever group is worst: exact bounds of all groups together (Bonferroni)."
    )
    blocks: list[Block] = [
        Row(figures),
        Table("Every head that was tried", columns, body, note=note),
    ]
    if placebos:
        blocks.append(_placebos(placebos))
    return Section("tried", "What was tried", blocks, _TRIED)


_TRIED = (
    "Beside each remedy stands its placebo: the same fit without what is supposed to help. A plain "
    "refit on the same images shows what more data alone does. Hollow dots are placebos."
)


def _figure(rows: _Rows, key: str, ends: tuple[str, str], title: str) -> Figure:
    lines = [
        (str(row["name"]), row[key], row[ends[0]], row[ends[1]], row["kind"] == "placebo")
        for row in rows
    ]
    caption = "Check images; lines are 95 % intervals."
    return Figure(title, plots.dots(lines, title=title), caption)


def _candidate(row: Mapping[str, Any]) -> list[Cell]:
    mark = Badge("picked", "good") if row["picked"] else None
    kind = "" if row["kind"] == "remedy" else str(row["kind"])
    name = Cell(str(row["name"]), sub=kind, badge=mark)
    if row.get("refused"):
        empty = Cell("–", tone="muted")
        reason = Cell(
            str(row["name"]), sub=f"not tried: {row['refused']}", badge=Badge("refused", "muted")
        )
        return [reason, *[empty] * 6]
    return [
        name,
        Cell(show(row["choose_worst"], "share"), sort=row["choose_worst"]),
        Cell(
            show(row["worst_group"], "share"),
            sub=_range(row["worst_low"], row["worst_high"]),
            sort=row["worst_group"],
            more=str(row["worst"]),
        ),
        _change(row, "groups.worst"),
        Cell(
            show(row["accuracy"], "share"),
            sub=_range(row["accuracy_low"], row["accuracy_high"]),
            sort=row["accuracy"],
        ),
        _change(row, "accuracy.top1"),
        Cell(f"{row['seconds']:.1f}", sort=row["seconds"]),
    ]


def _change(row: Mapping[str, Any], key: str) -> Cell:
    value = row.get(f"{key}.change")
    if value is None:
        return Cell("–", tone="muted")
    low, high = row[f"{key}.low"], row[f"{key}.high"]
    return Cell(_points(value), sub=f"[{_points(low)}, {_points(high)}]", sort=value)


def _placebos(rows: _Rows) -> Table:
    body = [
        [
            Cell(str(row["placebo"])),
            Cell(str(row["key"])),
            Cell(
                _points(row["above"]),
                sub=f"[{_points(row['low'])}, {_points(row['high'])}]",
                sort=row["above"],
                badge=None if row["low"] > 0 else Badge("not shown", "warn"),
            ),
        ]
        for row in rows
    ]
    columns = [
        Column("Placebo"),
        Column("Number"),
        Column("Picked head above it, in points", numeric=True, sub="check, 95 %"),
    ]
    return Table("The picked head against its placebos", columns, body)


def _keys(rows: _Rows) -> Table:
    body = []
    for row in rows:
        unit = meaning(str(row["key"])).unit
        body.append(
            [
                Cell(meaning(str(row["key"])).label, sub=str(row["key"])),
                Cell(show(row["before"], unit)),
                Cell(show(row["after"], unit)),
                Cell(
                    show(row["change"], unit),
                    sub=f"[{show(row['low'], unit)}, {show(row['high'], unit)}]",
                ),
                Cell(str(row["protocol"])),
            ]
        )
    columns = [
        Column("Number"),
        Column("Before", numeric=True),
        Column("After", numeric=True),
        Column("Change", numeric=True, sub="95 %"),
        Column("Interval", long=True),
    ]
    return Table("Accuracy and calibration", columns, body, quiet=True)


def _groups(run: Run) -> list[Block]:
    blocks: list[Block] = [Text(str(row["note"])) for row in run.table("notes")]
    return blocks + plain_table("Images of each group", run.table("sizes"))


def _points(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "−")


def _range(low: float, high: float) -> str:
    return f"[{100 * low:.1f}, {100 * high:.1f}]"
