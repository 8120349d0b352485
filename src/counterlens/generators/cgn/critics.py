"""Discriminators of the CGN: is this picture, of this class, from the data?

Paper: Sauer and Geiger 2021 (cgn2021), MNIST code.
Differs: dropout takes its choice of units as an input, so that an update is a function of its
       batch. A stack holds the critics of several generators.
"""

from itertools import pairwise

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from counterlens.errors import InputError
from counterlens.generators.cgn.model import Classes
from counterlens.generators.cgn.stacked import StackEmbedding, StackLinear, conv

CLASSES = 10
KEEP_RATE = 0.6  # share of units that dropout leaves

_Layers = Float[Tensor, "b s 3 32 32"]


class LinearCritic(nn.Module):
    """Pixels and a class vector through four linear layers."""

    alone = True  # a score depends on its own picture alone

    def __init__(self, stack: int = 1, *, width: int = 512) -> None:
        super().__init__()
        self.stack, self.width = stack, width
        self.classes = StackEmbedding(stack, CLASSES, CLASSES)
        self.first = StackLinear(stack, 3 * 32 * 32 + CLASSES, width)
        self.second = StackLinear(stack, width, width)
        self.third = StackLinear(stack, width, width)
        self.last = StackLinear(stack, width, 1)

    def forward(
        self, x: _Layers, y: Classes, keep: Bool[Tensor, "2 b s d"]
    ) -> Float[Tensor, "b s"]:
        """One score per picture."""
        h = torch.cat([x.flatten(2), self.classes(y)], 2)
        h = functional.leaky_relu(self.first(h), 0.2)
        h = functional.leaky_relu(self.second(h) * keep[0] / KEEP_RATE, 0.2)
        h = functional.leaky_relu(self.third(h) * keep[1] / KEEP_RATE, 0.2)
        scores: Tensor = self.last(h)[:, :, 0]
        return scores


class ConvCritic(nn.Module):
    """The class as a fourth, constant plane; four convolutions, mean, 1×1 convolution."""

    alone = False  # batch norm: on the other pictures as well

    def __init__(self, stack: int = 1, *, width: int = 32) -> None:
        super().__init__()
        self.stack, self.width = stack, width
        self.classes = StackEmbedding(stack, CLASSES, 1)
        widths = (4, width, 2 * width, 4 * width, 4 * width)
        layers: list[nn.Module] = []
        for (cin, cout), (size, stride) in zip(
            pairwise(widths), ((3, 1), (3, 1), (4, 2), (4, 2)), strict=True
        ):
            layers += [
                conv(stack, cin, cout, size, stride),
                nn.BatchNorm2d(stack * cout),
                nn.LeakyReLU(0.2),
            ]
        self.layers = nn.Sequential(*layers, nn.AvgPool2d(3))
        self.last = conv(stack, 4 * width, 1, 1)

    def forward(
        self, x: _Layers, y: Classes, keep: Bool[Tensor, "2 b s d"]
    ) -> Float[Tensor, "b s"]:
        """One score per picture; nothing is dropped."""
        plane = self.classes(y)[..., None, None].expand(-1, -1, 1, 32, 32)
        h = torch.cat([x, plane], 2).flatten(1, 2)
        scores: Tensor = self.last(self.layers(h))[:, :, 0, 0]
        return scores


def build(kind: str, stack: int, width: int) -> LinearCritic | ConvCritic:
    """A critic; "linear" starts from PyTorch's defaults, "conv" from N(0, 0.02²)."""
    if kind == "linear":
        return LinearCritic(stack, width=width)
    if kind == "conv":
        critic = ConvCritic(stack, width=width)
        for layer in critic.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, 0.0, 0.02)
        return critic
    raise InputError(f"critic is {kind!r}, expected linear or conv.")
