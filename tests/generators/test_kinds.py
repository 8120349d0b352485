"""Diffusers folders of all kinds: those that can be driven open, the others are named and refused.

The folders are tiny pipelines with random weights, built and saved by diffusers' own classes, so
that their configuration files are those diffusers writes; no published weights are at hand.
"""

import tomllib
from pathlib import Path

import pytest
import torch

pytest.importorskip("diffusers", reason="extra diffusion is not installed")
pytest.importorskip("transformers", reason="extra diffusion is not installed")
import diffusers
import transformers

from counterlens.errors import InputError, MissingExtra
from counterlens.generators.diffusion import model as latent
from counterlens.generators.diffusion.libraries import OLDEST_TRANSFORMERS, transformers_for
from counterlens.generators.diffusion.schedule import STABLE_DIFFUSION
from diffusion_models import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def parts():
    model = tiny_model()
    scheduler = diffusers.DDIMScheduler.from_config(STABLE_DIFFUSION)
    return {
        "vae": model.vae,
        "text_encoder": model.text,
        "tokenizer": model.tokenizer,
        "unet": model.unet,
        "scheduler": scheduler,
    }


def pipeline(kind: str, parts: dict[str, object], **more: object) -> diffusers.DiffusionPipeline:
    """A pipeline of diffusers; parts it does not take are left out, those it lacks are None."""
    cls = getattr(diffusers, kind)
    given = {**parts, **more}
    wanted = cls.__init__.__annotations__.keys() & cls._get_signature_types().keys()
    return cls(**{name: given.get(name) for name in wanted})


def unet(**changes: object) -> torch.nn.Module:
    """The tiny UNet with another configuration."""
    config = {k: v for k, v in tiny_model().unet.config.items() if not k.startswith("_")}
    return diffusers.UNet2DConditionModel(**{**config, **changes})


def test_a_folder_of_fp16_files_alone_opens_like_the_plain_one(tmp_path: Path, parts):
    plain, half = tmp_path / "plain", tmp_path / "half"
    for folder, variant in ((plain, None), (half, "fp16")):
        sd = pipeline("StableDiffusionPipeline", parts, requires_safety_checker=False)
        sd.save_pretrained(folder, variant=variant)
    names = {path.name for path in half.rglob("*.safetensors")}
    assert names == {"diffusion_pytorch_model.fp16.safetensors", "model.fp16.safetensors"}
    one, two = latent.load(plain), latent.load(half)
    z = torch.randn(1, *one.shape, generator=torch.Generator().manual_seed(1))
    cond = one.embed(["a cat"])
    torch.testing.assert_close(two.embed(["a cat"]), cond)
    torch.testing.assert_close(two.noise(z, 10, cond), one.noise(z, 10, cond))
    torch.testing.assert_close(two.decode(z), one.decode(z))
    for path in (half / "unet").glob("*.safetensors"):
        path.unlink()
    with pytest.raises(InputError, match=r"cannot be opened.*diffusion_pytorch_model"):
        latent.load(half)


REFUSED = {
    "LCM": r"latent consistency model \(LCM; time_cond_proj_dim is 8\)",
    "inpainting": "an inpainting model .* takes 9 channels, its latents have 4",
    "SDXL": "StableDiffusionXLPipeline, SDXL: it has two text encoders",
    "PixArt": "PixArtAlphaPipeline: it has a diffusion transformer",
    "SD3": "StableDiffusion3Pipeline: it has a diffusion transformer",
    "Flux": "FluxPipeline: it has a diffusion transformer",
}


def other(kind: str, parts: dict[str, object]) -> diffusers.DiffusionPipeline:
    """A tiny pipeline that cannot be driven."""
    small = {"num_layers": 1, "num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4}
    if kind == "LCM":
        return pipeline("StableDiffusionPipeline", parts, unet=unet(time_cond_proj_dim=8))
    if kind == "inpainting":
        return pipeline("StableDiffusionInpaintPipeline", parts, unet=unet(in_channels=9))
    if kind == "SDXL":
        config = transformers.CLIPTextConfig(**parts["text_encoder"].config.to_dict())
        second = transformers.CLIPTextModelWithProjection(config)
        more = {"text_encoder_2": second, "tokenizer_2": parts["tokenizer"]}
        return pipeline("StableDiffusionXLPipeline", parts, **more)
    if kind == "PixArt":
        net = diffusers.PixArtTransformer2DModel(
            sample_size=8, caption_channels=8, cross_attention_dim=16, out_channels=8, **small
        )
        return pipeline("PixArtAlphaPipeline", {"vae": parts["vae"]}, transformer=net)
    flow = {"vae": parts["vae"], "scheduler": diffusers.FlowMatchEulerDiscreteScheduler()}
    if kind == "SD3":
        net = diffusers.SD3Transformer2DModel(
            sample_size=8, joint_attention_dim=16, caption_projection_dim=16,
            pooled_projection_dim=16, out_channels=4, **small,
        )  # fmt: skip
        return pipeline("StableDiffusion3Pipeline", flow, transformer=net)
    net = diffusers.FluxTransformer2DModel(
        num_single_layers=1, joint_attention_dim=16, pooled_projection_dim=16,
        axes_dims_rope=(2, 2, 4), **small,
    )  # fmt: skip
    return pipeline("FluxPipeline", flow, transformer=net)


@pytest.mark.parametrize("kind", REFUSED)
def test_other_kinds_are_refused_in_one_line_that_names_them(kind: str, tmp_path: Path, parts):
    other(kind, parts).save_pretrained(tmp_path / "other")
    with pytest.raises(InputError, match=REFUSED[kind]) as error:
        latent.load(tmp_path / "other")
    assert "\n" not in str(error.value) and "Stable Diffusion 1.x or 2.x" in str(error.value)


def test_an_lcm_pipeline_is_known_by_its_name(tmp_path: Path, parts):
    made = pipeline("LatentConsistencyModelPipeline", parts, requires_safety_checker=False)
    made.save_pretrained(tmp_path / "lcm")
    with pytest.raises(InputError, match=r"LatentConsistencyModelPipeline, a latent consistency"):
        latent.load(tmp_path / "lcm")


def test_an_older_transformers_is_named_with_the_command_that_updates_it(monkeypatch):
    installed = transformers_for("--captioner")
    monkeypatch.setattr(installed, "__version__", "4.57.3")
    with pytest.raises(MissingExtra, match=r"5 or newer, 4\.57\.3 is installed.*pip install -U"):
        transformers_for("--captioner")


def test_project_and_lock_ask_for_the_oldest_transformers_that_works():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [r for r in project["optional-dependencies"]["diffusion"] if "transformers" in r]
    assert asked == [f"transformers>={OLDEST_TRANSFORMERS}"]
    lock = (ROOT / "requirements.lock").read_text()
    locked = next(line for line in lock.splitlines() if line.startswith("transformers=="))
    assert int(locked.removeprefix("transformers==").partition(".")[0]) >= OLDEST_TRANSFORMERS
