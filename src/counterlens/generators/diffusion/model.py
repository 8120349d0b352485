"""LatentDiffusion: a text-conditioned latent diffusion model as plain functions of tensors.

The only place that knows diffusers and its range [−1, 1]. Any folder or hub id in the layout of
Stable Diffusion 1.x or 2.x will do: vae, unet, text_encoder, tokenizer, scheduler.

Paper: Rombach et al. 2022, High-Resolution Image Synthesis with Latent Diffusion Models (ldm2022).
Differs: nothing. Latents are the posterior's mean, as in digin2024.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterlens.errors import InputError, first_line
from counterlens.generators.diffusion.kinds import check_pipeline, check_unet
from counterlens.generators.diffusion.libraries import libraries
from counterlens.generators.diffusion.schedule import Schedule, from_config, scheduler_config
from counterlens.runs import read_object, write_json
from counterlens.types import Images

Latents = Float[Tensor, "b c h w"]
Cond = Float[Tensor, "b n d"]
Precision = Literal["float32", "bfloat16", "float16"]

_PARTS = ("vae", "unet", "text_encoder", "tokenizer", "scheduler")


@dataclass(frozen=True)
class LatentDiffusion:
    """A latent diffusion model, its weights frozen.

    Args:
        vae, unet, text: the networks.
        tokenizer: words to numbers.
        schedule: noise levels.
        name: for people.
        card: what is known about the weights.
    """

    vae: nn.Module
    unet: nn.Module
    text: nn.Module
    tokenizer: Any
    schedule: Schedule
    name: str = "diffusion"
    card: Mapping[str, Any] | None = None

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return next(self.unet.parameters()).device

    @property
    def factor(self) -> int:
        """Pixels per latent, along a side."""
        return int(2 ** (len(self.vae.config.block_out_channels) - 1))  # type: ignore[union-attr, arg-type]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of one image's latents."""
        config: Any = self.unet.config
        side = config.sample_size
        high, wide = (side, side) if isinstance(side, int) else side
        return int(config.in_channels), int(high), int(wide)

    @property
    def side(self) -> int:
        """Pixels along a side of the image."""
        return self.shape[1] * self.factor

    @property
    def sampler(self) -> tuple[float, int] | None:
        """Guidance and steps that the weights were distilled for; None where any will do."""
        given = (self.card or {}).get("sampler")
        return (float(given["guidance"]), int(given["steps"])) if given else None

    @torch.no_grad()
    def embed(self, prompts: Sequence[str]) -> Cond:
        """Texts as the sequences of vectors that the network attends to."""
        ids = self.tokenizer(
            list(prompts),
            padding="max_length",
            max_length=self.tokenizer.model_max_length,
            truncation=True,
            return_tensors="pt",
        ).input_ids
        out: Tensor = self.text(ids.to(self.device)).last_hidden_state
        return out.float()

    def encode(self, x: Images) -> Latents:
        """Latents of images in [0, 1]: the mean of the posterior, scaled.

        Equation: ldm2022 §3.1   z = s · E[q(z | 2x − 1)]
        """
        like = next(self.vae.parameters()).dtype
        mean: Tensor = self.vae.encode((2 * x - 1).to(like)).latent_dist.mean  # type: ignore[operator]
        return self.scaled(mean.float())

    def scaled(self, mean: Latents) -> Latents:
        """Latents of the posterior's means."""
        return (mean - _shift(self.vae)) * _scale(self.vae)

    def decode(self, z: Latents) -> Images:
        """Images in [0, 1] of latents; where the decoder overshoots, the gradient is 0.

        Equation: ldm2022 §3.1   x = clip((D(z / s) + 1) / 2, 0, 1)
        """
        like = next(self.vae.parameters()).dtype
        raw = z / _scale(self.vae) + _shift(self.vae)
        out: Tensor = self.vae.decode(raw.to(like)).sample  # type: ignore[operator]
        return (out.float() / 2 + 0.5).clamp(0, 1)

    def noise(self, z: Latents, time: int, cond: Cond) -> Latents:
        """The noise predicted in z at a time, whatever the network's prediction type.

        Equation: salimans2022 §4   ε = √ᾱ v + √(1 − ᾱ) z;  ε = (z − √ᾱ x̂₀) / √(1 − ᾱ)
        """
        like = next(self.unet.parameters()).dtype
        times = torch.full((len(z),), time, device=z.device)
        out: Tensor = self.unet(z.to(like), times, encoder_hidden_states=cond.to(like)).sample
        predicted = out.to(z.dtype)
        if self.schedule.prediction == "epsilon":
            return predicted
        alpha = self.schedule.alpha(time)
        if self.schedule.prediction == "v_prediction":
            return math.sqrt(alpha) * predicted + math.sqrt(1 - alpha) * z
        return (z - math.sqrt(alpha) * predicted) / math.sqrt(1 - alpha)


