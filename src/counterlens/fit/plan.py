"""The plan of a training, and its progress.

Paper: Augustin et al. 2020 (ratio2020), appendix, for the schedules.
"""

import math
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from counterlens.errors import InputError
from counterlens.types import Loss

NetworkJudge = Callable[[nn.Module, int], dict[str, float]]
RateSchedule = Literal["linear", "cosine", "step", "epochs", "constant"]


@dataclass(frozen=True)
class Trainable:
    """One network, what it minimises and with which optimiser; a GAN has two."""

    net: nn.Module
    loss: Loss
    optimizer: torch.optim.Optimizer


@dataclass(frozen=True)
class Plan:
    """How long and how to train.

    Args:
        steps: updates in all; the schedule is laid out over them.
        per_epoch: updates per epoch: the rhythm of judging and of progress lines.
        schedule: how the learning rate falls.
        warmup: updates over which it first rises.
        hold: for "linear" and "cosine": share of the run after which it begins to fall.
        drops: for "step": fractions of the run after each of which it is divided by ten.
        decay: for "epochs": what it is multiplied by after each epoch.
        average: decay of the weight average per update; 0 for none.
        precision: bf16 arithmetic with float32 weights, or float32 throughout.
        compile, graph: torch.compile, and CUDA graphs on top of it.
        draws: whether the loss draws random numbers, which a captured graph must know.
        judge_every: epochs between judgements; the last epoch is always judged.
        keep_best: return the best judged weights in place of the last.
        patience: stop after so many judgements in a row without a new best one.
        log_every: updates between two checks of the losses.
        checkpoint_minutes: time between two checkpoints.
        max_minutes: stop after so long, checkpoint written; a later call continues.
    """

    steps: int
    per_epoch: int
    seed: int = 0
    schedule: RateSchedule = "linear"
    warmup: int = 0
    hold: float = 0.0
    drops: tuple[float, ...] = ()
    decay: float = 0.7
    average: float = 0.0
    precision: Literal["bf16", "fp32"] = "fp32"
    compile: bool = False
    graph: bool = False
    draws: bool = False
    judge_every: int = 1
    keep_best: bool = False
    patience: int | None = None
    log_every: int = 50
    checkpoint_minutes: float = 1.0
    max_minutes: float | None = None

    def rate(self, step: int) -> float:
        """The learning rate of update `step` as a share of the full one.

        >>> plan = Plan(steps=100, per_epoch=10, schedule="step", drops=(0.5, 0.75))
        >>> plan.rate(49), plan.rate(50), round(plan.rate(75), 3)
        (1.0, 0.1, 0.01)
        >>> late = Plan(steps=100, per_epoch=10, hold=0.5)
        >>> late.rate(50), late.rate(75)
        (1.0, 0.5)
        """
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        first = max(self.warmup, self.hold * self.steps)
        done = max(0.0, step - first) / max(1, self.steps - first)
        match self.schedule:
            case "linear":
                return 1 - done
            case "cosine":
                return (1 + math.cos(math.pi * done)) / 2
            case "step":
                passed = sum(step >= drop * self.steps - 1e-9 for drop in self.drops)
                return float(0.1**passed)
            case "epochs":
                return float(self.decay ** (step // self.per_epoch))
            case "constant":
                return 1.0
        raise InputError(
            f"schedule is {self.schedule!r}, expected linear, cosine, step, epochs or constant."
        )


@dataclass
class Progress:
    """The progress of a run: its position, its history, its best moment.

    `stopped_by` is the signal that ended the training early, 0 where none did.
    """

    step: int = 0
    seconds: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)
    best: float = -math.inf
    best_step: int = -1
    waited: int = 0
    best_state: dict[str, Tensor] | None = None
    done: bool = False
    stopped_by: int = 0

    def resend(self) -> None:
        """Answer the signal that stopped the training, now that everything is saved."""
        if self.stopped_by:
            signal.raise_signal(self.stopped_by)
