"""What a network remembers of its training images: the statistics inside its batch norms.

A trained batch norm stores the mean and variance of every channel over the training images. Shown
similar images under the right normalisation, the first layers see what they stored; under a wrong
one they do not. No label is needed, and the pass stops after a few layers.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

LAYERS = 3
"""How many batch norms to look at, in the order in which they run."""


@dataclass(frozen=True)
class Layer:
    """One batch norm: per-image moments of its input, and what it has stored."""

    mean: Float[Tensor, "b d"]
    square: Float[Tensor, "b d"]
    stored_mean: Float[Tensor, "d"]
    stored_variance: Float[Tensor, "d"]
    eps: float

    def gap(self, weights: Float[Tensor, "r b"]) -> Float[Tensor, "r"]:
        """Symmetric divergence of two Gaussians per channel, log1p, mean over the channels.

        J(p, q) = ½(v/s + s/v − 2) + ½(m − μ)²(1/v + 1/s) for N(m, v) against the stored N(μ, s);
        the logarithm keeps a few odd channels from speaking for all.

        Args:
            weights: rows of image weights that sum to 1; each row gives one gap.
        """
        m = weights @ self.mean
        v = (weights @ self.square - m**2).clamp_min(0) + self.eps
        s = self.stored_variance + self.eps
        j = 0.5 * (v / s + s / v - 2) + 0.5 * (m - self.stored_mean) ** 2 * (1 / v + 1 / s)
        return torch.log1p(j).mean(1)


class _Enough(Exception):
    """Stops a forward pass once the first layers have been seen."""


def stored(part: nn.Module) -> tuple[Tensor, Tensor] | None:
    """Mean and variance that a batch norm, frozen or not, has stored."""
    mean, variance = getattr(part, "running_mean", None), getattr(part, "running_var", None)
    if not isinstance(mean, Tensor) or not isinstance(variance, Tensor):
        return None
    return None if isinstance(part, nn.modules.instancenorm._InstanceNorm) else (mean, variance)


def norms(net: nn.Module) -> list[nn.Module]:
    """The batch norms with stored statistics; those of TorchScript cannot be watched."""
    scripted = torch.jit.ScriptModule
    return [m for m in net.modules() if stored(m) is not None and not isinstance(m, scripted)]


def fresh(net: nn.Module) -> bool:
    """Whether the batch norms still hold the statistics they were made with: mean 0, variance 1."""
    statistics = [pair for part in net.modules() if (pair := stored(part)) is not None]
    return bool(statistics) and all(not m.any() and not (v - 1).any() for m, v in statistics)


def first_layers(net: nn.Module, u: Float[Tensor, "b c h w"]) -> list[Layer]:
    """The first batch norms met by network inputs `u`; empty where there are none to compare."""
    layers: list[Layer] = []

    def record(part: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        a = inputs[0].detach()
        if a.ndim < 3:
            return
        a = a.flatten(2).double()
        mean, variance = stored(part) or (a.mean((0, 2)), a.var((0, 2)))
        eps = float(getattr(part, "eps", 1e-5))
        layers.append(Layer(a.mean(2), (a**2).mean(2), mean.double(), variance.double(), eps))
        if len(layers) == LAYERS:
            raise _Enough

    with _hooks(norms(net), record), torch.no_grad(), suppress(_Enough):
        net(u)
    return layers


def gap(layers: list[Layer]) -> float:
    """Mean gap of the layers between what they see and what they stored; 0 is a perfect fit."""
    count = len(layers[0].mean)
    return _gaps(layers, layers[0].mean.new_full((1, count), 1 / count)).item()


def gap_difference(a: list[Layer], b: list[Layer], *, seed: int, draws: int = 400) -> float:
    """gap(a) − gap(b) on the same images, in bootstrap deviations."""
    count = len(a[0].mean)
    drawn = torch.randint(count, (draws, count), generator=torch.Generator().manual_seed(seed))
    times = torch.zeros(draws, count).scatter_add_(1, drawn, torch.ones(draws, count))
    weights = (times / count).to(a[0].mean)
    spread = (_gaps(a, weights) - _gaps(b, weights)).std().item()
    return (gap(a) - gap(b)) / max(spread, 1e-12)


def _gaps(layers: list[Layer], weights: Float[Tensor, "r b"]) -> Float[Tensor, "r"]:
    return torch.stack([layer.gap(weights) for layer in layers]).mean(0)


@contextmanager
def _hooks(parts: list[nn.Module], hook: object) -> Iterator[None]:
    handles = [part.register_forward_pre_hook(hook) for part in parts]  # type: ignore[arg-type]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
