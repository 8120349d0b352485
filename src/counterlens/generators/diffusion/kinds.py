"""Which diffusers folders can be driven, and what the others are.

The functions of `latent` assume one CLIP text encoder, a UNet that takes the autoencoder's latents
and nothing else, and no input but image, time and text. Folders of other kinds would crash deep
inside, or run and mean nothing, so they are refused by their configuration files.
"""

from collections.abc import Mapping
from typing import Any

from counterlens.errors import InputError

_EXPECTED = (
    "Expected the layout of Stable Diffusion 1.x or 2.x, such as stable-diffusion-v1-5: one CLIP "
    "text encoder and a UNet of 4 input channels."
)
_CHANNELS = {
    9: "an inpainting model (latents, mask and masked image)",
    8: "a model that edits an image by an instruction",
    7: "an upscaler (latents and a small image)",
    5: "a model that also takes a depth map",
}


def check_pipeline(index: Mapping[str, Any], where: str) -> None:
    """Refuse by model_index.json what is not driven."""
    name = str(index.get("_class_name", "pipeline without a _class_name"))
    if "transformer" in index:
        kind = f"{name}: it has a diffusion transformer in place of a UNet"
    elif "text_encoder_2" in index or "XL" in name:
        kind = f"{name}, SDXL: it has two text encoders"
    elif name.startswith("LatentConsistencyModel"):
        kind = f"{name}, a latent consistency model (LCM): it is distilled to a few steps"
    elif (text := _class(index, "text_encoder")) not in ("", "CLIPTextModel"):
        kind = f"{name} with the text encoder {text}"
    else:
        return
    raise InputError(f"{where} is a {kind}, which cannot be searched. {_EXPECTED}")


def check_unet(unet: Mapping[str, Any], vae: Mapping[str, Any], where: str) -> None:
    """Refuse by the configurations of UNet and autoencoder what is not driven."""
    channels, latents = int(unet.get("in_channels", 4)), int(vae.get("latent_channels", 4))
    if unet.get("time_cond_proj_dim") is not None:
        kind = (
            "holds the UNet of a latent consistency model (LCM; time_cond_proj_dim is "
            f"{unet['time_cond_proj_dim']}): it takes the guidance scale as an input and is "
            "distilled to a few steps"
        )
    elif channels != latents:
        guess = _CHANNELS.get(channels, "a model with additional inputs")
        kind = f"is {guess}: its UNet takes {channels} channels, its latents have {latents}"
    elif unet.get("addition_embed_type") is not None:
        kind = f"has a UNet with additional inputs ({unet['addition_embed_type']}, as in SDXL)"
    else:
        return
    raise InputError(f"{where} {kind}, which cannot be searched. {_EXPECTED}")


def _class(index: Mapping[str, Any], part: str) -> str:
    """The class that opens a part of a pipeline; empty where the index does not name it."""
    entry = index.get(part)
    return str(entry[1] or "") if isinstance(entry, (list, tuple)) and len(entry) == 2 else ""
