"""Small models for attack tests: honest ones, and ones that hide their gradient."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from counterlens.ball import Norm
from counterlens.search.apgd_l1 import climbing
from counterlens.search.ensemble.protocols import stages_of
from counterlens.search.ensemble.stage import SearchStage
from counterlens.search.fab import Fab
from counterlens.search.square import Square


def short(
    classes: int, norm: Norm = "l2", *, steps: int = 20, queries: int = 100
) -> list[SearchStage]:
    """The standard protocol with fewer steps."""
    climb = climbing(norm, steps)
    rules = {"apgd-ce": climb, "apgd-t": climb, "fab-t": Fab(steps // 2)}
    rules["square"] = Square(queries)
    return [replace(s, rule=rules[s.name]) for s in stages_of("standard", classes, norm)[0]]


class Linear(nn.Module):
    """Logits W x + b of flat pixels."""

    def __init__(self, classes: int, pixels: int, seed: int = 0) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(classes, pixels, generator=rng))

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) - 0.5) @ self.weight.T


def small_cnn(classes: int = 4, *, act: type[nn.Module] = nn.ReLU, seed: int = 0) -> nn.Module:
    """Two convolutions and a linear layer on 1 × 8 × 8 images, with random weights."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        act(),
        nn.Conv2d(8, 8, 3, stride=2, padding=1),
        act(),
        nn.Flatten(),
        nn.Linear(128, classes, bias=False),
    )
    return net.eval()


def images(rows: int, seed: int = 0, *, side: int = 8) -> Tensor:
    """Random grey images away from black and white."""
    rng = torch.Generator().manual_seed(seed)
    return 0.2 + 0.6 * torch.rand(rows, 1, side, side, generator=rng)


class Wrapped(nn.Module):
    """A network behind a change of its input or output."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net


class Scaled(Wrapped):
    """Logits times a factor: the softmax is one-hot in float32, or flat."""

    def __init__(self, net: nn.Module, factor: float) -> None:
        super().__init__(net)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * self.net(x)


class Randomised(Wrapped):
    """Noise on the input at every call."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + 0.02 * torch.randn_like(x))


class Quantised(Wrapped):
    """Pixels rounded to a few levels: the gradient is zero almost everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x * 32).round() / 32)


class _Backwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return -grad


class BrokenGradient(Wrapped):
    """The gradient that comes back has the wrong sign."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net(_Backwards.apply(x))


class Shattered(Wrapped):
    """A fast ripple on the pixels: gradients that are right only over tiny distances.

    Kept out while the signs of `search.ensemble.trust` were tuned, and not tuned to since.
    """

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + 0.01 * torch.sin(2000 * x))


class Squashed(Wrapped):
    """Logits on two plateaus: small gradients, but a normalised step does not mind."""

    def forward(self, x: Tensor) -> Tensor:
        return 10 * torch.tanh(50 * self.net(x))


class Plane(nn.Module):
    """Two classes apart by a plane through the middle of small pictures: logits ±w·x."""

    SIDE = 4

    def __init__(self) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3 * self.SIDE**2, generator=rng) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = x.flatten(1) @ self.weight
        return torch.stack([score, -score], 1)
