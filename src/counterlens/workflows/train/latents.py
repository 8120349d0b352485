"""Latents of the training images: computed once, stored, brought to a common scale."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from counterlens.losses.diffusion import Autoencoder
from counterlens.runs import atomic
from counterlens.workflows.train.captioned import square_crop

PIXELS = 2**20
"""Of the images that are encoded at a time."""


@torch.no_grad()
def latents(
    net: Autoencoder,
    pixels: UInt8[Tensor, "n 3 h w"],
    *,
    crops: tuple[int, int] | None = None,
    seed: int = 0,
) -> Float[Tensor, "n v c y x"]:
    """Unscaled latents of all pictures in half precision: of each and of its mirror image.

    Args:
        crops: a number of random crops of each picture and their side, in place of these two.
    """
    vae: Any = net.vae
    generator = torch.Generator(pixels.device).manual_seed(seed)
    parts, part = [], max(1, PIXELS // (pixels.shape[2] * pixels.shape[3]))
    for some in torch.split(pixels, part):
        if crops:
            views = [square_crop(some, crops[1], generator) for _ in range(crops[0])]
        else:
            x = some.float() / 127.5 - 1
            views = [x, x.flip(3)]
        means = [vae.quant_conv(vae.encoder(x)).chunk(2, dim=1)[0] for x in views]
        parts.append(torch.stack(means, 1).to(torch.float16))
    return torch.cat(parts)


def stored_latents(
    file: Path, key: str, make: Callable[[], Tensor], device: torch.device
) -> Tensor:
    """Latents from a file if it holds those of these weights; else they are made and stored."""
    if file.is_file():
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        if state["key"] == key:
            z: Tensor = state["z"]
            return z.to(device)
    z = make()
    with atomic(file) as part:
        torch.save({"key": key, "z": z}, part)
    return z


def weights_key(net: nn.Module) -> str:
    """A hash of a network's weights."""
    digest = hashlib.sha256()
    for value in net.state_dict().values():
        digest.update(value.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def moments(z: Float[Tensor, "n v c y x"]) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel of latents, c × 1 × 1."""
    count = z.numel() // z.shape[2]
    sums = z.new_zeros(2, z.shape[2], dtype=torch.float64)
    for some in torch.split(z, 1024):
        part = some.double()
        sums += torch.stack([part.sum((0, 1, 3, 4)), part.square().sum((0, 1, 3, 4))])
    mean, square = sums / count
    std = (square - mean**2).clamp_min(1e-12).sqrt()
    return mean.float().view(-1, 1, 1), std.float().view(-1, 1, 1)


@torch.no_grad()
def normalise(vae: Any, mean: Tensor, std: Tensor) -> None:
    """Change an autoencoder so that its latents are (z − mean) / std; pictures stay the same.

    The 1 × 1 convolutions on both sides of the latents take the change in.
    """
    mean, std = (one.flatten().to(vae.quant_conv.weight) for one in (mean, std))
    before, after = vae.quant_conv, vae.post_quant_conv
    count = len(mean)
    before.weight[:count] /= std.view(-1, 1, 1, 1)
    before.bias[:count] = (before.bias[:count] - mean) / std
    before.bias[count:] -= 2 * std.log()  # the log-variance of the posterior
    after.bias += after.weight.flatten(1) @ mean
    after.weight *= std.view(1, -1, 1, 1)


def scaled(vae: Any, z: Tensor, held: Tensor, *, each: bool) -> tuple[Tensor, Tensor, float]:
    """Latents with deviation 1, in half precision, and the scale that the autoencoder remembers.

    Args:
        each: bring each channel to mean 0 and deviation 1; otherwise all by one factor.
    """
    if each:
        mean, std = moments(z)
        normalise(vae, mean, std)
        z = torch.cat([(some.float() - mean).div(std).half() for some in torch.split(z, 4096)])
        held, scale = (held - mean) / std, 1.0
    else:
        scale = 1 / z.float().std().item()
        z, held = (z.float() * scale).to(torch.float16), held * scale
    vae.register_to_config(scaling_factor=scale)
    return z, held, scale
