"""The section on unknown images: detection by confidence, several scores, the surest pictures."""

from collections.abc import Mapping, Sequence
from typing import Any

from counterlens.report.kit import plots
from counterlens.report.kit.blocks import Block, Figure, Row, Section
from counterlens.report.kit.parts import galleries, number_matrix
from counterlens.report.pages.audit import ood_scores
from counterlens.runs import Run
from counterlens.runs.keys import meaning


def section(run: Run) -> Section:
    """Detection per set, scores, confidence on each set, and what it is surest of."""
    numbers = run.numbers
    blocks: list[Block] = []
    matrix = number_matrix(numbers, "ood", caption="Detection per set", subject="Set")
    if matrix:
        blocks += matrix
    blocks += ood_scores.blocks(run)
    rows = run.table("confidence_hist")
    names = list(dict.fromkeys(row["set"] for row in rows))
    outside = {meaning(k).subject for k in numbers if meaning(k).area == "ood"}
    inside = next((n for n in names if n == "in" or n not in outside), None)
    reference = [row for row in rows if row["set"] == inside]
    figures = [
        _histogram(name, [row for row in rows if row["set"] == name], reference, str(inside))
        for name in names
        if name != inside
    ]
    if figures:
        blocks.append(Row(figures, small=True))
    groups = [
        g for g in dict.fromkeys(r["group"] for r in run.table("gallery")) if g.startswith("ood:")
    ]
    titles = {g: f"{g.removeprefix('ood:')}: most confident" for g in groups}
    blocks += galleries(run, groups, titles)
    lead = "What it says about pictures that show none of its classes. It should be unsure."
    return Section("ood", "Out of distribution", blocks, lead, "Out-of-distribution")


def _histogram(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    reference: Sequence[Mapping[str, Any]],
    inside: str,
) -> Figure:
    svg = plots.histogram(rows, reference, title=f"Confidence on {name}")
    legend = [(plots.swatch(1, "bar s1"), name)]
    if reference:
        legend.append((plots.swatch(0, "outline"), "its own data" if inside == "in" else inside))
    n = sum(row.get("n") or 0 for row in rows)
    return Figure(name, svg, f"n = {n:,}" if n else "", legend)
