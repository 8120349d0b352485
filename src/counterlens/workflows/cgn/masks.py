"""Are the masks of a CGN still digits? A criterion whose bounds were fixed in advance.

The bounds came before any training was looked at. The falling learning rate of the digit classifier
came after first trainings had been seen: with a constant one it misread real digits too.

A digit's masks are intact if a classifier of real digits reads at least 85 % of them right,
their mean area is 5 to 60 % of the picture, and they are brighter in the centre than at the
border. A mask that has turned into its negative fails at least the last two.

Paper: the collapse is described in cgnstudy2022 (appendix C).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from counterlens.data.synthetic.digit_factors import DIGITS, Digits
from counterlens.data.synthetic.mnist_variants import MASK_ABOVE, OBJECT_ABOVE
from counterlens.generators.cgn.model import CGN, NOISE
from counterlens.metrics.intervals.closed_form import wilson
from counterlens.models.nets.digit_net import DigitNet
from counterlens.runs import Number
from counterlens.workflows.cgn.stack import TrainingPool, pieces, train_stack

READ, LEAST_AREA, MOST_AREA = 0.85, 0.05, 0.60
BORDER, CENTRE = 3, 8
PER_DIGIT = 100
CLASSIFIER_BATCH = 64


@dataclass(frozen=True)
class MaskHealth:
    """What is known about the masks of each network (s) and digit.

    Args:
        read: share of masks that the digit classifier takes for the digit.
        area: mean of the mask.
        inside: mean of the mask in the central 16 × 16 less that of the outer 3 pixels.
    """

    read: Float[Tensor, "s 10"]
    area: Float[Tensor, "s 10"]
    inside: Float[Tensor, "s 10"]

    @property
    def intact(self) -> Bool[Tensor, "s 10"]:
        """Which digits have intact masks."""
        fits = (self.area >= LEAST_AREA) & (self.area <= MOST_AREA)
        return (self.read >= READ) & fits & (self.inside > 0)

    @property
    def collapsed(self) -> list[str]:
        """The other digits of each network, as one word."""
        return ["".join(str(d) for d in range(DIGITS) if not row[d]) for row in self.intact]


def train_digit_classifier(
    digits: Digits,
    *,
    folder: Path,
    device: torch.device,
    log: Callable[[str], None],
    updates: int = 2000,
) -> DigitNet:
    """A network that reads masks: real digits, a third each as they are, above 0.1, above 0.5."""
    grey = digits.grey
    turn = np.arange(len(grey))[:, None, None] % 3
    faint, strong = grey > OBJECT_ABOVE * 255, grey > MASK_ABOVE * 255
    pixels = np.where(turn == 0, grey, np.where(turn == 1, faint, strong) * np.uint8(255))
    x = torch.from_numpy(pixels.astype(np.uint8))[:, None].expand(-1, 3, -1, -1).contiguous()
    pool = TrainingPool(x.to(device), torch.from_numpy(digits.labels.copy()).to(device))
    rows = torch.arange(len(x))
    epochs = -(-updates // max(1, len(x) // CLASSIFIER_BATCH))
    return train_stack(
        pool, [rows], [0], epochs=epochs, folder=folder, log=log, batch=CLASSIFIER_BATCH,
        quick=True,
    )  # fmt: skip


@torch.no_grad()
def accuracy(classifier: DigitNet, digits: Digits, *, count: int = 2000) -> Number:
    """The share of real digits, as masks above 0.5, that the digit classifier reads."""
    device = next(classifier.parameters()).device
    masks = torch.from_numpy(digits.grey[:count] > MASK_ABOVE * 255).float().to(device) * 2 - 1
    predicted = torch.cat(
        [classifier(p[:, None].expand(-1, 3, -1, -1)).argmax(1) for p in pieces(masks, 500)]
    )
    right = int((predicted.cpu() == torch.from_numpy(digits.labels[:count].copy())).sum())
    rule = (
        "real test digits, as masks above 0.5, that the digit classifier reads: the most a CGN can "
        "reach"
    )
    return Number(right / len(predicted), len(predicted), *wilson(right, len(predicted)), rule)


@torch.no_grad()
def examine(net: CGN, classifier: DigitNet, *, count: int = PER_DIGIT, seed: int = 0) -> MaskHealth:
    """Look at `count` masks of every digit of every network of a stack; `net` is in eval mode."""
    device = next(net.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(DIGITS * count, net.stack, NOISE, generator=generator).to(device)
    y = torch.arange(DIGITS, device=device).repeat_interleave(count)
    masks = net.masks(u, y[:, None].expand(-1, net.stack))[:, :, 0]
    flat = masks.flatten(0, 1)[:, None].expand(-1, 3, -1, -1)
    predicted = torch.cat([classifier(part * 2 - 1).argmax(1) for part in pieces(flat, 2000)])
    right = predicted.view(len(y), net.stack) == y[:, None]
    edge = torch.ones(32, 32, dtype=torch.bool, device=device)
    edge[BORDER:-BORDER, BORDER:-BORDER] = False
    centre = masks[:, :, CENTRE:-CENTRE, CENTRE:-CENTRE].mean((2, 3))
    inside = centre - masks[:, :, edge].mean(2)
    read, area, inner = (
        value.float().view(DIGITS, count, net.stack).mean(1).T.cpu()
        for value in (right, masks.mean((2, 3)), inside)
    )
    return MaskHealth(read, area, inner)


def mask_numbers(
    rows: Sequence[Mapping[str, Any]], taken: Sequence[Mapping[str, Any]], tries: int
) -> dict[str, Number]:
    """How many digits are intact.

    Args:
        rows: all trainings.
        taken: of each seed, the one that is kept.
        tries: that a seed may take.
    """
    total = DIGITS * len(taken)
    first = sum(row["intact"] for row in rows if row["attempt"] == 0)
    last = sum(row["intact"] for row in taken)
    rule = f"digits whose masks are intact: {READ:.0%} read right, area 5–60 %, centre above border"

    def share(count: int, which: str) -> Number:
        return Number(count / total, total, *wilson(count, total), f"{rule}; {which}")

    return {
        "cgn.masks.first_try": share(first, "one try"),
        "cgn.masks.intact": share(last, f"up to {tries} tries a seed"),
        "cgn.masks.restarts": Number(
            float(sum(row["attempt"] for row in taken)), len(taken), None, None,
            "attempts before the one that is used, all seeds together",
        ),
    }  # fmt: skip
