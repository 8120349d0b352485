"""A fast copy of a model: the same function with less work, then in half precision."""

from collections import Counter
from collections.abc import Callable

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.nn.utils.parametrize import is_parametrized

Merge = Callable[[nn.Conv2d, nn.BatchNorm2d], nn.Module | None]


def merged(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Module:
    """A convolution with the weights that make it both, for good."""
    with torch.no_grad():
        fused = fuse_conv_bn_eval(conv, norm)
    return fused.requires_grad_(False)


def fold(model: nn.Module, merge: Merge = merged) -> nn.Module:
    """Rewrite `model` (in place where it cannot be traced) without the norms after convolutions.

    The model must be in evaluation mode. Submodules that cannot be traced stay as they are, and
    so do layers with hooks or computed weights, and pairs that `merge` answers with None.
    """
    try:
        graph = fx.symbolic_trace(model)
    except Exception:  # fx fails in many ways on models with data-dependent Python
        for name, child in list(model.named_children()):
            if any(isinstance(part, nn.BatchNorm2d) for part in child.modules()):
                setattr(model, name, fold(child, merge))
        return model
    modules = dict(graph.named_modules())
    calls = Counter(node.target for node in graph.graph.nodes if node.op == "call_module")
    for node in graph.graph.nodes:
        if not _is(node, nn.BatchNorm2d, modules):
            continue
        before = node.args[0]
        if not _is(before, nn.Conv2d, modules) or len(before.users) > 1:
            continue
        if calls[before.target] > 1:  # one convolution, perhaps with a norm for each call
            continue
        conv, norm = modules[before.target], modules[node.target]
        if norm.training or not norm.track_running_stats or _special(conv) or _special(norm):
            continue
        fused = merge(conv, norm)
        if fused is None:
            continue
        parent, _, leaf = before.target.rpartition(".")
        setattr(graph.get_submodule(parent), leaf, fused)
        modules[before.target] = fused
        node.replace_all_uses_with(before)
        graph.graph.erase_node(node)
    graph.graph.lint()
    graph.delete_all_unused_submodules()
    graph.recompile()
    return graph


def _is(node: object, kind: type[nn.Module], modules: dict[str, nn.Module]) -> bool:
    return (
        isinstance(node, fx.Node)
        and node.op == "call_module"
        and isinstance(modules.get(str(node.target)), kind)
    )


def _special(layer: nn.Module) -> bool:
    """Whether calling the layer does more than its class says."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks) or is_parametrized(layer)


class Exact(nn.Module):
    """A layer computed in float32 inside a network that otherwise runs in half precision.

    The first layer sees pixels, whose smallest useful steps half precision would round away; the
    last makes the logits, which are compared with each other.
    """

    def __init__(self, layer: nn.Module, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.layer = layer
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer in float32, handed on in the wanted precision."""
        with torch.autocast(x.device.type, enabled=False):
            out: torch.Tensor = self.layer(x.float())
        return out if self.dtype is None else out.to(self.dtype)


def lighten(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Store the weights of inner layers in half precision, keep the first and last exact."""
    kinds = (nn.Conv2d, nn.Linear)
    names = [name for name, part in model.named_modules() if type(part) in kinds]
    for name in names:
        parent, _, leaf = name.rpartition(".")
        home = model.get_submodule(parent)
        layer = model.get_submodule(name)
        if name in (names[0], names[-1]):
            setattr(home, leaf, Exact(layer, dtype if name != names[-1] else None))
        else:
            layer.to(dtype)
    return model
