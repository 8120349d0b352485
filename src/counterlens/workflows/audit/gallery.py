"""Pictures of a run: the worst mistakes, and the unknown images with the highest confidence."""

from collections.abc import Sequence

import torch
from torch import Tensor

from counterlens.images import ImageSet, resize, write_png
from counterlens.metrics import Answers, Judged
from counterlens.runs import Run, key_part

SHOWN = 12
_SIDE = 224  # larger pictures are shrunk: a report is one file


def mistakes(
    run: Run,
    images: ImageSet,
    rows: Tensor,
    judged: Judged,
    labels: Tensor,
    classes: Sequence[str],
) -> None:
    """The wrong answers given with most confidence."""
    wrong = torch.nonzero(~judged.right).flatten()
    order = wrong[judged.score[wrong].argsort(descending=True, stable=True)][:SHOWN]
    entries = [
        {
            "row": int(rows[i]),
            "label": classes[int(labels[i])],
            "predicted": classes[int(judged.answer[i])],
            "confidence": float(judged.confidence[i]),
        }
        for i in order.tolist()
    ]
    add(run, images, "mistakes", entries)


def surest(run: Run, images: ImageSet, answers: Answers, classes: Sequence[str]) -> None:
    """The unknown images answered with most confidence."""
    order = answers.score.argsort(descending=True, stable=True)[:SHOWN]
    entries = [
        {
            "row": i,
            "label": None,
            "predicted": classes[int(answers.answer[i])],
            "confidence": float(answers.confidence[i]),
        }
        for i in order.tolist()
    ]
    add(run, images, f"ood:{images.name}", entries)


def add(run: Run, images: ImageSet, group: str, entries: Sequence[dict[str, object]]) -> None:
    """Write pictures of the set and their rows in the gallery; each entry names its `row`."""
    rows = [row for row in run.table("gallery") if row["group"] != group]
    for number, entry in enumerate(entries):
        row = int(str(entry.pop("row")))
        pixels = images.read(row)
        height, width = pixels.shape[:2]
        if max(height, width) > _SIDE:
            scale = _SIDE / max(height, width)
            size = (max(1, round(height * scale)), max(1, round(width * scale)))
            pixels = resize(pixels, size, "lanczos")
        name = f"{key_part(group)}-{number:02d}.png"
        write_png(run.path("images", name), pixels)
        rows.append({"group": group, "image": f"images/{name}", "id": images.ids[row], **entry})
    run.write_table("gallery", rows)
