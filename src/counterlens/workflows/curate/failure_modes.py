"""Why a classifier may fail on an image: tags suggested by probes, for reviewers to confirm.

Paper: Hendrycks et al. 2021, Natural Adversarial Examples (section 4: reliance on colour and
    texture, background cues, over-generalisation, fickleness).
Differs: the paper shows cases chosen by eye. Here four probes suggest a tag where they pass a
    stated limit; the limits are ours, and only a reviewer's tag counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.explanations.cam import class_cam
from counterlens.explanations.edits.frame import frame_variants
from counterlens.explanations.edits.variants import EditVariant, Flips, flips
from counterlens.images import ImageSet, prepared
from counterlens.types import Images

PATCHES = 4
SHUFFLES = 3
FICKLE = 0.5  # share of small moves of the frame that change the answer
TEXTURED = 0.5  # share of shuffles of 4 × 4 patches that leave the answer
BORDER = 0.75  # share of the evidence in the outer 64 % of the picture
SURE = 0.5  # confidence above which an answer that nothing moves is over-generalised
_BATCH = 32


@dataclass(frozen=True)
class ProbeResult:
    """What the probes found for one image.

    Args:
        moved: share of small moves of the frame that change the answer.
        shuffled: share of shuffles of its patches that leave the answer.
        border: share of the evidence for the answer near the border; None where no map is had.
        confidence: in the answer.
    """

    moved: float
    shuffled: float
    border: float | None
    confidence: float

    @property
    def tags(self) -> tuple[str, ...]:
        """Failure modes that the probes suggest.

        >>> ProbeResult(0.0, 0.0, 0.9, 0.8).tags
        ('background', 'over-generalisation')
        """
        signs = (
            ("texture", self.shuffled >= TEXTURED),
            ("background", self.border is not None and self.border >= BORDER),
            ("over-generalisation", self.moved == 0 and self.confidence >= SURE),
            ("fickleness", self.moved >= FICKLE),
        )
        return tuple(tag for tag, here in signs if here)


def probe(classifier: Classifier, images: ImageSet, rows: Sequence[int]) -> list[ProbeResult]:
    """Probe some images with a classifier; answers are over all its classes.

    Equation: nae2021 §4   colour and texture, background, over-generalisation, fickleness
    """
    out: list[ProbeResult] = []
    for start in range(0, len(rows), _BATCH):
        views = [
            prepared(images.read, int(row), classifier.preprocess, channels=classifier.channels)
            for row in rows[start : start + _BATCH]
        ]
        x = torch.from_numpy(np.stack(views)).to(classifier.mean.device).float().div_(255)
        frame = flips(classifier, x, frame_variants())
        torn = flips(classifier, x, [_shuffle(seed) for seed in range(SHUFFLES)])
        out += _rows(frame, torn, _border(classifier, x, frame.before))
    return out


def _rows(frame: Flips, torn: Flips, border: Float[Tensor, "b"] | None) -> list[ProbeResult]:
    return [
        ProbeResult(
            float(frame.flipped[i].double().mean()),
            1 - float(torn.flipped[i].double().mean()),
            None if border is None else float(border[i]),
            float(frame.sure[i]),
        )
        for i in range(len(frame.before))
    ]


def _shuffle(seed: int) -> EditVariant:
    """Put 4 × 4 patches of the picture in another order: shape goes, texture stays."""

    def edit(x: Images) -> Images:
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(PATCHES**2, generator=generator).tolist()
        rows = [part.tensor_split(PATCHES, 3) for part in x.tensor_split(PATCHES, 2)]
        side = (
            min(p.shape[2] for row in rows for p in row),
            min(p.shape[3] for r in rows for p in r),
        )
        patches = [p[:, :, : side[0], : side[1]] for row in rows for p in row]
        mixed = [patches[k] for k in order]
        lines = [torch.cat(mixed[k : k + PATCHES], 3) for k in range(0, PATCHES**2, PATCHES)]
        whole = torch.cat(lines, 2)
        pad = (0, x.shape[3] - whole.shape[3], 0, x.shape[2] - whole.shape[2])
        return torch.nn.functional.pad(whole, pad, mode="replicate")

    return EditVariant("shuffle", f"patches {seed}", edit)


def _border(classifier: Classifier, x: Images, answer: Tensor) -> Float[Tensor, "b"] | None:
    """Share of the evidence for the answer outside the central 60 % × 60 % of the picture."""
    try:
        cam = class_cam(classifier, x, answer).picture.cpu()
    except InputError:  # a network without a grid over the picture
        return None
    height, width = cam.shape[1:]
    top, left = round(0.2 * height), round(0.2 * width)
    inner = cam[:, top : height - top, left : width - left].sum((1, 2))
    total = cam.sum((1, 2))
    return torch.where(total > 0, 1 - inner / total.clamp_min(1e-12), torch.zeros_like(total))