def load(
    spec: str | Path, *, device: str | torch.device = "cpu", precision: Precision = "float32"
) -> LatentDiffusion:
    """Open a diffusers folder or hub id.

    Args:
        precision: of the weights; what is optimised stays in float32.
    """
    folder = Path(spec)
    local = folder.is_dir()
    if local:
        if not (folder / "model_index.json").is_file():
            raise InputError(f"{folder} is no diffusers folder: it has no model_index.json.")
    elif len(folder.parts) != 2 or str(spec).startswith((".", "/", "~")):
        raise InputError(
            f"no generator {str(spec)!r}: expected a diffusers folder or a hub id such as "
            "OWNER/MODEL."
        )
    where = str(spec)
    kind = getattr(torch, precision)
    try:
        check_pipeline(_config(where, "model_index.json", local), where)
        if local:
            _check_parts(folder)
        unet_config = _config(where, "unet/config.json", local)
        check_unet(unet_config, _config(where, "vae/config.json", local), where)
        diffusers, transformers = libraries()
        vae = _opened(diffusers.AutoencoderKL, where, "vae")
        unet = _opened(diffusers.UNet2DConditionModel, where, "unet")
        text = _opened(transformers.CLIPTextModel, where, "text_encoder")
        tokenizer = transformers.CLIPTokenizer.from_pretrained(where, subfolder="tokenizer")
        scheduler = diffusers.DDIMScheduler.load_config(where, subfolder="scheduler")
    except (OSError, ValueError) as error:
        raise InputError(_unreachable(where, local, error)) from error
    card = read_object(folder / "card.json") if (folder / "card.json").is_file() else None
    name = str(card.get("name", folder.name)) if card else folder.name
    for net in (vae, unet, text):
        nn.Module.to(net.eval().requires_grad_(False), device, kind)
    schedule = from_config(scheduler)
    return LatentDiffusion(vae, unet, text, tokenizer, schedule, name, card)


def save(model: LatentDiffusion, folder: Path, *, card: Mapping[str, Any]) -> None:
    """Write a diffusers folder in half precision, with its card."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, net in (("vae", model.vae), ("unet", model.unet), ("text_encoder", model.text)):
        _save_half(net, folder / name)
    model.tokenizer.save_pretrained(folder / "tokenizer")
    scheduler = scheduler_config(model.schedule)
    write_json(folder / "scheduler" / "scheduler_config.json", scheduler)
    write_json(folder / "model_index.json", _INDEX)
    write_json(folder / "card.json", {"schema": 1, **card})


def _save_half(net: nn.Module, folder: Path) -> None:
    half = nn.Module.to(copy.deepcopy(net).cpu(), torch.float16)
    half.save_pretrained(folder, safe_serialization=True)  # type: ignore[operator]


def save_autoencoder(model: LatentDiffusion, folder: Path, *, card: Mapping[str, Any]) -> None:
    """Write the autoencoder of a model alone, in half precision, with a card."""
    folder.mkdir(parents=True, exist_ok=True)
    _save_half(model.vae, folder / "vae")
    write_json(folder / "card.json", {"schema": 1, **card})


def is_autoencoder(folder: Path) -> bool:
    """Whether a folder holds an autoencoder alone."""
    return (folder / "vae").is_dir() and not (folder / "model_index.json").is_file()


def load_autoencoder(folder: Path) -> nn.Module:
    """The autoencoder that `save_autoencoder` wrote, in float32."""
    vae: nn.Module = _opened(libraries()[0].AutoencoderKL, str(folder), "vae")
    return vae.float().eval().requires_grad_(False)


_INDEX = {
    "_class_name": "StableDiffusionPipeline",
    "vae": ["diffusers", "AutoencoderKL"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "scheduler": ["diffusers", "DDIMScheduler"],
    "safety_checker": [None, None],
    "feature_extractor": [None, None],
    "image_encoder": [None, None],
    "requires_safety_checker": False,
}


def _scale(vae: nn.Module) -> float:
    return float(vae.config.scaling_factor)  # type: ignore[union-attr, arg-type]


def _shift(vae: nn.Module) -> float:
    return float(getattr(vae.config, "shift_factor", None) or 0.0)


def _check_parts(folder: Path) -> None:
    missing = [part for part in _PARTS if not (folder / part).is_dir()]
    if missing:
        raise InputError(f"{folder} lacks {', '.join(missing)}, expected {', '.join(_PARTS)}.")


def _config(where: str, name: str, local: bool) -> dict[str, Any]:
    """One of a pipeline's JSON files; pipelines are not imported for it, they take seconds."""
    path = Path(where) / name
    if not local:
        from huggingface_hub import hf_hub_download

        path = Path(hf_hub_download(where, name))
    return read_object(path)


def _opened(kind: Any, where: str, part: str) -> Any:
    """A network of the pipeline; where there are only files of the fp16 variant, from those."""
    try:
        return kind.from_pretrained(where, subfolder=part)
    except OSError:
        try:
            return kind.from_pretrained(where, subfolder=part, variant="fp16")
        except (OSError, ValueError):
            pass
        raise


def _unreachable(where: str, local: bool, error: Exception) -> str:
    reason = first_line(error, 200)
    if local:
        return f"{where} cannot be opened as a diffusers folder: {reason}"
    return (
        f"{where} cannot be fetched from the hub ({reason}). Offline, name a local diffusers "
        "folder: --generator FOLDER."
    )
