"""One update of DiG-IN at 512 pixels with the architecture of Stable Diffusion 1.4, random weights.

Claim to be tested: half-precision weights, images in batches, compilation, and recomputing only
what memory asks for make an update at least four times as fast per image as the paper's form
(float32, every block recomputed, one image).

Setting: 20 DDIM steps, guidance 3, score over the last 3 predictions, 16 cut-outs, one classifier
(torchvision's efficientnet_b0 at 224, random weights, standing in for an EfficientNet-Lite). The
conditions are random; what is measured is machinery, not pictures.

With --cosine FOLDER: how well half precision keeps the gradient of the chain, per variable, on
a trained generator (bar: a cosine of 0.99 with float32).

Result: not yet measured.
Run: .venv/bin/python benchmarks/bench_diffusion.py [--arm paper] [--arm ours] [--batch 8]
     [--memory 16GB] [--tiny]      (a CUDA device; --tiny shows on a CPU that it runs)
"""

import argparse
import contextlib
import itertools
import json
import time
from dataclasses import replace

import torch
from torchvision.models import efficientnet_b0

from counterlens.ball import row_seeds
from counterlens.generators.ascent import COUNTERFACTUAL, Inputs, Settings, Term, ascend, begin
from counterlens.generators.ddim import ddim
from counterlens.generators.latent import LatentDiffusion, libraries, load
from counterlens.generators.memory import free_memory, parse_memory, steps_to_keep
from counterlens.generators.schedule import stable_diffusion

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


class _Enough(Exception):
    """All that is timed was timed."""


def build(device: torch.device, dtype: torch.dtype, *, tiny: bool) -> LatentDiffusion:
    """Stable Diffusion 1.4 from its configuration, weights random; no text encoder is needed."""
    diffusers, _ = libraries()
    torch.manual_seed(0)
    sizes = {"sample_size": 8} if tiny else {}
    with torch.device(device):
        unet = diffusers.UNet2DConditionModel(**{**UNET, **(SMALL if tiny else {}), **sizes})
        vae = diffusers.AutoencoderKL(**{**VAE, **(SMALL if tiny else {})})
    for net in (unet, vae):
        torch.nn.Module.to(net.eval().requires_grad_(False), dtype=dtype)
        net.to(memory_format=torch.channels_last)
    return LatentDiffusion(vae, unet, torch.nn.Identity(), None, stable_diffusion(), "random")


def measure(arm: str, given: argparse.Namespace, settings: Settings, device: torch.device) -> dict:
    """Seconds per update and image, and peak memory, of one arm."""
    paper = arm == "paper"
    dtype = torch.float32 if paper else torch.bfloat16
    torch.set_float32_matmul_precision("highest" if paper else "high")
    model = build(device, dtype, tiny=given.tiny)
    count = 1 if paper else given.batch
    classifier = efficientnet_b0().eval().requires_grad_(False).to(device, dtype)

    def table(x: torch.Tensor) -> torch.Tensor:
        return classifier(x.to(dtype)).float().log_softmax(1)

    side = 32 if given.tiny else 224
    term = Term(table, torch.zeros(count, dtype=torch.long, device=device), side)
    generator = torch.Generator(device).manual_seed(0)
    z = torch.randn(count, *model.shape, device=device, generator=generator)
    text = torch.randn(2, count, settings.steps, 77, 768, device=device, generator=generator)
    start = Inputs(z, text[0], text[1])
    kept = None
    if paper:  # the reference recomputes every block of both networks
        for net in (model.unet, model.vae):
            net.train()
            net.enable_gradient_checkpointing()
    else:
        budget = parse_memory(given.memory) if given.memory else free_memory(device)
        kept, fitting = steps_to_keep(model, start, settings, budget)
        if fitting < count:
            raise SystemExit(f"{fitting} images fit, {count} were asked for: --batch {fitting}")
        if given.compile:
            model = replace(model, unet=torch.compile(model.unet, dynamic=False))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    stamps: list[float] = []

    def told(k: int, now: object) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()
        stamps.append(time.perf_counter())
        if k == settings.updates - 1:  # the last look needs no gradient: it is no update
            raise _Enough

    seeds = row_seeds(count, 0, device=device)
    with contextlib.suppress(_Enough):
        ascend(model, start, [term], settings=settings, seeds=seeds, kept=kept, told=told)
    spans = [b - a for a, b in itertools.pairwise(stamps)][1:]  # the first compiles
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
    return {"arm": arm, "images": count, "kept": kept, "seconds_per_update": spans,
            "per_image": min(spans) / count, "peak_gib": peak,
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
            "torch": torch.__version__}  # fmt: skip


def cosines(folder: str, device: torch.device, settings: Settings) -> dict:
    """Cosine of the gradients of the whole chain in bfloat16 and in float32, per variable."""
    grads = []
    for precision in ("float32", "bfloat16"):
        model = load(folder, device=device, precision=precision)
        seeds = row_seeds(4, 0)
        given = begin(model, ["a photograph of a cat"] * 4, seeds, steps=settings.steps)
        leaves = [t.detach().clone().requires_grad_() for t in (given.z, given.cond, given.null)]
        chain = ddim(model, *leaves, guidance=settings.guidance, last=settings.last, kept=0)
        way = torch.randn(4, 3, model.side, model.side, generator=torch.Generator().manual_seed(0))
        total = sum((model.decode(z) * way.to(device)).sum() for z in chain.originals)
        grads.append(torch.autograd.grad(total, leaves))
    pairs = zip(("z_T", "C_t", "null_t"), *grads, strict=True)
    return {
        name: [torch.cosine_similarity(x.flatten(), y.flatten(), 0).item()
               for x, y in zip(a, b, strict=True)]
        for name, a, b in pairs
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--arm", action="append", choices=("paper", "ours"), default=[])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--memory")
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--cosine", metavar="FOLDER")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if given.cosine:
        print(json.dumps(cosines(given.cosine, device, COUNTERFACTUAL)))
        return
    if device.type == "cpu" and not given.tiny:
        raise SystemExit("no CUDA device; --tiny shows that the script runs.")
    settings = replace(COUNTERFACTUAL, updates=given.updates)
    if given.tiny:
        settings = replace(settings, steps=3, cuts=2)
    found = []
    for arm in given.arm or ["paper", "ours"]:
        found.append(measure(arm, given, settings, device))
        print(json.dumps(found[-1]), flush=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if len(found) == 2:
        print(f"per image {found[0]['per_image'] / found[1]['per_image']:.1f} times as fast")


if __name__ == "__main__":
    main()
