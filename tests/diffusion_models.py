"""A tiny latent diffusion model with random weights: machinery is tested on it, nothing else."""

from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.generators.diffusion.tiny import TinyShape, build

CAPTIONS = (
    "a photograph of a cat",
    "a dark photograph of a steel arch bridge",
    "a red potter's wheel on a white background",
)
TINY = TinyShape(
    side=16, vae=(16, 16), unet=(16, 32), heads=2, text=16, layers=1, tokens=12, merges=40
)


def tiny_model(shape: TinyShape = TINY) -> LatentDiffusion:
    model = build(shape, CAPTIONS)
    for net in (model.vae, model.unet, model.text):
        net.eval().requires_grad_(False)
    return model
