"""Is the training healthy? Held-out accuracy, and attacks five times as strong as the training's.

Paper: Augustin et al. 2020 (ratio2020) chose checkpoints on the test set; here held-out training
       images decide. Mosbach et al. 2018 showed how training against a weak attack looks well.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from counterlens.ball import Ball
from counterlens.losses import Attack
from counterlens.objectives import confidence_anywhere, margin_of
from counterlens.workflows.train.datasets import Sets

STRONGER = 5
WEAK_ATTACK = 0.03  # robust accuracy that the stronger attack may take at most
WEAK_OUT_ATTACK = 0.10  # mean confidence outside that it may add at most
COLLAPSED = 1.3  # mean confidence inside, in units of 1/K
OVERFIT = 0.02  # robust accuracy lost since its best


@dataclass
class Health:
    """Judges a network on held-out images and remembers how it fared.

    Args:
        sets: whose held-out images are used.
        near, far: the training attacks, or None where the loss has none.
        report: the robust accuracy to follow: ball and steps.
        probe_every: epochs between two probes by stronger attacks.
    """

    sets: Sets
    near: Attack | None
    far: Attack | None
    report: tuple[Ball, int]
    per_epoch: int
    probe_every: int
    total: int
    log: Callable[[str], None] = print
    batch: int = 1000
    warnings: list[str] = field(default_factory=list)
    best_robust: float = 0.0

    def __call__(self, net: nn.Module, step: int) -> dict[str, float]:
        """Held-out numbers after `step` updates; every now and then with the stronger probe."""
        ball, steps = self.report
        row = {"held_out.clean": self.accuracy(net, None, 0)}
        row["held_out.robust"] = self.accuracy(net, Attack(ball, ((0, steps),), None), 0)
        row["held_out.confidence"] = self.confidence(net, self.sets.held_x, None, 0)
        if self.near is not None:
            row["held_out.near"] = self.accuracy(net, self.near, step)
        if self.sets.held_outside is not None:
            row["held_out.out_confidence"] = self.confidence(net, self.sets.held_outside, None, 0)
            if self.far is not None:
                row["held_out.far_confidence"] = self.confidence(
                    net, self.sets.held_outside, self.far, step
                )
        row["score"] = row.get("held_out.near", row["held_out.clean"])
        if step // self.per_epoch % self.probe_every == 0 or step == self.total:
            row |= self.probe(net, step)
        self.warn(row, step)
        return row

    def probe(self, net: nn.Module, step: int) -> dict[str, float]:
        """The same numbers under attacks of five times the steps."""
        row = {}
        if self.near is not None:
            row["probe.near"] = self.accuracy(net, stronger(self.near, step), step)
        if self.far is not None and self.sets.held_outside is not None:
            row["probe.far_confidence"] = self.confidence(
                net, self.sets.held_outside, stronger(self.far, step), step
            )
        return row

    def warn(self, row: dict[str, float], step: int) -> None:
        """Name what looks wrong, the epoch, and what to do about it."""
        epoch = step // self.per_epoch
        classes = len(self.sets.classes)
        new = []
        if row.get("held_out.near", 0) - row.get("probe.near", 1) > WEAK_ATTACK:
            new.append(
                f"epoch {epoch}: the training attack is too weak: {row['held_out.near']:.3f} "
                f"accuracy under it, {row['probe.near']:.3f} under {STRONGER} times its steps. "
                "Use more steps: --set near.steps=…"
            )
        far = row.get("probe.far_confidence", 0) - row.get("held_out.far_confidence", 1)
        if far > WEAK_OUT_ATTACK:
            new.append(
                f"epoch {epoch}: the out-distribution attack is too weak: mean confidence "
                f"{row['held_out.far_confidence']:.3f} under it, {row['probe.far_confidence']:.3f} "
                f"under {STRONGER} times its steps. Use more steps: --set far.steps=…"
            )
        if row["held_out.confidence"] < COLLAPSED / classes and step > self.per_epoch:
            new.append(
                f"epoch {epoch}: mean confidence inside fell to {row['held_out.confidence']:.3f}, "
                f"1/K is {1 / classes:.3f}: the out-term wins. Lower it: --set out_weight=0.5, or "
                "start with a smaller far.radius."
            )
        robust = row["held_out.robust"]
        if self.near is not None and robust < self.best_robust - OVERFIT:
            new.append(
                f"epoch {epoch}: robust accuracy overfits: {robust:.3f}, its best was "
                f"{self.best_robust:.3f}. Stop at the best: --set keep_best=true, or augment more."
            )
        self.best_robust = max(self.best_robust, robust)
        for line in new:
            self.warnings.append(line)
            self.log("warning: " + line)

    def review(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """The warnings of all epochs of a history, also of those before a resumed run."""
        again = replace(self, warnings=[], best_robust=0.0, log=lambda line: None)
        for row in rows:
            if "held_out.clean" in row:
                again.warn(dict(row), int(row["step"]))
        return again.warnings

    def accuracy(self, net: nn.Module, attack: Attack | None, step: int) -> float:
        """Share of held-out images classified right, at the attack's point where there is one."""
        right = 0
        for a in range(0, len(self.sets.held_x), self.batch):
            x, y = (
                self.sets.held_x[a : a + self.batch].float() / 255,
                self.sets.held_y[a : a + self.batch],
            )
            z = x if attack is None else attack.near(net, x, y, step)
            with torch.no_grad():
                right += int((margin_of(net(z), y) < 0).sum())
        return right / len(self.sets.held_x)

    def confidence(self, net: nn.Module, pixels: Tensor, attack: Attack | None, step: int) -> float:
        """Mean confidence of the top class, at the attack's point where there is one."""
        total = 0.0
        for a in range(0, len(pixels), self.batch):
            x = pixels[a : a + self.batch].float() / 255
            z = x if attack is None else attack.far(net, x, step)
            with torch.no_grad():
                total += float(confidence_anywhere(net)(z).exp().sum())
        return total / len(pixels)


def stronger(attack: Attack, step: int) -> Attack:
    """The attack with five times the steps, each shorter so that it can settle."""
    steps = STRONGER * attack.steps(step)
    return Attack(attack.ball, ((0, steps),), None, attack.momentum, attack.raises)
