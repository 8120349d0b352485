"""Distributed training over several processes; the only file that knows Accelerate.

Differs: gradients and running statistics are averaged after the backward pass in place of
       overlapping the two, so that attacks run on the unwrapped network. For networks of a few
       million weights the difference is small.
"""

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from counterlens.errors import MissingExtra


class World:
    """The processes of a distributed training; a single one costs nothing."""

    def __init__(self) -> None:
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = 0
        self._state: Any = None
        if self.size > 1:
            try:
                from accelerate import PartialState
            except ImportError:
                raise MissingExtra(
                    f"training by {self.size} processes needs accelerate. Install it: pip install "
                    "'counterlens[train]'."
                ) from None
            self._state = PartialState(cpu=not torch.cuda.is_available())
            self.size, self.rank = self._state.num_processes, self._state.process_index

    @property
    def main(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0

    def device(self, device: torch.device) -> torch.device:
        """The device of this process."""
        return self._state.device if self._state is not None else device

    def mean_(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their mean over all processes."""
        if self.size == 1 or not tensors:
            return
        from accelerate.utils import reduce

        flat = reduce(torch.cat([t.reshape(-1) for t in tensors]), reduction="mean")
        for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def wait(self) -> None:
        """Until all processes are here."""
        if self._state is not None:
            self._state.wait_for_everyone()
