"""What a cleaned pool leaves behind: a set to train with, and pictures of what went."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from counterlens.data.provenance import stated
from counterlens.data.sets import ReadFiles, ReadRows, encoded
from counterlens.data.sources.packed import write_encoded
from counterlens.images import ImageSet, resize, tile, write_png
from counterlens.runs import Run, key_part, write_text
from counterlens.runs.files import json_line
from counterlens.workflows.curate.outdata_rules import REASONS, Removal

_SHOWN, _SIDE = 12, 112


def write_remaining(folder: Path, remaining: ImageSet) -> str:
    """Write the pictures that stay as a set and give its spec.

    Files stay where they are and are listed in kept.jsonl; other pictures are packed into
    kept.npz, encoded as they were.
    """
    classes = list(remaining.classes) or ["unknown"]
    labels = remaining.labels.tolist()
    facts = stated(remaining)
    places = _files(remaining)
    if places is not None:
        lines = [
            json_line(
                {
                    "path": str(path),
                    "label": classes[k] if k >= 0 else None,
                    "id": remaining.ids[i],
                    **{fact: texts[i] for fact, texts in facts.items()},
                }
            )
            for i, (path, k) in enumerate(zip(places, labels, strict=True))
        ]
        write_text(folder / "kept.jsonl", "".join(line + "\n" for line in lines))
        return str(folder / "kept.jsonl")
    data = [encoded(remaining.read, i) for i in range(len(remaining))]
    columns = {fact: texts.astype(str) for fact, texts in facts.items()}
    ids = np.array(list(remaining.ids))
    write_encoded(folder / "kept.npz", data, labels, classes, ids=ids, **columns)
    return f"pack:{folder / 'kept.npz'}"


def _files(remaining: ImageSet) -> list[Path] | None:
    """The files of a set that lies in files, by their full paths."""
    read = remaining.read
    if isinstance(read, ReadFiles):
        return [(read.root / file).resolve() for file in read.files]
    if isinstance(read, ReadRows) and isinstance(read.base, ReadFiles):
        base = read.base
        return [(base.root / base.files[int(i)]).resolve() for i in read.rows]
    return None


def show_removed(run: Run, own: ImageSet, others: ImageSet, removed: Mapping[int, Removal]) -> None:
    """The clearest cases of each reason, each beside the picture of the data it is near to."""
    rows = []
    for reason in REASONS:
        cases = sorted((why.order, i) for i, why in removed.items() if why.reason == reason)
        for number, (_, i) in enumerate(_spread(cases)):
            why = removed[i]
            name = f"{key_part(reason)}-{number:02d}.png"
            shown = [others.read(i)] if why.own is None else [others.read(i), own.read(why.own)]
            sheet = tile([resize(p, (_SIDE, _SIDE), "bicubic") for p in shown], columns=len(shown))
            write_png(run.path("images", name), sheet)
            label = others.classes[others.labels[i]] if others.labels[i] >= 0 else others.ids[i]
            rows.append(
                {"group": reason, "image": f"images/{name}", "id": why.detail, "label": label}
            )
    run.write_table("gallery", rows)


def _spread(cases: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """The clearest half, and the rest evenly down to the least clear one."""
    if len(cases) <= _SHOWN:
        return cases
    half = _SHOWN // 2
    later = np.linspace(half, len(cases) - 1, half).round().astype(int)
    return [*cases[:half], *(cases[k] for k in later)]
