"""Bias, shortcut and activation after a convolution, in one pass over memory.

Small networks on large GPUs wait for memory: written plainly, a residual block reads and writes
its pictures five times between two convolutions, here once. A general compiler finds the same,
and needs longer for it than a whole attack takes.
"""

import importlib.util
import operator
from typing import Any

import torch
from torch import Tensor, fx, nn

from counterlens.search.fast.folding import Exact
from counterlens.search.fast.prebuild import KernelVariant, kernel

ACTIVATIONS = (nn.ReLU, nn.SiLU)
BLOCK = 1024


def can_fuse(device: torch.device) -> bool:
    """Whether the kernels can run there."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def fuse(model: nn.Module) -> int:
    """Rewrite the traced parts of a folded, frozen model in place; how many passes were fused."""
    parts = [part for part in model.modules() if isinstance(part, fx.GraphModule)]
    return sum(_fuse(part) for part in parts)


class Fused(nn.Module):
    """act(x + bias + other) of pictures stored channels last."""

    bias: Tensor

    def __init__(self, bias: Tensor, silu: bool, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.register_buffer("bias", bias.detach().float().clone())
        self.silu, self.dtype = silu, dtype

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """One pass forward, one pass backward."""
        out: Tensor = _FusedPass.apply(x, self.bias, other, self.silu, self.dtype or x.dtype)
        return out


class _FusedPass(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor, other: Tensor | None, silu: bool, dtype: torch.dtype
    ) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        if other is not None:
            other = other.contiguous(memory_format=torch.channels_last)
        out = torch.empty_like(x, dtype=dtype)
        _launch("forward", (x, bias, x if other is None else other, out), other is not None, silu)
        ctx.silu, ctx.adds = silu, other is not None
        ctx.save_for_backward(x, bias, *(() if other is None else (other,)))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, bias, *rest = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        out = torch.empty_like(x)
        other = rest[0] if rest else x
        _launch("backward", (grad, x, bias, other, out), ctx.adds, ctx.silu)
        return out, None, out.to(other.dtype) if rest else None, None, None


def _launch(name: str, tensors: tuple[Tensor, ...], adds: bool, silu: bool) -> None:
    count, channels = tensors[-1].numel(), tensors[-1].shape[1]
    run = kernel(name)[(-(-count // BLOCK),)]
    run(*tensors, count, channels, count if adds else 0, SILU=silu, BLOCK=BLOCK)


def orders(model: nn.Module, dtype: torch.dtype) -> dict[str, list[KernelVariant]]:
    """The kernels that fusing will need, for `prebuild.build`.

    A guess: counts and channels are taken to be multiples of 16, which Triton builds for.
    """
    kinds = {type(part) for part in model.modules()}
    bias = torch.float32
    passes: dict[str, list[KernelVariant]] = {"forward": [], "backward": []}
    for kind in ACTIVATIONS:
        if kind not in kinds:
            continue
        constants = (("SILU", kind is nn.SiLU), ("BLOCK", BLOCK))
        for x in dict.fromkeys((torch.float32, dtype)):  # the first layer's result is exact
            passes["forward"].append(((x, bias, x, dtype, 16, 16, 16), constants))
            passes["backward"].append(((dtype, x, bias, x, x, 16, 16, 16), constants))
    return passes


def _fuse(part: fx.GraphModule) -> int:
    """Fuse after every convolution of one traced graph."""
    modules = dict(part.named_modules())
    count = 0
    for node in list(part.graph.nodes):
        if node.op != "call_module" or type(modules.get(node.target)) not in ACTIVATIONS:
            continue
        source, other = _sum(node.args[0], modules)
        if source is None:
            continue
        conv = modules[source.target]
        layer = conv.layer if isinstance(conv, Exact) else conv
        dtype = conv.dtype if isinstance(conv, Exact) else None
        bias, layer.bias = layer.bias, None
        assert isinstance(bias, Tensor)
        if isinstance(conv, Exact):
            conv.dtype = None  # stays float32 until the sum is computed
        silu = isinstance(modules[node.target], nn.SiLU)
        name = f"fused_{count}"
        part.add_submodule(name, Fused(bias, silu, dtype))
        with part.graph.inserting_before(node):
            inputs = (source,) if other is None else (source, other)
            node.replace_all_uses_with(part.graph.call_module(name, inputs))
        part.graph.erase_node(node)
        count += 1
    if count:
        part.graph.eliminate_dead_code()
        part.graph.lint()
        part.recompile()
    return count


def _sum(node: Any, modules: dict[str, nn.Module]) -> tuple[fx.Node | None, fx.Node | None]:
    """The convolution whose output, perhaps plus something, enters an activation."""
    if not isinstance(node, fx.Node) or len(node.users) != 1:
        return None, None
    if _is_conv(node, modules):
        return node, None
    if node.op == "call_function" and node.target in (operator.add, torch.add):
        if node.kwargs or len(node.args) != 2:
            return None, None
        for one, two in (node.args, node.args[::-1]):
            if not isinstance(one, fx.Node) or not isinstance(two, fx.Node):
                continue
            if len(one.users) == 1 and _is_conv(one, modules):
                return one, two
    return None, None


def _is_conv(node: Any, modules: dict[str, nn.Module]) -> bool:
    if node.op != "call_module":
        return False
    conv = modules.get(node.target)
    layer = conv.layer if isinstance(conv, Exact) else conv
    shared = sum(1 for other in modules.values() if other is conv) > 1
    return type(layer) is nn.Conv2d and layer.bias is not None and not shared
