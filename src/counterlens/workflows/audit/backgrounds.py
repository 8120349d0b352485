"""Accuracy with other backgrounds, on the user's own classes, from masks of the objects.

    original     the picture                     mixed_same   on the background of its own class
    only_fg      the object on black             mixed_rand   on the background of another class
    no_fg        its shape in black              only_bg_t    its box filled from beside it

Paper: Xiao, Engstrom, Ilyas, Madry 2021 (xiao2021).
Differs: a background is that of another picture of the set whose object is tiled over; a random one
       is of another class, never of the same. All variants are of the same pictures, so the gap is
       paired.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64

from counterlens import metrics
from counterlens.classifier import Classifier
from counterlens.data import subset
from counterlens.data.masks import ReadMask
from counterlens.data.synthetic.backgrounds import (
    mixed,
    no_foreground,
    only_background_tiled,
    only_foreground,
)
from counterlens.errors import InputError
from counterlens.images import ImageSet, Pixels
from counterlens.metrics.numbers import background_number
from counterlens.predictions import predict
from counterlens.progress import doing
from counterlens.runs import Run, atomic
from counterlens.workflows._shared.masks import DOUBTS, doubt, masks_by
from counterlens.workflows.audit import gallery
from counterlens.workflows.audit.protocol import Protocol
from counterlens.workflows.audit.settings import Settings

VARIANTS = ("original", "mixed_same", "mixed_rand", "only_fg", "no_fg", "only_bg_t")
SHOWN, FEWEST = 3, 20
_Hits = Bool[np.ndarray, "n"]
_Rows = Int64[np.ndarray, "n"]


def open_object_masks(settings: Settings, images: ImageSet) -> ReadMask | None:
    """The masks that the settings name; refused before anything is written."""
    return None if settings.masks is None else masks_by(settings.masks, settings.data, images)


def write_backgrounds(
    run: Run,
    classifier: Classifier,
    images: ImageSet,
    masks: ReadMask | None,
    protocol: Protocol,
    reported: _Rows,
    settings: Settings,
) -> None:
    """Accuracy on each variant and the background gap, as numbers, table and pictures."""
    if masks is None:
        return
    base, labels = subset(images, reported), protocol.labels[reported]
    own: list[str] = []
    for i, row in enumerate(reported.tolist()):
        doing("checking masks", i, len(reported))
        own.append(doubt(masks(row), base.read(i).shape[:2]))
    flags = np.array(own)
    usable = np.isin(flags, ("", *DOUBTS))
    run.write_table("mask_flags", _flag_rows(flags))
    donors, rows = _donors(base, masks, reported, labels, usable, settings.seed)
    if len(rows) < FEWEST:
        raise InputError(
            f"{len(rows)} pictures have a usable mask, a background of their class and one of "
            f"another, expected {FEWEST} or more: check masks={settings.masks}."
        )
    hits: dict[str, _Hits] = {}
    for variant in VARIANTS:
        doing(f"backgrounds: {variant}")
        part = _set_of(base, masks, reported, rows, donors, variant)
        hits[variant] = _right(run, classifier, part, protocol, labels[rows], settings)
        shown: list[dict[str, object]] = [
            {"row": i, "label": protocol.classes[int(labels[rows[i]])], "predicted": None,
             "confidence": None}
            for i in range(min(SHOWN, len(rows)))
        ]  # fmt: skip
        gallery.add(run, part, f"background:{variant}", shown)
    _write(run, hits, np.array([not flag for flag in flags[rows]]), settings)


def _write(run: Run, hits: Mapping[str, _Hits], clear: _Hits, settings: Settings) -> None:
    """Numbers and the table of the report.

    Args:
        clear: pictures whose mask raises no doubt.
    """
    text = f"masks: {settings.masks}; the same pictures on every background"
    shares = {name: metrics.share(torch.from_numpy(right), text) for name, right in hits.items()}
    run.write_table(
        "backgrounds",
        [
            {"variant": name, "accuracy": n.value, "low": n.low, "high": n.high, "n": n.n}
            for name, n in shares.items()
        ],
    )
    same, other = (torch.from_numpy(hits[name]) for name in ("mixed_same", "mixed_rand"))
    ids = [str(i) for i in range(len(same))]
    gap = background_number(same, other, ids=(ids, ids))
    protocol = f"accuracy on Mixed-Same less accuracy on Mixed-Rand, Newcombe paired; {text}"
    numbers = {"bias.background_gap": replace(gap, protocol=protocol)}
    numbers |= {f"background.{name}.accuracy": number for name, number in shares.items()}
    rows = torch.from_numpy(clear)
    if FEWEST <= int(clear.sum()) < len(clear):
        few = ids[: int(clear.sum())]
        own = background_number(same[rows], other[rows], ids=(few, few))
        numbers["bias.background_gap_clear"] = replace(
            own, protocol=f"{protocol}; only pictures whose mask raises no doubt"
        )
    run.add_numbers(numbers)


def _flag_rows(flags: np.ndarray) -> list[dict[str, Any]]:
    return [
        {"mask": flag or "no doubt", "images": n, "used": flag == "" or flag in DOUBTS}
        for flag, n in Counter(flags.tolist()).most_common()
    ]


def _donors(
    base: ImageSet,
    masks: ReadMask,
    reported: _Rows,
    labels: _Rows,
    usable: _Hits,
    seed: int,
) -> tuple[dict[str, _Rows], _Rows]:
    """For each picture one of its class and one of another to take the background from.

    Pictures that lack one of the two are left out: all variants are of the same pictures.
    """
    backs = np.zeros(len(base), dtype=bool)
    for i in np.flatnonzero(usable).tolist():
        mask = masks(int(reported[i]))
        assert mask is not None
        backs[i] = only_background_tiled(base.read(i), mask) is not None
    rng, pool = np.random.default_rng([seed, 31]), np.flatnonzero(usable & backs)
    rows, chosen = [], []
    for i in pool.tolist():
        same = pool[(labels[pool] == labels[i]) & (pool != i)]
        other = pool[labels[pool] != labels[i]]
        if len(same) and len(other):
            rows.append(i)
            chosen.append((rng.choice(same), rng.choice(other)))
    both = np.array(chosen, dtype=np.int64).reshape(-1, 2)
    return {"mixed_same": both[:, 0], "mixed_rand": both[:, 1]}, np.array(rows, dtype=np.int64)


def _set_of(
    base: ImageSet,
    masks: ReadMask,
    reported: _Rows,
    rows: _Rows,
    donors: Mapping[str, _Rows],
    variant: str,
) -> ImageSet:
    """The pictures of one variant."""

    def background(i: int) -> Pixels:
        mask = masks(int(reported[i]))
        assert mask is not None
        tiled = only_background_tiled(base.read(i), mask)
        assert tiled is not None
        return tiled

    def composed(j: int) -> Pixels:
        i = int(rows[j])
        pixels, mask = base.read(i), masks(int(reported[i]))
        assert mask is not None
        match variant:
            case "original":
                return pixels
            case "only_fg":
                return only_foreground(pixels, mask)
            case "no_fg":
                return no_foreground(pixels, mask)
            case "only_bg_t":
                return background(i)
        return mixed(pixels, mask, background(int(donors[variant][j])))

    part = subset(base, rows)
    return replace(part, name=f"background-{variant}", read=composed)


def _right(
    run: Run,
    classifier: Classifier,
    images: ImageSet,
    protocol: Protocol,
    labels: _Rows,
    settings: Settings,
) -> _Hits:
    """Which are answered right; kept for a resumed run."""
    path = Path(run.path("state", f"{images.name}.npy"))
    if path.exists():
        stored: _Hits = np.load(path)
        return stored
    outputs = predict(
        classifier, images, batch=settings.batch or "auto", workers=0,
        progress=not settings.quiet,
    )  # fmt: skip
    right: _Hits = protocol.logits(outputs.logits).argmax(1).numpy() == labels
    with atomic(path) as part, part.open("wb") as file:
        np.save(file, right)
    return right


def background_keys(settings: Settings) -> list[str]:
    """The numbers that an audit with these settings may produce."""
    if settings.masks is None:
        return []
    keys = [f"background.{name}.accuracy" for name in VARIANTS]
    return [*keys, "bias.background_gap", "bias.background_gap_clear"]
