"""One update: forward and backward in the arithmetic of the plan, captured as a CUDA graph, and
the average of the weights after it.

Paper: Augustin et al. 2020 (ratio2020), newest code, for the average.
"""

import copy
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn

from counterlens.fit.folded import folded_copy, refresh
from counterlens.fit.plan import Plan, Trainable
from counterlens.types import Batch

WARM_UP = 3  # updates before a graph is captured: kernels are compiled and chosen in them


class Mixed(nn.Module):
    """A network in the arithmetic of the plan: channels last, logits in float32.

    Args:
        folds: evaluate a copy with folded norms in evaluation mode. It has the weights of the
            moment that mode began, and is faster where it is compiled.
    """

    def __init__(self, net: nn.Module, precision: str, *, folds: bool = False) -> None:
        super().__init__()
        self.net = net
        self.bf16 = precision == "bf16"
        self.folds = folds
        self.folded: nn.Module | None = None

    def train(self, mode: bool = True) -> Self:
        """Change the mode; evaluation begins with the weights of now."""
        super().train(mode)
        if self.folds and self.folded is None and not mode:
            self.folded = folded_copy(self.net, torch.bfloat16 if self.bf16 else torch.float32)
            self.folds = self.folded is not None
        if self.folded is not None:
            self.folded.eval()
            if not mode:
                refresh(self.folded)
        return self

    def forward(self, x: Tensor, *more: Tensor) -> Any:
        """The network's output, one tensor or several, in float32 at least."""
        net = self.net if self.training or self.folded is None else self.folded
        if x.ndim == 4 and self.bf16:
            x = x.contiguous(memory_format=torch.channels_last)
        if not self.bf16:
            return net(x, *more)
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            out = net(x, *more)
        return tuple(part.float() for part in out) if isinstance(out, tuple) else out.float()


class Update:
    """Forward and backward of one network: plainly, or as a captured graph."""

    def __init__(
        self,
        trainable: Trainable,
        plan: Plan,
        generator: torch.Generator | None,
        phase: Callable[[int], Hashable],
        log: Callable[[str], None],
    ) -> None:
        self.trainable, self.phase, self.log = trainable, phase, log
        self.generator = generator if plan.draws else None
        fast: nn.Module = Mixed(trainable.net, plan.precision, folds=plan.compile)
        if plan.compile:
            fast = torch.compile(fast, dynamic=False)  # type: ignore[assignment]
        self.fast = fast
        self.compiled = plan.compile
        self.graphed = plan.graph and next(trainable.net.parameters()).is_cuda
        self.names: tuple[str, ...] = ()
        self._graph: Any = None
        self._key: Hashable = None
        self._left = 0
        self._inputs: dict[str, Tensor] = {}
        self._terms = torch.zeros(0)

    def __call__(self, batch: Batch, step: int) -> Tensor:
        """Leave the gradients in place; return the terms, on the device."""
        if not self.graphed:
            self.trainable.optimizer.zero_grad(set_to_none=True)
            return self._run(batch, step)
        if self.phase(step) != self._key:
            first = self._key is None
            self._key, self._left, self._graph = self.phase(step), WARM_UP if first else 1, None
            self._inputs = {key: value.clone() for key, value in batch.items()}
        for key, value in batch.items():
            self._inputs[key].copy_(value)
        if self._left or (self._graph is None and not self._capture(step)):
            self._left = max(0, self._left - 1)
            self.trainable.optimizer.zero_grad(set_to_none=True)
            return self._run(self._inputs, step)  # the inputs of the capture: compiled for them
        self._graph.replay()
        return self._terms.clone()

    def _run(self, batch: Batch, step: int) -> Tensor:
        terms = self.trainable.loss(self.fast, batch, step)
        self.names = tuple(terms)
        total = torch.stack(list(terms.values()))
        total.sum().backward()  # type: ignore[no-untyped-call]
        return total.detach()

    def _capture(self, step: int) -> bool:
        """Record the work of an update without doing it.

        Compiled code that cannot be recorded is dropped, and the capture is tried again after
        a new warm-up; if that fails too, training goes on without graphs.
        """
        self.trainable.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        if self.generator is not None:
            graph.register_generator_state(self.generator)
        try:
            with (
                self._nothing_compiled_now(),
                torch.cuda.graph(graph, stream=torch.cuda.current_stream()),
            ):
                self._terms = self._run(self._inputs, step)
        except RuntimeError as error:
            why = _first_cause(error)
            if self.compiled:
                self.log(f"no CUDA graph of compiled code, so without it: {why}")
                torch.compiler.set_stance("force_eager")  # for the other networks as well
                self.compiled, self._left = False, WARM_UP
            else:
                self.log(f"no CUDA graph, a little slower: {why}")
                self.graphed = False
            return False
        self._graph = graph
        return True

    def _nothing_compiled_now(self) -> AbstractContextManager[Any]:
        """Inside, a compiler that would be called says so: its work would spoil the capture."""
        if not self.compiled:
            return nullcontext()
        stance: AbstractContextManager[Any] = torch.compiler.set_stance("fail_on_recompile")
        return stance


def _first_cause(error: BaseException) -> str:
    """The first line of the error that came first: the end of a capture hides it behind its own."""
    while error.__context__ is not None:
        error = error.__context__
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class WeightAverage:
    """Exponential moving average of weights and running statistics.

    Equation: ratio2020 §A   θ̄ ← d θ̄ + (1 − d) θ,  d = min(decay, (1 + n)/(10 + n))
    """

    def __init__(self, net: nn.Module, decay: float) -> None:
        self.decay = decay
        self.net = copy.deepcopy(net).eval().requires_grad_(False)
        self._live, self._mean = _floats(net), _floats(self.net)
        self._others = [
            (live, mean)
            for live, mean in zip(net.buffers(), self.net.buffers(), strict=True)
            if not live.is_floating_point()
        ]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after update `step`."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._mean, self._live, 1 - decay)

    def module(self) -> nn.Module:
        """The averaged network."""
        for live, mean in self._others:
            mean.copy_(live)
        return self.net


def _floats(net: nn.Module) -> list[Tensor]:
    buffers = [b for b in net.buffers() if b.is_floating_point()]
    return [p.detach() for p in net.parameters()] + buffers
