"""The state of an attack: what is known about every point of the data set."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterlens.ball import Ball, mix, row_seeds
from counterlens.search.fast.engine import Engine
from counterlens.types import Images, Labels

ON_DEVICE = 4 * 2**30  # bytes of images stored on the device; more stay in main memory
CLEAN = "clean"  # named as the breaker of points that need no attack


@dataclass
class AttackState:
    """Points, their verdicts so far and the best image for each.

    Args:
        x, y: clean images and true labels; y is ignored where confidence is raised.
        seeds: one per point; everything random about a point follows from it.
        targets: classes in falling order of the clean logits, the true one left out.
        robust: which points nothing has broken yet.
        points: the misclassified (or best) image of each point, in main memory.
        broken_by: name of what broke a point, "" while it holds.
        evaluations: evaluations its item had seen when it broke.
        nearest: smallest distance of a misclassified image, ∞ if none.
        finished: which points no stage has anything left to do for.
        top: best score so far, where an objective is raised rather than points broken.
    """

    x: Images
    y: Labels
    ball: Ball
    seeds: Tensor
    targets: Tensor
    robust: NDArray[np.bool_]
    points: Images
    broken_by: list[str]
    evaluations: NDArray[np.int64]
    nearest: NDArray[np.float64]
    top: NDArray[np.float64]
    finished: NDArray[np.bool_]
    fresh: list[int] = field(default_factory=list)
    tallies: list[dict[str, Any]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.robust)

    def take(self, rows: NDArray[np.int64], device: torch.device) -> tuple[Images, Labels]:
        """Images and labels of some rows, on the device."""
        index = torch.from_numpy(rows)
        x = self.x[index.to(self.x.device)].to(device)
        return x, self.y[index].to(device)

    def record_point(self, row: int, point: Tensor) -> None:
        """Record an image for a row; the next save writes it."""
        self.points[row] = point
        self.fresh.append(row)


def initial_state(
    engine: Engine, x: Images, y: Labels | None, ball: Ball, *, seed: int, batch: int
) -> AttackState:
    """The state before any attack: points misclassified without one count as broken."""
    logits = engine.verify(x, batch=batch).cpu()
    rows = len(x)
    labels = logits.argmax(1) if y is None else y.cpu()
    order = logits.argsort(dim=1, descending=True, stable=True)
    others = order[order != labels[:, None]].view(rows, -1)
    right = np.ones(rows, bool) if y is None else (logits.argmax(1) == labels).numpy()
    x = x if x.dtype == torch.float64 else x.float()
    large = x.numel() * 4 > ON_DEVICE
    return AttackState(
        x=x.cpu() if large else x.to(engine.device),
        y=labels,
        ball=ball,
        seeds=mix(row_seeds(rows, seed), 0),
        targets=others,
        robust=right.copy(),
        points=x.cpu().clone(),
        broken_by=["" if good else CLEAN for good in right],
        evaluations=np.zeros(rows, np.int64),
        nearest=np.where(right, np.inf, 0.0),
        top=np.full(rows, -np.inf),
        finished=~right,
    )
