"""What each model sees, in a comparison: a picture and its counterfactual for every model."""

from collections.abc import Mapping, Sequence
from typing import Any

from counterlens.report.kit.blocks import Picture, Section, Strip
from counterlens.report.kit.parts import embed
from counterlens.runs import Run
from counterlens.runs.keys import show, subject_words

TABLES = ("seen",)
_LEAD = (
    "The same picture, changed within the same budget until each model is as confident as it gets "
    "of another class. A model that relies on what people see draws parts of that class; one that "
    "relies on other patterns draws noise, and is as confident."
)


def sections(run: Run) -> list[Section]:
    """One strip per picture and target."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in run.table("seen"):
        groups.setdefault((str(row["id"]), str(row["target"])), []).append(row)
    strips = [
        strip
        for number, (key, rows) in enumerate(groups.items(), 1)
        if (strip := _strip(run, *key, rows, number))
    ]
    return [Section("seen", "What each model sees", strips, _LEAD)] if strips else []


def _strip(
    run: Run, name: str, target: str, rows: Sequence[Mapping[str, Any]], number: int
) -> Strip | None:
    first = rows[0]
    start = embed(run, first["original"])
    if start is None:
        return None
    label = str(first.get("label") or first["predicted"])
    pictures = [Picture(start[0], f"{name} as it is", label, "as it is", pixelated=start[1])]
    for row in rows:
        image = embed(run, row["image"])
        if image is None:
            return None
        title = f"{target} {show(row['after'], 'share')}"
        alt = f"{name} changed towards {target} for {row['model']}: {title}."
        pictures.append(Picture(image[0], alt, str(row["model"]), title, pixelated=image[1]))
    budget = subject_words("robust", f"{first['norm']}-{first['radius']:.3g}")
    return Strip(f"{label} → {target}", f"{name}, within {budget}", pictures, f"seen-{number}")
