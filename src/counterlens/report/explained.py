"""Explanations: each picture beside what was made of it, in strips, one per target."""

from collections.abc import Mapping, Sequence
from typing import Any

from counterlens.report.blocks import Badge, Block, Picture, Section, Strip
from counterlens.report.parts import embed, number_matrix, plain_table
from counterlens.runs import Run
from counterlens.runs.keys import show, subject_words

TABLES = ("counterfactuals", "maps", "edits")
STRIPS = 24  # the rest is in the table and in the run folder
WIDE = 16
_AREAS = ("counterfactual",)
_HIDDEN = ("original", "image", "difference", "heat", "opinions")
_TITLES = {
    "counterfactuals": "What would have to change",
    "maps": "Where it looks",
    "edits": "What makes it change its mind",
}


def sections(run: Run) -> list[Section]:
    """A section per kind of explanation the run holds."""
    made = []
    for name in TABLES:
        rows = run.table(name)
        if not rows:
            continue
        blocks: list[Block] = []
        matrix = number_matrix(
            run.numbers,
            "counterfactual",
            caption="How often each budget was enough",
            subject="Budget",
        )
        if name == "counterfactuals" and matrix:
            blocks += matrix
        blocks += _strips(run, rows)
        text = [{k: v for k, v in row.items() if k not in _HIDDEN} for row in rows]
        blocks += plain_table("all rows", text, drawn=False)
        made.append(Section(name, _TITLES[name], blocks, _lead(run, name)))
    return made


def _lead(run: Run, name: str) -> str:
    rule = run.manifest.get("rule")
    if name == "counterfactuals":
        told = "Within each budget, the picture of which it is surest that it shows the target."
        return f"{told} {rule}" if rule else told
    return ""


def _strips(run: Run, rows: Sequence[Mapping[str, Any]]) -> list[Strip]:
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(
            (str(row["id"]), str(row.get("target", row.get("family", "")))), []
        ).append(row)
    strips = []
    for number, ((name, target), part) in enumerate(list(groups.items())[:STRIPS], 1):
        first = part[0]
        start = _original(run, first)
        pictures = [p for p in (start, *(_made(run, row) for row in part[:WIDE])) if p]
        known = f", really {first['label']}" if first.get("label") else ""
        sure = show(first.get("confidence"), "share")
        told = f"{name}: {first['predicted']} {sure}{known}"
        towards = f"towards {target}" if "target" in first else target
        anchor = (
            f"strip-{number}-{len(pictures)}-{''.join(c if c.isalnum() else '-' for c in target)}"
        )
        strips.append(Strip(towards, told, pictures, anchor))
    return strips


def _original(run: Run, row: Mapping[str, Any]) -> Picture | None:
    found = embed(run, row.get("original"))
    if found is None:
        return None
    sure = show(row.get("confidence"), "share")
    alt = f"{row['id']} as it is. Predicted {row['predicted']} with confidence {sure}."
    return Picture(found[0], alt, f"{row['predicted']} {sure}", "as it is", pixelated=found[1])


def _made(run: Run, row: Mapping[str, Any]) -> Picture | None:
    found = embed(run, row.get("image"))
    if found is None:
        return None
    if "after" in row:
        budget = subject_words("robust", f"{row['norm']}-{row['radius']:.3g}")
        title = f"{row['target']} {show(row['after'], 'share')}"
        line, badge = budget, _verdict(row.get("verdict"))
        before = show(row["before"], "share")
        alt = f"Changed within {budget}: {title} in confidence, {before} before."
    elif "flipped" in row:
        title = f"{row['answer']} {show(row['sure'], 'share')}"
        line, badge = str(row["variant"]), Badge("flips", "bad") if row["flipped"] else None
        alt = f"{row['variant']}: predicted {title}."
    else:
        title, line = str(row.get("method", "")), str(row.get("layer", ""))
        badge = Badge("empty", "warn") if row.get("empty") else None
        alt = f"{title} map for {row.get('target', '')}, layer {line}."
    return Picture(found[0], alt, title, line, pixelated=found[1], badge=badge)


def _verdict(word: object) -> Badge | None:
    if not word:
        return None
    text = str(word)
    if "evidence" in text:
        return Badge(text, "good")
    return Badge(text, "bad" if "noise" in text else "muted")
