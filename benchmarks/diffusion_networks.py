"""The networks of Stable Diffusion 1.4 with random weights, for bench_diffusion.py and others."""

import torch

from counterlens.generators.diffusion.libraries import libraries
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.generators.diffusion.schedule import stable_diffusion

UNET = {
    "sample_size": 64, "in_channels": 4, "out_channels": 4, "layers_per_block": 2,
    "block_out_channels": (320, 640, 1280, 1280), "cross_attention_dim": 768,
    "attention_head_dim": 8,
}  # fmt: skip
VAE = {
    "sample_size": 512, "block_out_channels": (128, 256, 512, 512), "layers_per_block": 2,
    "latent_channels": 4, "scaling_factor": 0.18215,
    "down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4,
}  # fmt: skip
SMALL = {"block_out_channels": (32, 32, 64, 64), "norm_num_groups": 8}


def build(device: torch.device, *, tiny: bool) -> LatentDiffusion:
    """Stable Diffusion 1.4 from its configuration, weights random; no text encoder is needed."""
    diffusers, _ = libraries()
    torch.manual_seed(0)
    sizes = {"sample_size": 8} if tiny else {}
    with torch.device(device):
        unet = diffusers.UNet2DConditionModel(**{**UNET, **(SMALL if tiny else {}), **sizes})
        vae = diffusers.AutoencoderKL(**{**VAE, **(SMALL if tiny else {})})
    for net in (unet, vae):
        net.eval().requires_grad_(False)
    return LatentDiffusion(vae, unet, torch.nn.Identity(), None, stable_diffusion(), "random")
