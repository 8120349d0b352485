"""What a curation leaves in its run: the shortlist with its pictures, the funnel, the screens."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from counterlens import metrics
from counterlens.classifier import Classifier
from counterlens.data.metadata import suffix_of
from counterlens.data.provenance import COLUMNS, NOT_STATED
from counterlens.data.sets import encoded, sample_rows, subset
from counterlens.errors import InputError
from counterlens.filters.funnel import Funnel
from counterlens.filters.screens import Copies
from counterlens.images import ImageSet, credits, prepared, resize, write_png
from counterlens.runs import Number, Run, atomic, key_part
from counterlens.screen import lowlevel
from counterlens.workflows.curate.failure_modes import Probes
from counterlens.workflows.curate.pool import Frame, Pool

_GALLERY = 24
_LOW_LEVEL = 1000  # images of each side


def keep_shortlist(
    run: Run,
    pool: Pool,
    frame: Frame,
    table: dict[str, np.ndarray],
    made: Funnel,
    given: dict[str, str],
    scores: dict[str, np.ndarray],
    probes: Sequence[Probes] = (),
) -> None:
    """The shortlist with its pictures as they are stored, best first; the first ones are shown.

    Args:
        given: licence and source of images whose set does not state them.
        scores: further columns, a value per image of the pool.
        probes: of the first images of the shortlist.
    """
    rows, gallery = [], []
    filters = sum(key.endswith("_confidence") for key in table)
    for rank, row in enumerate(made.rows.tolist(), 1):
        data = encoded(pool.images.read, row)
        name = f"shortlist/{rank:05d}{suffix_of(data) or '.img'}"
        with atomic(run.path("images", name)) as part:
            part.write_bytes(data)
        label = int(pool.images.labels[row])
        answer = frame.classes[int(table["0_answer"][row])]
        entry = {
            "rank": rank,
            "id": pool.images.ids[row],
            "row": row,
            "set": pool.sets[row],
            "label": frame.classes[label] if label >= 0 else pool.own[row],
            "answer": answer,
            "confidence": float(table["0_confidence"][row]),
            **{key: float(values[row]) for key, values in scores.items()},
            "answers": [frame.classes[int(table[f"{f}_answer"][row])] for f in range(filters)],
            "width": int(table["width"][row]),
            "height": int(table["height"][row]),
            "image": f"images/{name}",
            "sha256": hashlib.sha256(data).hexdigest(),
            **_provenance(pool, row, given, data),
            **(_suggested(probes[rank - 1]) if rank <= len(probes) else {}),
        }
        rows.append(entry)
        if rank <= _GALLERY:
            gallery.append(_shown(run, pool.images, row, entry, label >= 0))
    run.write_table("shortlist", rows)
    run.write_table("gallery", gallery)


def _suggested(found: Probes) -> dict[str, object]:
    return {
        "suggested": list(found.tags),
        "moved": found.moved,
        "shuffled": found.shuffled,
        "border": found.border,
    }


def _provenance(pool: Pool, row: int, given: dict[str, str], data: bytes) -> dict[str, str]:
    """Licence, author and source of an image: its own, else as given for the pool.

    The author of a photograph that its set does not name is the artist its EXIF names.
    """
    own = {fact: str(pool.images.extra[fact][row]) for fact in COLUMNS}
    embedded = credits(data)
    return {
        "licence": own["licence"] or given["licence"] or NOT_STATED,
        "author": own["author"] or embedded["author"] or NOT_STATED,
        "source": own["source"] or given["source"] or pool.sets[row],
        "copyright": embedded["copyright"],
    }


def _shown(
    run: Run, images: ImageSet, row: int, entry: dict[str, Any], known: bool
) -> dict[str, Any]:
    pixels = images.read(row)
    if max(pixels.shape[:2]) > 224:
        scale = 224 / max(pixels.shape[:2])
        height, width = (max(1, round(side * scale)) for side in pixels.shape[:2])
        pixels = resize(pixels, (height, width), "lanczos")
    name = f"shown-{entry['rank']:05d}.png"
    write_png(run.path("images", name), pixels)
    return {
        "group": "shortlist",
        "image": f"images/{name}",
        "id": entry["id"],
        "label": entry["label"] if known else None,
        "predicted": entry["answer"],
        "confidence": entry["confidence"],
    }


def write_funnel(
    run: Run, pool: Pool, table: dict[str, np.ndarray], made: Funnel, copies: Copies
) -> None:
    """Stages with counts, what was set aside and why, and which stage dropped each image."""
    found = len(table["row"]) + len(pool.aside)
    rows = [
        {"stage": "pool", "rule": "files found", "before": found, "dropped": 0, "kept": found},
        {
            "stage": "pictures",
            "rule": "by name and place; the others are listed as set aside",
            "before": found,
            "dropped": len(pool.aside),
            "kept": len(table["row"]),
        },
    ]
    rows += [
        {
            "stage": stage.name,
            "rule": stage.description,
            "before": stage.before,
            "dropped": stage.before - stage.after,
            "kept": stage.after,
        }
        for stage in made.stages
    ]
    run.write_table("funnel", rows)
    broken = np.flatnonzero(table["why"] != "")
    aside = [*pool.aside, *((pool.images.ids[i], table["why"][i]) for i in broken.tolist())]
    run.write_table("aside", [{"id": name, "why": why} for name, why in aside])
    counts = Counter(why for _, why in aside)
    run.write_table("aside_counts", [{"why": w, "images": n} for w, n in counts.most_common()])
    run.write_table("copies", copies.rows)
    names = [stage.name for stage in made.stages]
    fate = (
        {"id": i, "dropped_by": names[f] if f >= 0 else None}
        for i, f in zip(pool.images.ids, made.fate.tolist(), strict=True)
    )
    run.write_table("fate", fate)
    run.add_numbers(
        {
            f"funnel.{key_part(str(row['stage']))}": Number(
                float(str(row["kept"])),
                int(str(row["before"])),
                None,
                None,
                f"images left: {row['rule']}",
            )
            for row in rows
        }
    )


def low_level_number(
    one: ImageSet,
    ours: np.ndarray,
    other: ImageSet,
    theirs: np.ndarray,
    first: Classifier,
    seed: int,
) -> dict[str, Number]:
    """How well colour, edges and codec alone tell the chosen images from the others."""
    sides = []
    for images, rows in ((one, ours), (other, theirs)):
        some = rows[sample_rows(len(rows), _LOW_LEVEL, seed)] if len(rows) else rows
        part = subset(images, some)
        sides.append([_statistics(part, i, first) for i in range(len(part))])
    ends = [np.array([f for f in side if f is not None]) for side in sides]
    key = "screen.low_level_auroc"
    if any(len(end) == 0 for end in ends):
        return {key: Number.missing("no images on one side", "low-level statistics")}
    return {key: lowlevel.auroc(ends[0], ends[1], seed)}


def _statistics(images: ImageSet, i: int, first: Classifier) -> np.ndarray | None:
    try:
        planes = prepared(images.read, i, first.preprocess)
    except (InputError, OSError):
        return None
    return lowlevel.features(np.ascontiguousarray(planes.transpose(1, 2, 0)))


def filter_accuracies(
    run: Run,
    table: dict[str, np.ndarray],
    labels: np.ndarray,
    eligible: np.ndarray,
    filters: Sequence[str],
) -> None:
    """Accuracy of each filter on the unfiltered pool, in its usual view."""
    if not len(eligible):
        return
    for f, spec in enumerate(filters):
        right = torch.from_numpy(table[f"{f}_answer"][eligible] == labels[eligible])
        text = f"{spec} on the readable pool, usual view; {run.manifest['protocol']}"
        run.add_numbers({f"filter.{f}.accuracy": metrics.share(right, text)})
