"""Backward pass differentiable approximation: a stand-in for gradients that are missing or useless.

Paper: Athalye, Carlini and Wagner 2018 (bpda2018), section 4.1.
Differs: the stand-in is evaluated at the same point as the real function.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from counterlens.errors import InputError
from counterlens.search.result import networks_of

TensorFunction = Callable[[Tensor], Tensor]


def bpda(forward: TensorFunction, backward: TensorFunction) -> nn.Module:
    """A module with the values of `forward` and the gradients of `backward`.

    Equation: bpda2018 §4.1   f(x) forward, ∇g(x) backward, g ≈ f

    Both may be a part of a network, such as a preprocessing step, or all of it. Attacks then
    search along the stand-in, and what they find is decided by the real function.

    >>> net = bpda(torch.round, nn.Identity())
    >>> x = torch.tensor([0.4, 0.6], requires_grad=True)
    >>> net(x).tolist(), torch.autograd.grad(net(x).sum(), x)[0].tolist()
    ([0.0, 1.0], [1.0, 1.0])

    Args:
        forward: the real function; it is never differentiated.
        backward: a differentiable function with outputs of the same shape.
    """
    return _Bpda(forward, backward)


class _Bpda(nn.Module):
    def __init__(self, forward: TensorFunction, backward: TensorFunction) -> None:
        super().__init__()
        self.networks = nn.ModuleList([*networks_of(forward), *networks_of(backward)])
        self.functions = (forward, backward)

    def forward(self, x: Tensor) -> Tensor:
        real, stand_in = self.functions
        with torch.no_grad():
            value = real(x.detach())
        if not torch.is_grad_enabled():
            return value
        smooth = stand_in(x)
        if smooth.shape != value.shape:
            raise InputError(
                f"the stand-in gives {tuple(smooth.shape)}, the real function "
                f"{tuple(value.shape)}, expected outputs of the same shape."
            )
        out: Tensor = _Replaced.apply(smooth, value)
        return out


class _Replaced(torch.autograd.Function):
    """The second argument, with the gradient of the first."""

    @staticmethod
    def forward(ctx: Any, smooth: Tensor, value: Tensor) -> Tensor:
        ctx.dtype = smooth.dtype
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.to(ctx.dtype), None
