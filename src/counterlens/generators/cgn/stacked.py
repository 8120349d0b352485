"""Several small networks of one form in one: a launch works on all of them.

Networks of 32-pixel pictures are too small for a GPU: it waits for the host. A stack of s of them
has s times the channels and grouped convolutions. Every weight and running statistic has the
stack as the first factor of its first axis, so `stacked` and `unstacked` only join and cut, and a
stack of one is the network itself. How a grouped convolution is computed is a choice of `arrange`:
libraries have fast matrix products for batches, but not always fast grouped convolutions.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from counterlens.errors import InputError
from counterlens.generators.cgn import patches

_Weights = Mapping[str, Tensor]
Form = Literal["grouped", "apart", "matmul"]
FORMS: tuple[Form, ...] = get_args(Form)


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


class StackConv(nn.Conv2d):
    """A convolution for each network of the stack; in eval mode always the library's grouped one.

    Args of `arrange`: form "grouped", the library's; "apart", one network after the other;
    "matmul", one product of matrices for all. dtype: of the operands of "matmul".
    """

    form: Form = "grouped"
    dtype = torch.float32

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_buffer("taps", patches.taps(), persistent=False)
        self.taps: Tensor

    def forward(self, input: Float[Tensor, "b _ h w"]) -> Float[Tensor, "b _ _ _"]:
        """The convolution."""
        if not self._own_way():
            return super().forward(input)
        edge = (self.stride[0], int(self.padding[0]))
        if self.form == "apart":
            parts = zip(input.chunk(self.groups, 1), self.weight.chunk(self.groups), strict=True)
            out = torch.cat([functional.conv2d(x, w, None, *edge) for x, w in parts], 1)
        else:
            weight = self.weight.to(self.dtype)
            out = patches.conv(input.to(self.dtype), weight, self.groups, *edge)
            out = out.to(input.dtype).contiguous()
        return out if self.bias is None else out + self.bias[:, None, None]

    def twice(self, x: Float[Tensor, "b _ h w"]) -> Float[Tensor, "b _ _ _"]:
        """The convolution of the picture at twice its size, nearest neighbour."""
        if self._own_way() and self.form == "matmul":
            weight = patches.of_twice(self.weight, self.taps).to(self.dtype)
            out = patches.conv(x.to(self.dtype), weight, self.groups, 1, 1)
            return functional.pixel_shuffle(out.to(x.dtype), 2)
        return self(functional.interpolate(x, scale_factor=2.0, mode="nearest"))  # type: ignore[no-any-return]

    def _own_way(self) -> bool:
        return self.training and self.groups > 1 and self.form != "grouped"


class StackUp(nn.ConvTranspose2d):
    """A transposed convolution without bias for each network of the stack."""

    form: Form = "grouped"
    dtype = torch.float32

    def forward(
        self, input: Float[Tensor, "b _ h w"], output_size: list[int] | None = None
    ) -> Float[Tensor, "b _ _ _"]:
        """The transposed convolution."""
        if not self.training or self.groups == 1 or self.form == "grouped":
            return super().forward(input, output_size)
        edge = (self.stride[0], int(self.padding[0]))
        if self.form == "matmul":
            weight = self.weight.to(self.dtype)
            out = patches.transposed(input.to(self.dtype), weight, self.groups, *edge)
            return out.to(input.dtype).contiguous()
        parts = zip(input.chunk(self.groups, 1), self.weight.chunk(self.groups), strict=True)
        return torch.cat([functional.conv_transpose2d(x, w, None, *edge) for x, w in parts], 1)


def arrange(net: nn.Module, form: str, dtype: torch.dtype = torch.float32) -> None:
    """Choose how all stacked convolutions of a network are computed while it is trained."""
    if form not in FORMS:
        raise InputError(f"form is {form!r}, expected auto, {', '.join(FORMS)}.")
    for layer in net.modules():
        if isinstance(layer, (StackConv, StackUp)):
            layer.form, layer.dtype = form, dtype


def conv(stack: int, cin: int, cout: int, size: int, stride: int = 1, pad: int = 0) -> StackConv:
    """A convolution without bias for each network of the stack."""
    return StackConv(stack * cin, stack * cout, size, stride, pad, groups=stack, bias=False)


def stacked(states: Sequence[_Weights]) -> dict[str, Tensor]:
    """The weights of a stack from those of its networks."""
    return {
        key: torch.cat([state[key] for state in states]) if value.ndim else value
        for key, value in states[0].items()
    }


def unstacked(state: _Weights, stack: int) -> list[dict[str, Tensor]]:
    """The weights of each network of a stack."""
    parts = {key: value.chunk(stack) if value.ndim else value for key, value in state.items()}
    return [
        {key: value if isinstance(value, Tensor) else value[i] for key, value in parts.items()}
        for i in range(stack)
    ]
