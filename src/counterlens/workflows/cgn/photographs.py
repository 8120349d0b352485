"""Photographs with the masks of their objects, at one size: the parts of counterfactuals."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from counterlens.data.masks import open_masks, own_masks
from counterlens.errors import InputError
from counterlens.generators.cgn.photographs import mask_quality
from counterlens.images import ImageSet, prepare, prepared
from counterlens.progress import doing
from counterlens.runs import Run, atomic
from counterlens.types import Images, Preprocess

EMPTY, FULL = 0.01, 0.95
"""Shares of the image below and above which there is no object, or nothing but the object."""
SMALL, LARGE = 0.05, 0.9
UNSURE = 0.15
THIN = 0.9
CHUNK = 64
Masked = Callable[[int, Images], Tensor | None]
"""From a row and its photograph to its mask, h × w in [0, 1]; None where it has none."""


@dataclass(frozen=True)
class Sources:
    """The photographs that counterfactuals are composed of.

    Args:
        x: pixels.
        mask: of the objects, 255 there.
        labels: classes, as numbers of `classes`.
        ids: of the photographs.
        classes: names.
        rows: a row per photograph with area, entropy and flags of its mask.
    """

    x: UInt8[Tensor, "n 3 s s"]
    mask: UInt8[Tensor, "n 1 s s"]
    labels: Int64[np.ndarray, "n"]
    ids: tuple[str, ...]
    classes: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]

    def photographs(self, rows: Tensor) -> Images:
        """Some of the photographs, in [0, 1]."""
        return self.x[rows].float() / 255

    def masks(self, rows: Tensor) -> Tensor:
        """Their masks, in [0, 1]."""
        return self.mask[rows].float() / 255


def open_sources(
    run: Run, images: ImageSet, masked: Masked, size: int
) -> tuple[Sources, list[dict[str, Any]]]:
    """Decode the photographs and find their masks; those without an object are left out.

    Returns the sources, and a row for each photograph that was left out, with the reason.
    """
    planes, masks = _stored(run, images, masked, size)
    quality = mask_quality(masks.float() / 255)
    usable, rows, excluded = [], [], []
    for i, name in enumerate(images.ids):
        area, entropy, inner = (
            float(one[i]) for one in (quality.area, quality.entropy, quality.inner)
        )
        facts = {"id": str(name), "class": _class_of(images, i), "area": round(area, 4)}
        reason = _reason(area, int(images.labels[i]))
        if reason:
            excluded.append({**facts, "reason": reason})
            continue
        usable.append(i)
        rows.append(
            {
                **facts,
                "entropy": round(entropy, 4),
                "inner": round(inner, 4),
                "flags": mask_flags(area, entropy, inner),
            }
        )
    _check(usable, excluded)
    chosen = np.array(usable)
    return Sources(
        planes[chosen], masks[chosen], images.labels[chosen].astype(np.int64),
        tuple(str(images.ids[i]) for i in usable), images.classes, tuple(rows),
    ), excluded  # fmt: skip


def mask_flags(area: float, entropy: float, inner: float) -> list[str]:
    """What is doubtful about a mask.

    >>> mask_flags(0.03, 0.02, 0.7)
    ['small object', 'texture holds background']
    """
    doubts = {
        "small object": area < SMALL,
        "fills the image": area > LARGE,
        "unsure mask": entropy > UNSURE,
        "texture holds background": inner < THIN,
    }
    return [name for name, doubtful in doubts.items() if doubtful]


def open_masked(spec: str | None, data: object, images: ImageSet, size: int, device: str) -> Masked:
    """Masks of a spec: FOLDER, key:NAME, FILE.onnx, sam:ID; None: those in the pack itself."""
    source = data if isinstance(data, str) else "data"
    if spec is None:
        own = own_masks(source, images, border=True)
        if own is None:
            raise InputError(
                f"{images.name} has no masks of its own. Give some: mask='FOLDER' of pictures, "
                "white on the object, mask='u2netp.onnx' (U²-Net), or mask='sam:OWNER/MODEL'."
            )
        return _given(own[1], size)
    if spec.startswith("sam:"):
        return _by_points(spec.removeprefix("sam:"), device)
    if spec.endswith(".onnx"):
        if not Path(spec).is_file():
            raise InputError(f"no segmenter {spec}: there is no such file.")
        from counterlens.models.salient import load_salient

        salient = load_salient(spec)
        return lambda i, x: salient(x)[0, 0]
    return _given(open_masks(spec, source, images, border=True), size)


def _given(read: Callable[[int], Any], size: int) -> Masked:
    square = Preprocess((size, size), 1.0, "bilinear")

    def masked(i: int, x: Images) -> Tensor | None:
        mask = read(i)
        if mask is None:
            return None
        grey = np.repeat(mask.astype(np.uint8)[..., None] * 255, 3, 2)
        return torch.from_numpy(prepare(grey, square)[0]).float() / 255

    return masked


def _by_points(name: str, device: str) -> Masked:
    """Segment Anything, shown the middle of the image as points on the object."""
    from counterlens.classifier import pick_device
    from counterlens.models.segmenter import centre, load_segmenter

    segment = load_segmenter(name, device=pick_device(device))

    def masked(i: int, x: Images) -> Tensor:
        return segment(x, centre(x))[0, 0].cpu()

    return masked


def _stored(run: Run, images: ImageSet, masked: Masked, size: int) -> tuple[Tensor, Tensor]:
    """Pixels and masks of all images, chunk by chunk in the state of the run."""
    square = Preprocess((size, size))
    parts = []
    for start in range(0, len(images), CHUNK):
        path = run.path("state", f"photographs-{start:06d}.npz")
        rows = range(start, min(start + CHUNK, len(images)))
        if not path.exists():
            x = np.stack([prepared(images.read, i, square) for i in rows])
            masks = [
                masked(i, torch.from_numpy(x[i - start : i - start + 1]).float() / 255)
                for i in rows
            ]
            empty = torch.zeros(size, size)
            soft = torch.stack([empty if one is None else one for one in masks])
            bytes_ = (soft.clamp(0, 1) * 255).round().byte()[:, None].numpy()
            with atomic(path) as part, part.open("wb") as file:
                np.savez(file, x=x, mask=bytes_)
        doing("photographs and masks", rows.stop, len(images))
        with np.load(path) as stored:
            parts.append((torch.from_numpy(stored["x"]), torch.from_numpy(stored["mask"])))
    return torch.cat([x for x, _ in parts]), torch.cat([m for _, m in parts])


def _reason(area: float, label: int) -> str | None:
    if label < 0:
        return "no label"
    if area < EMPTY:
        return "the mask is empty or absent"
    return "the mask is full: no background is left" if area > FULL else None


def _check(usable: list[int], excluded: list[dict[str, Any]]) -> None:
    if not usable:
        reasons: dict[str, int] = {}
        for row in excluded:
            reasons[row["reason"]] = reasons.get(row["reason"], 0) + 1
        counts = "; ".join(f"{n} × {reason}" for reason, n in reasons.items())
        raise InputError(
            f"none of the {len(excluded)} photographs shows an object and a background: {counts}. "
            "Check mask: white is the object."
        )


def _class_of(images: ImageSet, i: int) -> str:
    label = int(images.labels[i])
    return images.classes[label] if label >= 0 else ""
