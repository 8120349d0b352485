"""Answers that the repair turned, as pictures: from wrong to right, and from right to wrong."""

from typing import Any

import numpy as np
from scipy.special import softmax

from counterlens.images import ImageSet, write_png
from counterlens.runs import Run
from counterlens.workflows.repair.groups import Codes
from counterlens.workflows.repair.heads import Examples, Head

MOST = 12
GAINED, LOST = "now right", "now wrong"


def write_flips(
    run: Run, images: ImageSet, both: tuple[Examples, Examples], heads: tuple[Head, Head]
) -> None:
    """A table of all turned answers, and pictures of those that turned most.

    Args:
        both: the check images as the network sees them before and after.
        heads: before and after.
    """
    check = both[0]
    probs = [softmax(head.logits(part.x), axis=1) for head, part in zip(heads, both, strict=True)]
    answers = [p.argmax(1) for p in probs]
    labels = check.by.labels
    right = [a == labels for a in answers]
    shift = probs[1][np.arange(len(labels)), labels] - probs[0][np.arange(len(labels)), labels]
    turned = {GAINED: right[1] & ~right[0], LOST: right[0] & ~right[1]}
    rows, gallery = [], []
    for group, flags in turned.items():
        places: Codes = np.flatnonzero(flags)
        order = places[np.argsort(-np.abs(shift[places]), kind="stable")]
        for rank, i in enumerate(order.tolist(), 1):
            row: dict[str, Any] = {
                "flip": group,
                "id": str(images.ids[i]),
                "group": check.by.group_name(int(check.by.groups[i])),
                "label": check.by.classes[labels[i]],
                "before": check.by.classes[answers[0][i]],
                "after": check.by.classes[answers[1][i]],
                "confidence_before": float(probs[0][i].max()),
                "confidence": float(probs[1][i].max()),
            }
            rows.append(row)
            if rank <= MOST:
                name = f"{group.replace(' ', '-')}-{rank:02d}.png"
                write_png(run.path("images", name), images.read(i))
                gallery.append(
                    {**row, "group": group, "of": row["group"], "image": f"images/{name}",
                     "predicted": row["after"], "id": f"before: {row['before']}; {row['group']}"}
                )  # fmt: skip
    run.write_table("flips", rows)
    run.write_table("gallery", gallery)
