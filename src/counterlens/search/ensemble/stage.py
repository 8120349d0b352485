"""What the driver works with: the stages of an attack, its monitor and the batch in progress."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from counterlens.search.ensemble.store import AttackStore
from counterlens.search.fast.cuda_graph import Replay
from counterlens.search.fast.engine import Engine, LogitScore
from counterlens.search.rule import RuleState, SearchRule


@dataclass(frozen=True)
class SearchStage:
    """One search over the whole data set.

    Args:
        name: as it appears in results.
        rule: how points move.
        score: what is raised; None means the nearest linearised boundary (untargeted FAB).
        variants: restarts, or target classes if `targeted`.
        slope: whether the rule needs gradients.
        judge: if given, points are not broken; the image with the highest such score is stored for
            each point.
        surrogate: another model, which is searched in place of the attacked one; the attacked
            model is shown every point that fools it more than the last.
    """

    name: str
    rule: SearchRule
    score: LogitScore | None
    variants: int = 1
    targeted: bool = False
    slope: bool = True
    judge: LogitScore | None = None
    surrogate: Engine | None = None


@dataclass
class AttackMonitor:
    """What accompanies an attack: a clock with a budget, a store, a progress callback."""

    budget: float | None = None
    store: AttackStore | None = None
    progress: Callable[[dict[str, Any]], None] | None = None
    clock: Callable[[], float] = time.monotonic
    began: float = field(default=0.0, init=False)
    saved: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.began = self.saved = self.clock()

    def expired(self) -> bool:
        """Whether the budget is spent."""
        return self.budget is not None and self.clock() - self.began >= self.budget

    def due(self) -> bool:
        """Whether the state should be saved now."""
        return self.store is not None and self.clock() - self.saved >= self.store.every


@dataclass
class RunningBatch:
    """The items in the batch, the evaluations each has had, and the position in the queue."""

    rows: NDArray[np.int64]
    variants: NDArray[np.int64]
    num_evaluations: NDArray[np.int64]
    queue: NDArray[np.int64]  # rows that were robust when the stage began
    position: int
    state: RuleState
    tally: dict[str, Any]
    replay: Replay | None = None

    def select(self, keep: NDArray[np.bool_]) -> None:
        """Drop the other items."""
        if keep.all():
            return
        index = torch.from_numpy(np.flatnonzero(keep))
        if self.state:
            index = index.to(self.state["z"].device)
        self.rows, self.variants = self.rows[keep], self.variants[keep]
        self.num_evaluations = self.num_evaluations[keep]
        for name, tensor in self.state.items():
            self.state[name] = tensor[index]
