"""The chapter on an audit's worst mistakes: changed both ways, with maps and nearest images."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from counterlens.report.kit.blocks import Badge, Block, Picture, Section, Strip, Text
from counterlens.report.kit.parts import embed
from counterlens.runs import Run
from counterlens.runs.keys import show

TABLES = ("neighbours",)
FOLDER = "explained"
SHOWN = 40
_COUNTERFACTUALS = ("counterfactuals", "uvce")

_Row = Mapping[str, Any]


def sections(run: Run) -> list[Section]:
    """The chapter of an audit from its latest explanation, or of an explanation itself."""
    inner = latest(run) if run.manifest["command"] == "audit" else run
    if inner is None or not inner.table("neighbours"):
        return []
    rows = inner.table("neighbours")
    settings = inner.manifest["settings"]
    text = (
        f"The {len(rows)} mistakes it was surest of, by the method {settings.get('method')}. "
        "For each: the picture; changed towards what it shows (predicted → true: what would put "
        "it right); changed more towards what it was taken for (true → predicted: what misled "
        "it, more of it); where the evidence for either lies; and the nearest images by the "
        f"model’s own features, among {inner.manifest.get('neighbours', 'real images')}."
    )
    blocks: list[Block] = [
        strip for n, row in enumerate(rows[:SHOWN], 1) for strip in _strips(inner, row, n)
    ]
    if inner is not run:
        blocks.append(Text(f"All pictures and tables of this chapter: {inner.folder.name}/."))
    return [Section("worst-mistakes", "The worst mistakes, explained", blocks, text, "Mistakes")]


def latest(run: Run) -> Run | None:
    """The newest finished explanation inside an audit."""
    numbered = {
        int(match[1] or 1): path
        for path in run.folder.glob(f"{FOLDER}*")
        if (match := re.fullmatch(rf"{FOLDER}(?:-(\d+))?", path.name)) and (path / "DONE").exists()
    }
    if not numbered:
        return None
    return Run.open(run.file(numbered[max(numbered)].relative_to(run.folder)))


def _strips(run: Run, row: _Row, number: int) -> list[Strip]:
    """The mistake changed both ways; and where the evidence lies, and what it resembles."""
    name, label, predicted = str(row["id"]), row.get("label"), row["predicted"]
    sure = show(row["confidence"], "share")
    alt = f"{name} as it is: taken for {predicted} with confidence {sure}, really {label}."
    start = _picture(run, row.get("original"), f"{predicted} {sure}", f"really {label}", "", alt)
    changed = [
        start,
        *_changed(run, name, str(label), "predicted → true"),
        *_changed(run, name, str(predicted), "true → predicted"),
    ]
    beside = [start, *_maps(run, name), *_near(run, row)]
    text = f"{name}: taken for {predicted} {sure}, really {label}"
    first, second = ([one for one in part if one is not None] for part in (changed, beside))
    return [
        Strip(f"{label} taken for {predicted}", text, first, f"mistake-{number}"),
        Strip("Where the evidence lies, and the nearest images", name, second, f"near-{number}"),
    ]


def _changed(run: Run, name: str, target: str, way: str) -> Iterable[Picture | None]:
    for table in _COUNTERFACTUALS:
        for row in run.table(table):
            if str(row["id"]) != name or str(row["target"]) != target:
                continue
            sure, before = show(row["after"], "share"), show(row["before"], "share")
            far = f"l₂ {row['distance']:.3g}" if "distance" in row else ""
            word = row.get("verdict")
            badge = Badge(str(word), _tone(str(word))) if word else None  # type: ignore[arg-type]
            alt = f"Changed towards {target}: confidence {sure}, {before} before. {far}"
            yield _picture(run, row["image"], f"{target} {sure}", way, far, alt, badge)


def _tone(word: str) -> str:
    return "good" if "evidence" in word else "bad" if "noise" in word else "muted"


def _maps(run: Run, name: str) -> Iterable[Picture | None]:
    for row in run.table("maps"):
        if str(row["id"]) == name and row["method"] == "grad-cam":
            title = f"why {row['target']}?"
            alt = f"Grad-CAM map of the evidence for {row['target']}."
            badge = Badge("no evidence", "warn") if row.get("empty") else None
            yield _picture(run, row["image"], title, "Grad-CAM", "", alt, badge)


def _near(run: Run, row: _Row) -> Iterable[Picture | None]:
    for near in row.get("nearest", ()):
        same = near["label"] == row["predicted"]
        alt = f"Near by features: {near['id']}, labelled {near['label']}, {near['cosine']:.2f}."
        badge = Badge("as it was taken", "warn") if same else None
        title = f"near: {near['label']}"
        line = f"cosine {near['cosine']:.2f}"
        yield _picture(run, near["image"], title, line, str(near["id"]), alt, badge)


def _picture(
    run: Run,
    file: object,
    title: str,
    line: str,
    sub: str,
    alt: str,
    badge: Badge | None = None,
) -> Picture | None:
    image = embed(run, file)
    if image is None:
        return None
    return Picture(image[0], alt, title, line, sub, image[1], badge=badge)
