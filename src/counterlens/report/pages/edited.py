"""Universal counterfactuals: mask and attention of each picture, and the images of each guide."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from counterlens.report.kit.blocks import (
    Badge,
    Block,
    Cell,
    Column,
    Gallery,
    Picture,
    Section,
    Slider,
    Strip,
    Table,
    Text,
)
from counterlens.report.kit.explained import second_opinion
from counterlens.report.kit.parts import embed, number_matrix, plain_table
from counterlens.runs import Run
from counterlens.runs.keys import show

TABLES = ("uvce", "guides")
SHOWN = 24  # the rest is in the table and in the run folder
_HIDDEN = ("original", "image", "start", "reconstruction", "mask", "attention", "opinions", "trace")
_KINDS = {
    "class": "What would have to change",
    "attribute": "One attribute against another",
    "error": "What would put it right",
}


def sections(run: Run) -> list[Section]:
    """Counterfactuals of classes, of attributes and of errors, each apart."""
    rows = run.table("uvce")
    parts = [
        _section(run, kind, [row for row in rows if row["kind"] == kind])
        for kind in _KINDS
        if any(row["kind"] == kind for row in rows)
    ]
    guides = run.table("guides")
    if guides:
        lead = (
            "Each row: pictures with one classifier as the guide. Each column: the mean "
            "confidence of one classifier in the target. On the diagonal the guide judges itself."
        )
        parts.append(Section("guides", "Guides and judges", [_matrix(guides)], lead))
    return parts


def _section(run: Run, kind: str, rows: Sequence[Mapping[str, Any]]) -> Section:
    blocks: list[Block] = []
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((str(row["id"]), str(row["target"])), []).append(row)
    for number, part in enumerate(list(groups.values())[:SHOWN], 1):
        blocks += _case(run, part, f"{kind}-{number}")
    area = "uvce_error" if kind == "error" else "uvce"
    if means := number_matrix(run.numbers, area, caption="All counterfactuals", subject="Guide"):
        blocks += [replace(means[0], folded=len(rows) == 1), means[1]]
    text = [{k: v for k, v in row.items() if k not in _HIDDEN} for row in rows]
    blocks += plain_table("all rows", text, drawn=False, folded=True)
    lead = (
        "A generator makes the picture again from its caption, exchanges the words, and is then "
        "changed until the guide is sure of the target, while what lies outside the mask is held. "
        "Prompt only: the words exchanged, nothing searched. Background: l2 distance to the "
        "picture outside the mask."
    )
    return Section(f"uvce-{kind}", _KINDS[kind], blocks, lead)


def _case(run: Run, rows: Sequence[Mapping[str, Any]], name: str) -> list[Block]:
    first = rows[0]
    target = first["target"]
    pictures = [
        _picture(run, first["original"], "as it is", f"{target} {_p(first['before'])}"),
        _picture(run, first["reconstruction"], "reconstruction", f"{first['psnr']:.1f} dB"),
        _picture(run, first["mask"], "mask", f"{show(first['mask_share'], 'share')} of it"),
        _picture(run, first["start"], "prompt only", f"{target} {_p(first['prompt_only'])}"),
    ]
    for row in rows:
        badge = Badge("reached", "good") if row["reached"] else Badge("not reached", "bad")
        title = f"{row['guide']}" if len(rows) > 1 else "counterfactual"
        line = f"{target} {_p(row['after'])}"
        pictures.append(_picture(run, row["image"], title, line, badge))
    known = f", really {first['label']}" if first.get("label") else ""
    text = (
        f"{first['id']}: {first['predicted']} {_p(first['confidence'])}{known}. "
        f"“{first['caption']}” → “{first['goal']}”"
    )
    slider = _slider(run, first)
    blocks: list[Block] = [Text(_sentence(first)), *([slider] if slider else [])]
    blocks.append(Strip(f"towards {target}", text, [p for p in pictures if p], f"uvce-{name}"))
    words = [
        _picture(run, one["image"], str(one["word"]), "") for one in first.get("attention", ())
    ]
    shown = [p for p in words if p]
    if shown:
        note = (
            "Where the generator looks at each word of the caption; brightest is most. (end): the "
            "end of the text, where a small generator may keep all of it."
        )
        blocks.append(Gallery("Attention", shown, f"words-{name}", note))
    return blocks


def _sentence(row: Mapping[str, Any]) -> str:
    target, after = row["target"], _p(row["after"])
    word = "as" if row["reached"] else "not as"
    opinion = f" {second_opinion(row)}." if row.get("opinions") else ""
    return (
        f"{row['id']}: seen as {row['predicted']} ({_p(row['confidence'])}); after the search with "
        f"{row['guide']} as the guide {word} {target} ({target} {after}).{opinion}"
    )


def _slider(run: Run, row: Mapping[str, Any]) -> Slider | None:
    before, after = embed(run, row["original"]), embed(run, row["image"])
    if before is None or after is None:
        return None
    target = row["target"]
    facts = [
        ("Confidence before", f"{target} {_p(row['before'])}"),
        ("Prompt only", f"{target} {_p(row['prompt_only'])}"),
        ("Confidence after", f"{target} {_p(row['after'])}"),
        ("Background", f"{row['background']:.3g}; prompt only {row['background_prompt_only']:.3g}"),
        ("Schedule", f"attention injected in {row['inject']:.0%}, blended in {row['blend']:.0%}"),
    ]
    if row.get("round"):
        facts.append(("Search", f"{row['round'] + 1}., with less weight on the background"))
    facts += [
        (f"{one['judge']} says", f"{one['answer']}; {target} {_p(one['after'])}")
        for one in row.get("opinions", ())
    ]
    return Slider(
        f"{row['id']} towards {target}",
        Picture(before[0], f"{row['id']} as it is", "before", pixelated=before[1]),
        Picture(after[0], f"{row['id']} changed towards {target}", "after", pixelated=after[1]),
        None,
        facts,
    )


def _picture(
    run: Run, name: object, title: str, line: str, badge: Badge | None = None
) -> Picture | None:
    image = embed(run, name)
    if image is None:
        return None
    return Picture(image[0], f"{title}. {line}".strip(), title, line, pixelated=image[1],
                   badge=badge)  # fmt: skip


def _matrix(rows: Sequence[Mapping[str, Any]]) -> Table:
    names = [k for k in rows[0] if k not in ("guide", "n")]
    columns = [Column("Guide"), *(Column(name, numeric=True) for name in names)]
    body = []
    for row in rows:
        cells = [
            Cell(_p(row[name]), sort=row[name], tone="good" if name == row["guide"] else "",
                 more=f"n = {row['n']}")
            for name in names
        ]  # fmt: skip
        body.append([Cell(str(row["guide"])), *cells])
    return Table("Mean confidence in the target", columns, body)


def _p(value: float) -> str:
    return show(value, "share")
