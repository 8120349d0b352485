"""One step of a search, recorded once as a CUDA graph and replayed.

A step of a small network is hundreds of short kernels, and sending them takes the host longer
than running them takes the device. A recording is sent as a whole.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from counterlens.search.fast.engine import Engine, PassCounts
from counterlens.search.fast.prebuild import settle
from counterlens.search.rule import RuleState

Body = Callable[[RuleState], RuleState]
"""One step: reads a state, returns the next one, and never waits for the device."""


class Replay:
    """Repeats a step: recorded where the engine allows it, plainly elsewhere.

    The results are those of the plain loop: the same kernels on the same numbers.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        plain = (
            engine.repeats > 1 or engine.fast_copy is engine.model
        )  # such a model may do anything
        self.records = engine.device.type == "cuda" and not plain
        self._graph: Any = None
        self._held: RuleState = {}
        self._shape: object = None
        self._worth: dict[str, int] = {}

    def run(self, body: Body, state: RuleState, steps: int) -> RuleState:
        """The state after `steps` steps."""
        if not self.records or steps < 3:
            return _plainly(body, state, steps)
        if self._shape != _shape(state):
            state = body(state)  # a step that counts, and that runs lazy initialisation
            steps -= 1
            if not self._record(body, state):
                return _plainly(body, state, steps)
        for name, tensor in state.items():
            if tensor is not self._held[name]:
                self._held[name].copy_(tensor)
        for _ in range(steps):
            self._graph.replay()
        counts = self.engine.counts
        for name, each in self._worth.items():
            setattr(counts, name, getattr(counts, name) + each * steps)
        return dict(self._held)

    def _record(self, body: Body, state: RuleState) -> bool:
        self._graph, self._shape = None, None  # gives its memory back before more is taken
        self._held = {name: tensor.clone() for name, tensor in state.items()}
        before = self.engine.counts
        self.engine.counts = PassCounts()
        settle()
        torch.cuda.synchronize(self.engine.device)
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for name, tensor in _apart(body(self._held), self._held).items():
                    self._held[name].copy_(tensor)
        except RuntimeError as error:
            self.records = False
            self.engine.notes.append(f"steps are not recorded: {str(error).splitlines()[0][:160]}")
            return False
        finally:
            self._worth, self.engine.counts = self.engine.counts.as_dict(), before
        self._graph, self._shape = graph, _shape(state)
        return True


def _apart(after: RuleState, held: RuleState) -> RuleState:
    """The entries that changed; one that lies in an old entry's memory is copied first."""
    taken = {_memory(tensor) for tensor in held.values()}
    changed = {name: tensor for name, tensor in after.items() if tensor is not held[name]}
    return {
        name: tensor.clone() if _memory(tensor) in taken else tensor
        for name, tensor in changed.items()
    }


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _plainly(body: Body, state: RuleState, steps: int) -> RuleState:
    for _ in range(steps):
        state = body(state)
    return state


def _shape(state: RuleState) -> object:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}
