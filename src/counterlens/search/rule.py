"""A search rule: it proposes the next point to evaluate and takes the evaluation of it.

A rule is a frozen record of settings with two functions over per-row state. `start` makes the
state of new rows, `update` takes the evaluation of state["z"] and returns the state with the next
point to evaluate. Nothing in it knows the model, the batch around a row or the device, so the
driver may mix rows of different age, drop some, and write the state to disk at any moment.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from counterlens.ball import Ball, Seeds
from counterlens.types import Images, Scores

RuleState = dict[str, Tensor]
"""Tensors with one entry per row; "z" is the point to evaluate, "i" the number of evaluations."""


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of one point per row.

    Args:
        score: what the search raises.
        margin: best other logit minus the true one; above 0 exactly where the row is misclassified.
        grad: gradient of the score; None for a search that needs none.
    """

    score: Scores
    margin: Scores
    grad: Images | None = None


@runtime_checkable
class SearchRule(Protocol):
    """How one kind of search moves."""

    @property
    def evaluations(self) -> int:
        """How often a row is evaluated before it is done."""

    @property
    def strays(self) -> bool:
        """Whether the points to evaluate may leave the ball."""

    def start(self, x: Images, ball: Ball, seeds: Seeds) -> RuleState:
        """State of new rows."""

    def update(self, state: RuleState, x: Images, ball: Ball, evaluation: Evaluation) -> RuleState:
        """State after one more evaluation."""


def tall(flags: Tensor) -> Tensor:
    """A per-row tensor reshaped to broadcast over images."""
    return flags.view(-1, 1, 1, 1)


def finite(score: Scores) -> Scores:
    """NaN scores as −∞, so that they never win."""
    return torch.nan_to_num(score, nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
