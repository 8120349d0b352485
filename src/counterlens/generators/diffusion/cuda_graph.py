"""The UNet of a chain, recorded once as CUDA graphs and replayed.

A step of Stable Diffusion is thousands of short kernels, forward and backward, and sending them
takes the host longer than a fast device needs to run them. A recording is sent as a whole.

Only benchmarks/bench_diffusion.py uses it. There, on an H200 (Stable Diffusion 1.4 with random
weights, 512 pixels, batches of 8), it was 5.7 times as fast as the paper's form and the plain
network 5.5 times, and it had room for 4 stored steps where the plain one had for 6. That is too
little for what it requires of a workflow: no hooks, and one batch shape.

Paper: Chen et al. 2016 (checkpointing2016): a step is computed again in the backward pass.
Differs: `keep` steps have a recording of their own, whose activations stay in
       place until the backward pass; all others share one that computes twice.
"""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from counterlens.generators.diffusion.model import LatentDiffusion

Launch = Callable[[], object]
_Inputs = tuple[Tensor, Tensor, Tensor]


def recorded(model: LatentDiffusion, *, keep: int = 0) -> LatentDiffusion:
    """The same model, its UNet replayed. For chains without hooks, one batch shape at a time.

    Args:
        keep: steps whose activations are stored for the backward pass; each takes its own memory.
    """
    return replace(model, unet=Recorded(model.unet, keep=keep))


class Recorded(nn.Module):
    """A UNet that is recorded when it first sees a batch's shape, and replayed from then on.

    Elsewhere than on a CUDA device the recordings are plain functions: the results are the same.
    """

    recomputes = True  # a chain need not compute its steps again: this does

    def __init__(self, unet: nn.Module, *, keep: int = 0) -> None:
        super().__init__()
        self.inner, self.keep = unet, keep
        self.config: Any = unet.config
        self._shape: object = None
        self._shared: _Pair | None = None
        self._free: list[_Pair] = []

    def forward(self, z: Tensor, times: Tensor, encoder_hidden_states: Tensor) -> SimpleNamespace:
        """What the UNet says, as `.sample`."""
        given = (z, times, encoder_hidden_states)
        shape = [(one.shape, one.dtype) for one in given]
        if shape != self._shape:
            self._free, self._shared = [], None  # gives memory back before more is taken
            _wake(self.inner, given)
            self._shared = _Pair(self.inner, given, keeps=False)
            self._free = [_Pair(self.inner, given, keeps=True) for _ in range(self.keep)]
            self._shape = shape
        assert self._shared is not None
        if torch.is_grad_enabled() and (z.requires_grad or encoder_hidden_states.requires_grad):
            predicted: Tensor = _Replayed.apply(*given, self)
        else:
            predicted = self._shared.replay_forward(given)
        return SimpleNamespace(sample=predicted)

    def lend(self) -> "_Lent":
        """A recording that keeps, while there is a free one; else the shared one."""
        assert self._shared is not None
        if self._free:
            return _Lent(self._free.pop(), self._free)
        return _Lent(self._shared, None)


class _Lent:
    """A recording in use; it is free again after the backward pass, or when that never comes."""

    def __init__(self, pair: "_Pair", home: "list[_Pair] | None") -> None:
        self.pair, self.home = pair, home

    def end(self) -> None:
        if self.home is not None:
            self.home.append(self.pair)
            self.home = None

    __del__ = end


class _Pair:
    """Recordings of forward and backward, with the places that they read and write."""

    def __init__(self, unet: nn.Module, given: _Inputs, *, keeps: bool) -> None:
        self.unet, self.keeps = unet, keeps
        z, times, text = (one.detach().clone() for one in given)
        self.z, self.times, self.text = z.requires_grad_(), times, text.requires_grad_()
        self.predicted: Tensor | None = None
        self.out = torch.zeros_like(z)
        self.slope = torch.zeros_like(z)
        self.slopes = torch.zeros_like(z), torch.zeros_like(text)
        pool = torch.cuda.graph_pool_handle() if z.is_cuda else None
        self._replay_forward = _record(self._forward, z.device, pool)
        self._back = _record(self._backward, z.device, pool)

    def replay_forward(self, given: _Inputs) -> Tensor:
        """The UNet's prediction."""
        self._put(given)
        self._replay_forward()
        return self.out.clone()

    def back(self, slope: Tensor, given: _Inputs | None) -> tuple[Tensor, Tensor]:
        """Gradients of z and text; a recording that does not keep needs its inputs again."""
        if given is not None:
            self._put(given)
        self.slope.copy_(slope)
        self._back()
        return self.slopes[0].clone(), self.slopes[1].clone()

    def _put(self, given: _Inputs) -> None:
        with torch.no_grad():
            for place, one in zip((self.z, self.times, self.text), given, strict=True):
                place.copy_(one)

    @torch.enable_grad()
    def _forward(self) -> None:
        predicted = _predict(self.unet, self.z, self.times, self.text)
        self.out.copy_(predicted.detach())
        self.predicted = predicted if self.keeps else None

    @torch.enable_grad()
    def _backward(self) -> None:
        predicted = (
            self.predicted if self.keeps else _predict(self.unet, self.z, self.times, self.text)
        )
        if predicted is None:
            raise RuntimeError("a step's inner values were used up: one backward pass per chain")
        gradients = torch.autograd.grad(predicted, (self.z, self.text), self.slope)
        for place, one in zip(self.slopes, gradients, strict=True):
            place.copy_(one)
        self.predicted = None


class _Replayed(torch.autograd.Function):
    """A forward replay now, a backward replay later."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, times: Tensor, text: Tensor, net: Recorded) -> Tensor:
        ctx.lent = net.lend()
        if not ctx.lent.pair.keeps:
            ctx.save_for_backward(z, times, text)
        predicted: Tensor = ctx.lent.pair.replay_forward((z, times, text))
        return predicted

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        pair = ctx.lent.pair
        if pair.keeps and ctx.lent.home is None:
            raise RuntimeError("a step's inner values were used up: one backward pass per chain")
        z, text = pair.back(slope, None if pair.keeps else ctx.saved_tensors)
        ctx.lent.end()
        return z, None, text, None


def _predict(unet: nn.Module, z: Tensor, times: Tensor, text: Tensor) -> Tensor:
    predicted: Tensor = unet(z, times, encoder_hidden_states=text).sample
    return predicted


def _wake(unet: nn.Module, given: _Inputs) -> None:
    """Twice forward and backward: lazy initialisation happens before a recording."""
    z, times, text = (one.detach() for one in given)
    if not z.is_cuda:
        return
    stream: Any = torch.cuda.Stream(z.device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(z.device))
    with torch.cuda.stream(stream), torch.enable_grad():
        leaves = z.clone().requires_grad_(), text.clone().requires_grad_()
        for _ in range(2):
            predicted = _predict(unet, leaves[0], times, leaves[1])
            torch.autograd.grad(predicted, leaves, torch.zeros_like(predicted))
        del predicted, leaves
    torch.cuda.current_stream(z.device).wait_stream(stream)


def _record(body: Launch, device: torch.device, pool: Any) -> Launch:
    """The body as a recording; without a CUDA device the body itself."""
    if device.type != "cuda":
        return body
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        body()
    run: Launch = graph.replay
    return run
