"""Models of the MAITE protocol: a batch as a sequence of arrays in, a sequence of vectors out.

Recognised by what it has, not by its class: `metadata` with `index2label`, and a call. The vectors
are logits or probabilities; rows that are not negative and sum to 1 are probabilities, of which the
logarithm is taken. No gradient passes such a call.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from counterlens.data.sources.pixels import as_array
from counterlens.errors import InputError
from counterlens.types import Images, Logits

TINY = 1e-12


def is_maite(source: object) -> bool:
    """Whether an object is a model of the MAITE protocol."""
    facts = getattr(source, "metadata", None)
    return isinstance(facts, Mapping) and "index2label" in facts and callable(source)


class MaiteNet(nn.Module):
    """A model of the MAITE protocol as a module."""

    closed = "an object of the MAITE protocol shows no layers"

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.classes = index2label(model.metadata)
        self.name = str(model.metadata.get("id") or type(model).__name__)
        self.probabilities: bool | None = None

    def forward(self, x: Images) -> Logits:
        vectors = self.model(list(x.detach().cpu().numpy()))
        rows = [as_array(one) if as_array(one) is not None else np.asarray(one) for one in vectors]
        if len(rows) != len(x):
            raise InputError(f"{self.name} gave {len(rows)} vectors for {len(x)} images.")
        out = torch.as_tensor(np.stack(rows), dtype=torch.float32)  # type: ignore[arg-type]
        if self.probabilities is None:
            sums = out.sum(1)
            self.probabilities = bool(out.min() >= 0 and (sums - 1).abs().max() < 1e-3)
        out = out.clamp_min(TINY).log() if self.probabilities else out
        return out.to(x.device)

    def __deepcopy__(self, _: dict[int, Any]) -> "MaiteNet":
        """The model is shared: it belongs to another library and is only called."""
        copied = MaiteNet(self.model)
        copied.probabilities = self.probabilities
        return copied.train(self.training)


def index2label(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Class names in the order of their numbers.

    >>> index2label({"id": "x", "index2label": {1: "dog", 0: "cat"}})
    ('cat', 'dog')
    """
    named = {int(index): str(name) for index, name in metadata["index2label"].items()}
    return tuple(named.get(index, str(index)) for index in range(max(named, default=-1) + 1))
