"""A network that marks what stands out in a picture: U²-Net and its kind, as an ONNX file.

Paper: Qin et al. 2020 (u2net2020). The file is the user's; small ones of 5 MB lie in packages that
       remove backgrounds.
Differs: nothing; input and output are scaled as its authors do.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterlens.errors import InputError, MissingExtra, first_line
from counterlens.generators.cgn.natural import Salient
from counterlens.generators.diffusion.cutouts import seen
from counterlens.types import Images

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def load_salient(path: str | Path) -> Salient:
    """Open the file; what comes back turns images into soft masks of their size."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra(
            "a segmenter needs onnxruntime. Install it: pip install 'counterlens[segment]'."
        ) from error
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        given = session.get_inputs()[0]
        side = int(given.shape[2])
    except Exception as error:
        reason = first_line(error)
        raise InputError(f"{path} cannot be opened as a segmenter: {reason}") from error
    if len(given.shape) != 4 or given.shape[1] != 3:
        raise InputError(f"{path} takes {given.shape}, expected (batch, 3, side, side) as U²-Net.")

    def masks(x: Images) -> Float[Tensor, "b 1 h w"]:
        rows = [_mask(session, given.name, side, one[None].cpu()) for one in x]
        return torch.cat(rows)

    return masks


def _mask(session: object, name: str, side: int, x: Images) -> Float[Tensor, "1 1 h w"]:
    ready = seen(x, side)
    ready = ready / ready.max().clamp_min(1e-6)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    rows = ((ready - mean) / std).numpy().astype(np.float32)
    output = torch.from_numpy(session.run(None, {name: rows})[0])[:, :1]  # type: ignore[attr-defined]
    low, high = output.aminmax()
    scaled = (output - low) / (high - low).clamp_min(1e-6)
    return torch.nn.functional.interpolate(
        scaled, x.shape[2:], mode="bilinear", antialias=True, align_corners=False
    )


def load_salient_module(path: str | Path) -> nn.Module:
    """The same network as a frozen torch module that carries gradients to the images.

    Its masks are not stretched to [0, 1] as `load_salient` does: a loss must not depend on the
    least and the greatest value of an image.
    """
    load_salient(path)  # the same messages for what cannot be opened
    try:
        import onnx2torch
    except ImportError as error:
        raise MissingExtra(
            "a differentiable segmenter needs onnx2torch. Install it: pip install "
            "'counterlens[segment]'."
        ) from error
    import onnxruntime

    side = int(onnxruntime.InferenceSession(str(path)).get_inputs()[0].shape[2])
    net = onnx2torch.convert(str(path))
    return SalientNet(net.eval().requires_grad_(False), side)


class SalientNet(nn.Module):
    """Images in [0, 1] of any size to soft masks of that size, by a network of the U²-Net kind.

    Args:
        net: normalised images of `side` pixels to masks, the fused one first.
        side: what the network takes.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, net: nn.Module, side: int = 320) -> None:
        super().__init__()
        self.net, self.side = net, side
        for name, values in (("mean", MEAN), ("std", STD)):
            self.register_buffer(name, torch.tensor(values).view(1, 3, 1, 1), persistent=False)

    def forward(self, x: Images) -> Float[Tensor, "b 1 h w"]:
        """Soft masks."""
        large = _resized(x, (self.side, self.side))
        top = large.detach().amax((1, 2, 3), keepdim=True).clamp_min(1e-6)
        out = self.net((large / top - self.mean) / self.std)
        first: Tensor = out[0] if isinstance(out, (list, tuple)) else out
        return _resized(first[:, :1], x.shape[2:])


def _resized(x: Tensor, size: Sequence[int]) -> Tensor:
    return torch.nn.functional.interpolate(
        x, tuple(size), mode="bilinear", antialias=True, align_corners=False
    )
