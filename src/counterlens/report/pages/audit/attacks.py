"""The section on attacks: robust accuracy, curves over the radius, and whether to trust them."""

from collections.abc import Mapping, Sequence
from typing import Any

from counterlens.report.kit import plots
from counterlens.report.kit.blocks import Block, Cell, Column, Figure, Row, Section, Table
from counterlens.report.kit.parts import number_list, plain_table, status_badge
from counterlens.runs import Run
from counterlens.runs.keys import meaning, show


def section(run: Run) -> Section:
    """Robust numbers with their verdicts, curves over the radius, and the trust flags."""
    blocks: list[Block] = []
    numbers = {k: n for k, n in run.numbers.items() if meaning(k).area == "robust"}
    if numbers:
        blocks.append(number_list(numbers, caption="Under attack"))
    published = run.table("published")
    if published:
        blocks.append(_published(published))
    figures = []
    curve = run.table("robust_curve")
    if curve:
        figures += _robust_curves(curve)
    radius = run.table("confidence_radius")
    if radius:
        figures += _radius_curves(radius)
    if figures:
        blocks.append(Row(figures))
    blocks += _classes(run)
    trust = run.table("trust")
    if trust:
        blocks.append(_trust_table(trust))
    lead = (
        "How many images stay right when an attacker may change each a little. Attacks give upper "
        "bounds: the verdict says whether this one is worth quoting."
    )
    return Section("robustness", "Robustness", blocks, lead)


