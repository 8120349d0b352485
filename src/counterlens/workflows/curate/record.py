"""What a curation leaves in its run: the shortlist with its pictures, the funnel, the screens."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
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
from counterlens.workflows.curate.failure_modes import ProbeResult
from counterlens.workflows.curate.pool import ClassFrame, Pool

_GALLERY = 24
_LOW_LEVEL = 1000  # images of each side


@dataclass(frozen=True)
class Curation:
    """What a filtration leaves.

    Args:
        run: where it is written.
        pool: the images that were chosen from.
        frame: the classes in which answers were counted.
        table: what the filters say, a value per image of the pool in each column.
        funnel: which images are left, best first, and which stage dropped the others.
    """

    run: Run
    pool: Pool
    frame: ClassFrame
    table: dict[str, np.ndarray]
    funnel: Funnel


def write_shortlist(
    curation: Curation,
    provenance: dict[str, str],
    scores: dict[str, np.ndarray],
    probes: Sequence[ProbeResult] = (),
) -> None:
    """The shortlist with its images as they are stored, best first; the first ones are shown.

    Args:
        provenance: licence and source of images whose set does not state them.
        scores: further columns, a value per image of the pool.
        probes: of the first images of the shortlist.
    """
    run, pool = curation.run, curation.pool
    rows, gallery = [], []
    for rank, row in enumerate(curation.funnel.rows.tolist(), 1):
        data = encoded(pool.images.read, row)
        name = f"shortlist/{rank:05d}{suffix_of(data) or '.img'}"
        with atomic(run.path("images", name)) as part:
            part.write_bytes(data)
        entry = {
            "rank": rank,
            **_answers(curation, row, {key: float(values[row]) for key, values in scores.items()}),
            "image": f"images/{name}",
            "sha256": hashlib.sha256(data).hexdigest(),
            **_provenance(pool, row, provenance, data),
            **(_suggested(probes[rank - 1]) if rank <= len(probes) else {}),
        }
        rows.append(entry)
        if rank <= _GALLERY:
            known = int(pool.images.labels[row]) >= 0
            gallery.append(_thumbnail(run, pool.images, row, entry, known))
    run.write_table("shortlist", rows)
    run.write_table("gallery", gallery)


def _answers(curation: Curation, row: int, scores: dict[str, float]) -> dict[str, Any]:
    """An image of the pool: its label, what the filters say of it, its scores and its size."""
    pool, table, classes = curation.pool, curation.table, curation.frame.classes
    label = int(pool.images.labels[row])
    filters = sum(key.endswith("_confidence") for key in table)
    return {
        "id": pool.images.ids[row],
        "row": row,
        "set": pool.sets[row],
        "label": classes[label] if label >= 0 else pool.own[row],
        "answer": classes[int(table["0_answer"][row])],
        "confidence": float(table["0_confidence"][row]),
        **scores,
        "answers": [classes[int(table[f"{f}_answer"][row])] for f in range(filters)],
        "width": int(table["width"][row]),
        "height": int(table["height"][row]),
    }


def _suggested(probes: ProbeResult) -> dict[str, object]:
    return {
        "suggested": list(probes.tags),
        "moved": probes.moved,
        "shuffled": probes.shuffled,
        "border": probes.border,
    }


def _provenance(pool: Pool, row: int, default: dict[str, str], data: bytes) -> dict[str, str]:
    """Licence, author and source of an image: its own, else as stated for the pool.

    The author of a photograph that its set does not name is the artist its EXIF names.
    """
    own = {fact: str(pool.images.extra[fact][row]) for fact in COLUMNS}
    embedded = credits(data)
    return {
        "licence": own["licence"] or default["licence"] or NOT_STATED,
        "author": own["author"] or embedded["author"] or NOT_STATED,
        "source": own["source"] or default["source"] or pool.sets[row],
        "copyright": embedded["copyright"],
    }


def _thumbnail(
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


def write_funnel(curation: Curation, copies: Copies) -> None:
    """Stages with counts, what was set aside and why, and which stage dropped each image."""
    run, pool, table, funnel = curation.run, curation.pool, curation.table, curation.funnel
    rows = _stages(len(table["row"]), len(pool.excluded), funnel)
    run.write_table("funnel", rows)
    broken = np.flatnonzero(table["why"] != "")
    excluded = [*pool.excluded, *((pool.images.ids[i], table["why"][i]) for i in broken.tolist())]
    run.write_table("aside", [{"id": name, "why": why} for name, why in excluded])
    counts = Counter(why for _, why in excluded)
    run.write_table("aside_counts", [{"why": w, "images": n} for w, n in counts.most_common()])
    run.write_table("copies", copies.rows)
    names = [stage.name for stage in funnel.stages]
    fate = (
        {"id": i, "dropped_by": names[f] if f >= 0 else None}
        for i, f in zip(pool.images.ids, funnel.fate.tolist(), strict=True)
    )
    run.write_table("fate", fate)
    numbers = {}
    for row in rows:
        left, before = float(row["kept"]), int(row["before"])
        text = f"images left: {row['rule']}"
        key = f"funnel.{key_part(str(row['stage']))}"
        numbers[key] = Number(left, before, None, None, text)
    run.add_numbers(numbers)


def _stages(images: int, excluded: int, funnel: Funnel) -> list[dict[str, Any]]:
    """One row per stage, the files of the pool first."""
    files = images + excluded
    return [
        {"stage": "pool", "rule": "files found", "before": files, "dropped": 0, "kept": files},
        {
            "stage": "pictures",
            "rule": "by name and place; the others are listed as set aside",
            "before": files,
            "dropped": excluded,
            "kept": images,
        },
        *(
            {
                "stage": stage.name,
                "rule": stage.description,
                "before": stage.before,
                "dropped": stage.before - stage.after,
                "kept": stage.after,
            }
            for stage in funnel.stages
        ),
    ]


def low_level_number(
    ours: tuple[ImageSet, np.ndarray],
    theirs: tuple[ImageSet, np.ndarray],
    first: Classifier,
    seed: int,
) -> dict[str, Number]:
    """How well colour, edges and codec alone tell some rows of a set from those of another."""
    sides = []
    for images, rows in (ours, theirs):
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
