"""Classifier: images in [0, 1] in, logits out; preprocessing and class names travel with it.

The network inside sees normalised pixels; nobody else does. Temperature is a fact on the card,
never part of `forward`: robust accuracy must not depend on it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from counterlens.errors import InputError
from counterlens.types import Images, Logits, Preprocess


class Classifier(nn.Module):
    """A network with its normalisation, preprocessing and class names."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        net: nn.Module,
        classes: Sequence[str],
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
        *,
        preprocess: Preprocess,
        name: str = "classifier",
        card: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if len(mean) != len(std) or min(std) <= 0:
            raise InputError(f"mean {tuple(mean)} and std {tuple(std)} do not fit each other.")
        if len(classes) < 2:
            raise InputError(
                f"{name} has {len(classes)} class, expected at least 2. Turn a one-logit model "
                "into two: torch.cat([-z / 2, z / 2], 1)."
            )
        self.net = net
        self.classes = tuple(classes)
        self.preprocess = preprocess
        self.name = name
        self.card = dict(card or {})
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    @property
    def channels(self) -> int:
        """Colour channels of the input: 3, or 1 for grey models."""
        return self.mean.shape[1]

    def forward(self, x: Images) -> Logits:
        """Logits of images in [0, 1] of the declared size."""
        out = self.net((x - self.mean) / self.std)
        return out if isinstance(out, Tensor) else unwrap(out)


def numbered(count: int) -> tuple[str, ...]:
    """Names for classes nobody named: "0", "1", …"""
    return tuple(str(i) for i in range(count))


def pick_device(name: str = "auto") -> torch.device:
    """The device of that name; "auto" takes CUDA, then Apple's MPS, then the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"no device {name!r}. Use auto, cpu, cuda, cuda:1 or mps.") from error
    absent = {
        "cuda": not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count(),
        "mps": not torch.backends.mps.is_available(),
    }
    if absent.get(device.type, False):
        raise InputError(f"device {name} is not there on this machine. Use --device auto or cpu.")
    return device


def unwrap(out: object) -> Tensor:
    """The logits inside a Hugging Face style output object."""
    logits = getattr(out, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    raise InputError(
        f"the network returned {type(out).__name__}, expected a tensor of logits. Write a factory "
        "FILE.py:FACTORY whose module returns only the logits."
    )
