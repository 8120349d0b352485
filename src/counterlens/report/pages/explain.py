"""Explanations: each picture beside its counterfactuals or maps, in strips and under a slider."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from counterlens.report.kit.blocks import (
    Badge,
    Block,
    Gallery,
    Picture,
    Protocols,
    Section,
    Slider,
    Strip,
    Text,
)
from counterlens.report.kit.explained import headline_row, second_opinion, sentence, tellable
from counterlens.report.kit.parts import anchor, embed, number_matrix, plain_table
from counterlens.report.pages import edited, features, generated
from counterlens.runs import Run
from counterlens.runs.keys import show, subject_words

_OWN = ("counterfactuals", "maps", "edits", "neurons")
TABLES = (*_OWN, *generated.TABLES, *edited.TABLES, *features.TABLES)
STRIPS = 24  # the rest is in the table and in the run folder
WIDE = 16
_AREAS = ("counterfactual",)
_HIDDEN = ("original", "image", "difference", "heat", "coloured", "map", "opinions", "votes")
_TITLES = {
    "counterfactuals": "What would have to change",
    "maps": "Where the evidence lies",
    "edits": "Which edits change the answer",
    "neurons": "What its units react to",
}
_LEADS = {
    "maps": "The slider fades the map over the picture: yellow where the evidence for the class "
    "is strongest. Below it colour stays where the evidence is; on larger pictures a line runs "
    "around what is at least half as strong as the strongest.",
    "edits": "The same picture under small edits: the answer and its confidence.",
}


def sections(run: Run) -> list[Section]:
    """A section per kind of explanation the run holds."""
    parts = [*generated.sections(run), *edited.sections(run), *features.sections(run)]
    for name in _OWN:
        rows = run.table(name)
        if not rows:
            continue
        blocks = _units(run, rows) if name == "neurons" else _strips(run, rows, name)
        if name == "counterfactuals":
            blocks += _numbers(run)
        text = [{k: v for k, v in row.items() if k not in _HIDDEN} for row in rows]
        blocks += plain_table("all rows", text, drawn=False, folded=True)
        parts.append(Section(name, _TITLES[name], blocks, _lead(name)))
    return parts


def _lead(name: str) -> str:
    return _LEADS.get(name, "")


def _numbers(run: Run) -> list[Block]:
    """How often each budget was enough, and the rule of the verdicts: behind an expander."""
    matrix = number_matrix(
        run.numbers,
        "counterfactual",
        caption="How often each budget was enough",
        subject="Budget",
    )
    blocks: list[Block] = [replace(matrix[0], folded=True)] if matrix else []
    rule = run.manifest.get("rule")
    lines = [*(matrix[1].lines if matrix else ()), *([("Verdicts", str(rule))] if rule else ())]
    return [*blocks, Protocols(lines)] if lines else blocks


def _strips(run: Run, rows: Sequence[Mapping[str, Any]], table: str) -> list[Block]:
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        target = str(row.get("target", row.get("family", "")))
        groups.setdefault((str(row["id"]), str(row.get("model", "")), target), []).append(row)
    strips: list[Block] = []
    for number, ((name, model, target), part) in enumerate(list(groups.items())[:STRIPS], 1):
        first = part[0]
        start = _original(run, first)
        pictures = [p for p in (start, *(_changed(run, row) for row in part[:WIDE])) if p]
        known = f", really {first['label']}" if first.get("label") else ""
        sure = show(first.get("confidence"), "share")
        text = f"{name}: {first['predicted']} {sure}{known}{f', {model}' if model else ''}"
        word = "evidence for" if table == "maps" else "towards"
        towards = f"{word} {target}" if "target" in first else target
        place = f"{table}-{number}-{anchor(target)}"
        strip = Strip(towards, text, pictures, place)
        if tellable(first):
            headline = headline_row(part)
            words = Text(f"{sentence(headline)}. {second_opinion(headline)}.")
            slider = _slider(run, headline)
            strips += [words, *([slider] if slider else []), strip]
        else:
            fading = [_fading(run, row) for row in part if row.get("coloured")]
            strips += [*(one for one in fading[:1] if one), strip]
    return strips


def _slider(run: Run, row: Mapping[str, Any]) -> Slider | None:
    """The picture under the counterfactual of the largest budget, and the facts about it."""
    before, after = embed(run, row.get("original")), embed(run, row.get("image"))
    if before is None or after is None:
        return None
    target = row["target"]
    facts = [
        ("Confidence before", f"{target} {show(row['before'], 'share')}"),
        ("Confidence after", f"{target} {show(row['after'], 'share')}"),
        ("Distance", f"{row['distance']:.4g} of {row['radius']:.4g} ({row['norm']})"),
        ("Changed pixels", f"{row['changed']:,}"),
        ("Smoothness of the change", f"{round(row['smoothness'], 2) + 0.0:.2f}"),
    ]
    facts += [
        (f"{one['judge']} says", f"{one['answer']}; {target} {show(one['after'], 'share')}")
        for one in row.get("opinions", ())
    ]
    if row.get("verdict"):
        facts.append(("Verdict", str(row["verdict"])))
    change = embed(run, row.get("difference"))
    return Slider(
        f"{row['id']} towards {target}",
        Picture(before[0], f"{row['id']} as it is", "before", pixelated=before[1]),
        Picture(after[0], f"{row['id']} changed towards {target}", "after"),
        Picture(change[0], "The change, grey where there is none", "the change, scaled up")
        if change
        else None,
        facts,
    )


def _fading(run: Run, row: Mapping[str, Any]) -> Slider | None:
    """The map in colours, which the reader fades over the picture."""
    under, over = embed(run, row.get("original")), embed(run, row.get("coloured"))
    if under is None or over is None:
        return None
    target = str(row["target"])
    facts = [
        ("Answer", f"{row['predicted']} {show(row.get('confidence'), 'share')}"),
        ("Evidence for", target),
        ("Method", str(row["method"])),
        ("Layer", str(row["layer"])),
    ]
    text = "nowhere" if row.get("empty") else "yellow where it is strongest"
    return Slider(
        f"{row['id']}: evidence for {target}",
        Picture(under[0], f"{row['id']} as it is", "the picture", pixelated=under[1]),
        Picture(over[0], f"Map of the evidence for {target}, {text}", f"evidence for {target}"),
        facts=facts,
        fade=True,
    )


def _units(run: Run, rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Pictures of units: optimised from noise first, then from real pictures."""
    blocks: list[Block] = []
    for how in dict.fromkeys(str(row["how"]) for row in rows):
        pictures: list[Picture] = []
        for row in (row for row in rows if row["how"] == how):
            votes = ", ".join(str(vote["class"]) for vote in row.get("votes", ()))
            text = f"speaks for {votes}" if votes else features.caption_of(row)
            start = f"{row['start']:.2f} → " if row["start"] is not None else ""
            value = f"{start}{row['activation']:.2f}"
            silent = row["start"] == row["activation"] == 0
            value = "silent: no picture drives it" if silent else value
            for key, word in (("original", "as it is"), ("map", "where"), ("image", value)):
                image = embed(run, row.get(key))
                if image:
                    alt = f"{row['name']}, {how}: {word}. {text}"
                    number = len(pictures) + 1
                    badge = Badge("driven", "bad") if row.get("driven") else None
                    pictures.append(
                        Picture(
                            image[0], alt, str(row["name"]), word, text, image[1], number, badge
                        )
                    )
        name = f"units-{how.replace(' ', '-')}"
        blocks.append(Gallery(how.capitalize(), pictures[:STRIPS], name))
    return blocks


def _original(run: Run, row: Mapping[str, Any]) -> Picture | None:
    image = embed(run, row.get("original"))
    if image is None:
        return None
    sure = show(row.get("confidence"), "share")
    alt = f"{row['id']} as it is. Predicted {row['predicted']} with confidence {sure}."
    return Picture(image[0], alt, f"{row['predicted']} {sure}", "as it is", pixelated=image[1])


def _changed(run: Run, row: Mapping[str, Any]) -> Picture | None:
    image = embed(run, row.get("image"))
    if image is None:
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
    return Picture(image[0], alt, title, line, pixelated=image[1], badge=badge)


def _verdict(word: object) -> Badge | None:
    if not word:
        return None
    text = str(word)
    if "evidence" in text:
        return Badge(text, "good")
    return Badge(text, "bad" if "noise" in text else "muted")
