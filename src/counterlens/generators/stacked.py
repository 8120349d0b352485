"""Several small networks of one form in one: a launch works on all of them.

Networks of 32-pixel pictures are too small for a GPU: it waits for the host. A stack of s of them
has s times the channels and grouped convolutions. Every weight and running statistic has the
stack as the first factor of its first axis, so `stacked` and `unstacked` only join and cut, and a
stack of one is the network itself.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

State = Mapping[str, Tensor]


class StackLinear(nn.Module):
    """A linear layer for each network of the stack."""

    def __init__(self, stack: int, inside: int, outside: int) -> None:
        super().__init__()
        self.stack = stack
        layers = [nn.Linear(inside, outside) for _ in range(stack)]
        self.weight = nn.Parameter(torch.cat([layer.weight.detach() for layer in layers]))
        self.bias = nn.Parameter(torch.cat([layer.bias.detach() for layer in layers]))

    def forward(self, x: Float[Tensor, "b s i"]) -> Float[Tensor, "b s o"]:
        """x W + b, each with its own W and b."""
        weight = self.weight.view(self.stack, -1, self.weight.shape[1])
        bias = self.bias.view(self.stack, 1, -1)
        return torch.baddbmm(bias, x.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1)


class StackEmbedding(nn.Module):
    """A vector for each class, for each network of the stack."""

    def __init__(self, stack: int, classes: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(stack * classes, width))
        self.register_buffer("first", torch.arange(stack) * classes, persistent=False)
        self.first: Tensor

    def forward(self, y: Int[Tensor, "b s"]) -> Float[Tensor, "b s d"]:
        """The vectors of the classes y."""
        return functional.embedding(y + self.first, self.weight)


def conv(stack: int, cin: int, cout: int, size: int, stride: int = 1, pad: int = 0) -> nn.Conv2d:
    """A convolution without bias for each network of the stack."""
    return nn.Conv2d(stack * cin, stack * cout, size, stride, pad, groups=stack, bias=False)


def stacked(states: Sequence[State]) -> dict[str, Tensor]:
    """The weights of a stack from those of its networks."""
    return {
        key: torch.cat([state[key] for state in states]) if value.ndim else value
        for key, value in states[0].items()
    }


def unstacked(state: State, stack: int) -> list[dict[str, Tensor]]:
    """The weights of each network of a stack."""
    parts = {key: value.chunk(stack) if value.ndim else value for key, value in state.items()}
    return [
        {key: value if isinstance(value, Tensor) else value[i] for key, value in parts.items()}
        for i in range(stack)
    ]
