"""The folded copy that a training attack evaluates: batch norms inside convolutions.

During an attack a norm is a fixed scale and shift of each channel. Left where it is, it costs a
root and a division per element and pass, which on a GPU is as much time as the memory needs; the
convolution takes it in for nothing.
"""

import copy

import torch
from torch import Tensor, nn

from counterlens.search.fast.folding import fold


class Folded(nn.Module):
    """A convolution and the norm after it as one, with the weights of the last `refresh`."""

    weight: Tensor
    shift: Tensor

    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d, dtype: torch.dtype) -> None:
        super().__init__()
        self.conv, self.norm = conv, norm
        self.register_buffer("weight", torch.empty_like(conv.weight, dtype=dtype))
        self.register_buffer("shift", torch.empty_like(norm.weight))

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the weights and running statistics as they are now.

        Equation: batchnorm2015 §3.1   W' = γ W / √(σ² + ϵ),  b' = β + γ (b − μ) / √(σ² + ϵ)
        """
        norm, mean = self.norm, self.norm.running_mean
        assert mean is not None and norm.running_var is not None
        scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        torch.mul(self.conv.weight, scale.view(-1, 1, 1, 1), out=self.weight)
        off = mean if self.conv.bias is None else mean - self.conv.bias
        torch.addcmul(norm.bias, off, scale, value=-1, out=self.shift)

    def forward(self, x: Tensor) -> Tensor:
        """norm(conv(x)); the shift is added in float32, as the norm would."""
        y = self.conv._conv_forward(x, self.weight, None)
        out: Tensor = (y + self.shift.view(1, -1, 1, 1)).to(y.dtype)
        return out


def folded_copy(net: nn.Module, dtype: torch.dtype) -> nn.Module | None:
    """A copy of the network that shares its tensors, in evaluation mode, its norms folded.

    None for a network that cannot be copied, such as one with the older weight normalisation.
    """
    shared = {id(tensor): tensor for tensor in (*net.parameters(), *net.buffers())}

    def merge(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Module | None:
        ours = type(conv) is nn.Conv2d and type(norm) is nn.BatchNorm2d and norm.affine
        return Folded(conv, norm, dtype) if ours else None

    try:
        folded = copy.deepcopy(net, shared)
    except RuntimeError:  # it holds results of other tensors
        return None
    return fold(folded.eval(), merge)


def refresh(folded: nn.Module) -> None:
    """Recompute the folded weights from the current ones."""
    for part in folded.modules():
        if isinstance(part, Folded):
            part.refresh()
