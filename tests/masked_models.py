"""Nine models that hide how easily they are fooled, and the network that each one hides.

Each is a wrapper around a trained network. The attack fails on them, wholly or in part, for a
reason that has nothing to do with robustness; no number from such an attack may be quoted.
"""

import torch
from torch import Tensor, nn

LEVELS = 16


class Wrapped(nn.Module):
    """A network behind a change of its input or output."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net


class OneHot(Wrapped):
    """Probabilities so sharp that they are 0 and 1: the gradient is exactly zero."""

    def forward(self, x: Tensor) -> Tensor:
        return (1e6 * self.net(x)).softmax(1)


class ZeroGradientQuantiser(Wrapped):
    """Pixels rounded to 16 levels: the gradient is exactly zero."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net(_levels(x))


class StraightThroughQuantiser(Wrapped):
    """The same levels, with the gradient of a model without them."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + (_levels(x) - x).detach())


class SoftQuantiser(Wrapped):
    """The same levels with steep smooth flanks: nearly all pixels lie on plateaus."""

    def forward(self, x: Tensor) -> Tensor:
        steps = x * (LEVELS - 1)
        whole = steps.detach().floor()
        return self.net((whole + torch.sigmoid(200 * (steps - whole - 0.5))) / (LEVELS - 1))


class InputNoise(Wrapped):
    """New noise on the pixels at every call."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + 0.02 * torch.randn_like(x))


class RoundedLogits(Wrapped):
    """Logits rounded to whole numbers: the gradient is exactly zero and classes tie."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).round()


class FakeGradient(Wrapped):
    """The gradient that comes back has the wrong sign."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net(_Backwards.apply(x))


class NotANumber(Wrapped):
    """A square root that loses its sign: no number comes out once a pixel leaves the 8-bit grid."""

    def forward(self, x: Tensor) -> Tensor:
        off = (255 * x - (255 * x).round()).abs().amax((1, 2, 3))
        return self.net(x) + torch.sqrt(1e-2 - off).detach()[:, None]


class ReluLogits(Wrapped):
    """Logits cut off at zero: the classes below zero have no gradient, and tie."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).relu()


MASKED: dict[str, type[Wrapped]] = {
    "one-hot": OneHot,
    "zero-gradient quantiser": ZeroGradientQuantiser,
    "straight-through quantiser": StraightThroughQuantiser,
    "soft quantiser": SoftQuantiser,
    "input noise": InputNoise,
    "rounded logits": RoundedLogits,
    "fake gradient": FakeGradient,
    "not a number": NotANumber,
    "relu on logits": ReluLogits,
}


def _levels(x: Tensor) -> Tensor:
    return (x * (LEVELS - 1)).round() / (LEVELS - 1)


class _Backwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        return x.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
        return -grad
