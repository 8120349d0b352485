"""One call of neurons: which classifier is looked into, and how its progress is shown."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from counterlens.classifier import Classifier
from counterlens.models.parts import features
from counterlens.runs import Number, Run
from counterlens.workflows._shared.session import Log

FeatureRows = list[dict[str, Any]]
NeuronWork = Callable[[Run], tuple[FeatureRows, dict[str, Number]]]
"""What a method does once the run exists: rows of the table of features, and numbers."""


@dataclass(frozen=True)
class NeuronJob:
    """One call.

    Args:
        given: the model as it came, which workers load again.
        log: takes lines of progress.
    """

    given: str | Classifier
    classifier: Classifier
    log: Log

    def check_head(self) -> None:
        """Refuse, before a set is read, logits that are no linear function of features."""
        net = self.classifier
        blank = torch.zeros(1, net.channels, *net.preprocess.size)
        with torch.no_grad():
            features(net, blank.to(net.mean))