def _published(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What others measured of the same checkpoint, beside the number of this run."""
    body = [
        [
            Cell(str(row["attack"])),
            Cell(show(row["ours"], "share"), _between(row, "ours_"), row["ours"]),
            Cell(show(row["robust"], "share"), _between(row, ""), row["robust"]),
            Cell(show(row["clean"], "share"), sort=row["clean"]),
            Cell(str(row["source"])),
        ]
        for row in rows
    ]
    columns = [
        Column("Attack"),
        Column("This run", numeric=True),
        Column("Published", numeric=True),
        Column("Published clean accuracy", numeric=True),
        Column("Source"),
    ]
    note = "Published values were measured by others or before, not here; the images may differ."
    return Table("Published for this checkpoint", columns, body, note=note)


def _between(row: Mapping[str, Any], part: str) -> str:
    low, high, n = (row.get(f"{part}{key}") for key in ("low", "high", "n"))
    ends = "" if low is None or high is None else f"[{100 * low:.1f}, {100 * high:.1f}], "
    return f"{ends}n = {n:,}" if n else ends.rstrip(", ")


def _classes(run: Run) -> list[Block]:
    """Robust accuracy of each class and what broken images are taken for, folded."""
    rows, confusions = run.table("robust_classes"), run.table("robust_confusions")
    blocks: list[Block] = []
    if rows:
        body = [
            [
                Cell(str(row["class"])),
                Cell(str(row["attack"])),
                Cell(show(row["accuracy"], "share"), sub=_ends(row), sort=row["accuracy"]),
                Cell(show(row["clean"], "share"), sort=row["clean"]),
                Cell(f"{row['n']:,}", sort=row["n"]),
            ]
            for row in sorted(rows, key=lambda row: float(row["accuracy"]))
        ]
        columns = [Column("Class"), Column("Attack")]
        columns += [Column(c, numeric=True) for c in ("Robust accuracy", "Before the attack", "n")]
        note = "The least robust first. Wilson intervals; an attack gives an upper bound."
        blocks.append(
            Table("Robust accuracy by class", columns, body, sortable=True, note=note, folded=True)
        )
    if confusions:
        body = [
            [
                *(Cell(str(row[name])) for name in ("true", "predicted", "attack")),
                Cell(f"{row['count']:,}", sort=row["count"]),
                Cell(show(row["share"], "share"), sort=row["share"]),
            ]
            for row in confusions
        ]
        columns = [Column("True class"), Column("Taken for"), Column("Attack")]
        columns += [Column(c, numeric=True) for c in ("Images", "Share of the true class")]
        blocks.append(
            Table("What broken images are taken for", columns, body, sortable=True, folded=True)
        )
    grids = run.table("grids")
    if grids:
        blocks += plain_table("changes that break images first", grids, folded=True)
    return blocks


ATTACKED, BOUND = "attacked", "upper bound"
_NORMS = {"l2": "l₂", "linf": "l∞", "l1": "l₁"}


def _robust_curves(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    figures = []
    for norm in dict.fromkeys(row["norm"] for row in rows):
        part = sorted((r for r in rows if r["norm"] == norm), key=lambda r: r["radius"])
        names = list(dict.fromkeys(_line_name(r) for r in part))
        lines = [_curve(name, [r for r in part if _line_name(r) == name]) for name in names]
        words = _NORMS.get(norm, norm)
        title = f"Accuracy over {words} radius"
        svg = plots.curves(
            lines, title=title, x_label=f"{words} radius", y_label="Accuracy", ys=(0.0, 1.0)
        )
        legend = [(plots.swatch(i), name) for i, name in enumerate(names)] if len(names) > 1 else []
        columns = ("Radius", "Accuracy", "95 % interval", "n")
        body = [
            [
                Cell(show(r["radius"])),
                Cell(show(r["accuracy"], "share")),
                Cell(_ends(r)),
                Cell(f"{r['n']:,}"),
                Cell(str(r.get("kind") or "")),
            ]
            for r in part
        ]
        data = Table(title, [*(Column(c, numeric=True) for c in columns), Column("Kind")], body)
        caption = f"Band: 95 % interval. n = {_span({r['n'] for r in part})}."
        if any(r.get("kind") == BOUND for r in part):
            caption = (
                "Attacked where marked; between the marks an upper bound from the distances of the "
                f"adversarial images found. {caption}"
            )
        figures.append(Figure(title, svg, caption, legend, data))
    return figures


def _line_name(row: Mapping[str, Any]) -> str:
    """Attacked points and the bounds between them are one line; other kinds have their own."""
    kind = row.get("kind") or "accuracy"
    return str(row.get("attack") or "accuracy") if kind in (ATTACKED, BOUND) else str(kind)


def _curve(name: str, rows: Sequence[Mapping[str, Any]]) -> plots.Series:
    bounded = all(r.get("low") is not None and r.get("high") is not None for r in rows)
    bounds = [(r["low"], r["high"]) for r in rows] if bounded else []
    mixed = any(r.get("kind") == BOUND for r in rows)
    marked = [r.get("kind") == ATTACKED for r in rows] if mixed else None
    return plots.Series(name, [(r["radius"], r["accuracy"]) for r in rows], bounds, marked)


def _ends(row: Mapping[str, Any]) -> str:
    return (
        f"[{100 * row['low']:.1f}, {100 * row['high']:.1f}]" if row.get("low") is not None else "–"
    )


def _span(counts: set[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _radius_curves(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    figures = []
    for norm in dict.fromkeys(row["norm"] for row in rows):
        part = sorted((r for r in rows if r["norm"] == norm), key=lambda r: r["radius"])
        names = list(dict.fromkeys(r["set"] for r in part))
        lines = [_confidence_line(s, [r for r in part if r["set"] == s]) for s in names]
        words = _NORMS.get(norm, norm)
        title = f"Confidence over {words} radius"
        svg = plots.curves(
            lines, title=title, x_label=f"{words} radius", y_label="Mean confidence", ys=(0.0, 1.0)
        )
        data = Table(
            title,
            [Column("Set"), *(Column(c, numeric=True) for c in ("Radius", "Mean confidence", "n"))],
            [
                [
                    Cell(str(r["set"])),
                    Cell(show(r["radius"])),
                    Cell(show(r["confidence"], "share")),
                    Cell(f"{r['n']:,}"),
                ]
                for r in part
            ],
        )
        caption = f"The most an attack could reach or leave. n = {_span({r['n'] for r in part})}."
        cut = sum(not r.get("complete", True) for r in part)
        if cut:
            caption += (
                f" The budget ended first in {cut} of {sum(r['radius'] > 0 for r in part)} "
                "searches: the true curves go further, and these must not be quoted."
            )
        legend = [(plots.swatch(i), s) for i, s in enumerate(names)]
        figures.append(Figure(title, svg, caption, legend, data))
    return figures


def _confidence_line(name: str, rows: Sequence[Mapping[str, Any]]) -> plots.Series:
    bounded = all(r.get("low") is not None for r in rows)
    bounds = [(r["low"], r["high"]) for r in rows] if bounded else []
    return plots.Series(name, [(r["radius"], r["confidence"]) for r in rows], bounds)


def _trust_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    body = [
        [
            Cell(str(row["attack"])),
            Cell(str(row["flag"]).replace("_", " ")),
            Cell("", badge=status_badge(str(row["status"])), sort=str(row["status"])),
            Cell(str(row.get("detail") or "")),
        ]
        for row in rows
    ]
    columns = [Column("Attack"), Column("Check"), Column("Status"), Column("Detail")]
    caption = "Can these attack results be trusted?"
    return Table(caption, columns, body, sortable=True, folded=len(body) > 12)
