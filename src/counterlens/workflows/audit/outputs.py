"""Outputs of the audited model for whole sets, computed once."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from counterlens.classifier import Classifier
from counterlens.images import ImageSet
from counterlens.predictions import predict
from counterlens.runs import Run, key_part
from counterlens.workflows.audit.settings import Settings


@dataclass(frozen=True)
class Outputs:
    """Outputs of one model, computed once and stored for a resumed run.

    Args:
        what: the word by which they are stored.
    """

    run: Run
    classifier: Classifier
    settings: Settings
    what: str = "outputs"

    def __call__(self, images: ImageSet, role: str) -> Tensor:
        """Outputs for a whole set, from the state of an interrupted run where it has them."""
        path = self.run.path("state", f"{self.what}-{role}-{key_part(images.name)}.npy")
        if path.exists():
            return torch.from_numpy(np.load(path))
        outputs = predict(
            self.classifier,
            images,
            batch=self.settings.batch or "auto",
            workers="auto" if self.settings.workers is None else self.settings.workers,
            progress=not self.settings.quiet,
            out=path,
        )
        return torch.as_tensor(outputs.logits)
