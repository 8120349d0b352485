"""Train the small latent diffusion model that every method can run with on a bare machine.

Three stages in one run, each resumable to the bit on a CPU: an autoencoder; text encoder and UNet
together on its latents; samples and numbers. Stage two has a constant rate and an average of the
weights, so it may be stopped at any time and its weights used.

Planned cost on one H200 (790 TFLOP/s of bf16 matrix products, a fifth of it reached at these
widths, so 160 TFLOP/s; before the first run):

    autoencoder  1.85 M weights,  1.8 GFLOP a pass, 2.8 TFLOP an update of 512: 18–25 ms,
                 6,000 updates (3.1 M images) in 2–2.5 min
    denoiser    15.4 M weights,  2.9 GFLOP a pass, 4.4 TFLOP an update of 512: 28 ms, 18,000 im/s,
                15,000 updates (7.7 M images) in 7 min
    evaluation   1,000 samples × 25 steps × 2 × 2.8 GFLOP = 140 TFLOP: seconds
    decoding 82,000 pictures 5 s, captions 5 s, compiling about 45 s a stage

Paper: Rombach et al. 2022 (ldm2022); Augustin et al. 2024 (digin2024) uses Stable Diffusion 1.4.
Differs: 32 pixels, captions made from class and measured attributes, text encoder from scratch.
"""

import copy
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from counterlens.classifier import pick_device
from counterlens.data import open_set
from counterlens.errors import InputError
from counterlens.fit import Plan, Progress, Trainable, fit
from counterlens.generators.diffusion import model as latent
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.generators.diffusion.tiny import Shape, build
from counterlens.losses.diffusion import Autoencoder, Denoiser, autoencoding, denoising
from counterlens.metrics.generation import psnr
from counterlens.models import load
from counterlens.runs import Run, new_folder
from counterlens.types import Preprocess
from counterlens.workflows._shared import entry_point as bare
from counterlens.workflows._shared.session import Say, teller, write_report
from counterlens.workflows.train import recipes
from counterlens.workflows.train.captioned import (
    LatentBatches,
    Pictures,
    PixelBatches,
    gather,
    latents,
    noised,
    tokens,
)
from counterlens.workflows.train.datasets import decoded, default_cache
from counterlens.workflows.train.diffusion_quality import evaluate
from counterlens.workflows.train.run import device_name

DEFAULTS: dict[str, Any] = {
    "name": "cifar10-diffusion",
    "side": 32,
    "held_out": 2000,
    "variants": 6,
    "shares": [0.7, 0.3],
    "shape": {
        "vae": [96, 96], "latents": 4, "unet": [128, 224], "heads": 4, "text": 192, "layers": 3,
        "tokens": 24, "merges": 400,
    },
    "vae": {"steps": 6000, "batch": 512, "lr": 6e-4, "warmup": 200, "average": 0.999, "kl": 5e-5},
    "unet": {
        "steps": 15000, "batch": 512, "lr": 4e-4, "warmup": 500, "average": 0.9995, "drop": 0.1,
    },
    "per_epoch": 250,
    "samples": 1000,
    "start": None,
    "precision": "auto",
    "compile": "auto",
    "graph": "auto",
}  # fmt: skip


@dataclass(frozen=True)
class _Job:
    run: Run
    settings: Mapping[str, Any]
    device: torch.device
    seed: int
    say: Say
    until: float | None

    def minutes(self) -> float | None:
        """What is left of the time."""
        return None if self.until is None else (self.until - time.monotonic()) / 60


def train_diffusion(
    data: Sequence[str],
    *,
    test: str | None = None,
    judge: str | None = None,
    changes: Sequence[str] = (),
    out: Path | None = None,
    resume: bool = False,
    seed: int = 0,
    device: str = "auto",
    max_minutes: float | None = None,
    cache: Path | None = None,
    quiet: bool = False,
) -> Run:
    """Train, export to RUN/model, draw samples and measure them.

    Args:
        data: specs of labelled sets; the first one's last pictures are held out.
        test: spec of test pictures of the first set's classes, for the numbers at the end.
        judge: spec of a classifier that says whether samples show what was asked for.
        changes: `key=value` settings that replace the defaults.
        max_minutes: stop after so long with all state kept. What there is of the second stage is
            exported and measured; repeat with `resume` to go on.
    """
    began = time.monotonic()
    settings = copy.deepcopy(DEFAULTS)
    recipes.change(settings, changes)
    if not data:
        raise InputError("no data came, expected --data SPEC, e.g. pack:A.npz+B.npz.")
    where = pick_device(device)
    say = teller(quiet)
    asked = {"recipe": settings, "data": list(data), "test": test, "judge": judge, "seed": seed}
    folder = out or new_folder("train", settings["name"])
    run = Run.create(folder, "train", asked, resume=resume)
    until = None if max_minutes is None else began + 60 * max_minutes
    job = _Job(run, settings, where, seed, say, until)
    keep = cache or default_cache()
    pictures = gather(data, settings, cache=keep)
    shape = Shape(side=settings["side"], **{k: _tuple(v) for k, v in settings["shape"].items()})
    model = build(shape, [text for row in pictures.texts for text in row], seed=seed)
    if settings["start"]:
        model = _start(model, Path(settings["start"]))
    say(f"{len(pictures.x)} pictures, {len(pictures.held)} held out, "
        f"{len(model.tokenizer)} tokens ({time.monotonic() - began:.1f} s)")  # fmt: skip
    _prepare(where)
    pictures.x, pictures.held = pictures.x.to(where), pictures.held.to(where)
    first = _first(job, model, pictures)
    if first is None:
        return run
    second = _second(job, model, pictures, first)
    _export(job, model, pictures, second)
    _measure(job, model, pictures, test, judge, keep)
    if second.done:
        write_report(run, say)
        run.finish()
        say(f"done in {(time.monotonic() - began) / 60:.1f} min.")
    else:
        say(f"not finished: repeat the command with --resume ({run.folder}).")
        second.resend()
    return run


def _start(model: LatentDiffusion, folder: Path) -> LatentDiffusion:
    """Begin with the weights and the vocabulary of an earlier model."""
    given = latent.load(folder)
    pairs = (model.vae, given.vae), (model.unet, given.unet), (model.text, given.text)
    try:
        for mine, theirs in pairs:
            mine.load_state_dict(theirs.state_dict())
    except RuntimeError as error:
        raise InputError(f"start={folder} has other shapes than asked for: {error}") from error
    return replace(model, tokenizer=given.tokenizer)


def _first(job: _Job, model: LatentDiffusion, pictures: Pictures) -> Autoencoder | None:
    """The autoencoder; None where the time was not enough."""
    settings = job.settings["vae"]
    net = _on(Autoencoder(model.vae), job.device)
    generator = torch.Generator(job.device)
    batches = PixelBatches(pictures, settings["batch"], model.shape, generator)

    @torch.no_grad()
    def judge(kept: nn.Module, step: int) -> dict[str, float]:
        made, wanted = [], []
        for part in torch.split(pictures.held, 500):
            x = part.float() / 127.5 - 1
            noise = torch.zeros(len(x), *model.shape, device=x.device)
            made.append(kept(x, noise)[0].clamp(-1, 1) / 2 + 0.5)
            wanted.append(x / 2 + 0.5)
        return {"held_out.psnr": psnr(torch.cat(made), torch.cat(wanted))}

    loss = partial(autoencoding, kl=settings["kl"])
    progress, kept = _fit(job, "vae", net, loss, batches, generator, judge)
    if not progress.done:
        job.say(f"not finished: repeat the command with --resume ({job.run.folder}).")
        progress.resend()
        return None
    result = kept[0]
    assert isinstance(result, Autoencoder)
    return result


def _second(job: _Job, model: LatentDiffusion, pictures: Pictures, first: Autoencoder) -> Progress:
    """Text encoder and UNet on the latents; `model` then holds the averaged weights of all."""
    began = time.monotonic()
    first = first.to(job.device)
    z = latents(first, pictures.x)
    held = latents(first, pictures.held)[:, 0].float()
    scale = 1 / z.float().std().item()
    model.vae.load_state_dict(first.vae.state_dict())
    model.vae.register_to_config(scaling_factor=scale)  # type: ignore[operator]
    z, held = (z.float() * scale).to(torch.float16), held * scale
    ids = tokens(model.tokenizer, pictures.texts).to(job.device)
    empty = tokens(model.tokenizer, [[""]])[0, 0].to(job.device)
    held_ids = (
        tokens(model.tokenizer, [[text] for text in pictures.held_texts])[:, 0]
        .to(job.device)
        .long()
    )
    job.say(f"{len(z)} × 2 latents, scale {scale:.4f} ({time.monotonic() - began:.1f} s)")
    settings = job.settings["unet"]
    net = _on(Denoiser(model.unet, model.text), job.device)
    generator = torch.Generator(job.device)
    batches = LatentBatches(pictures, z, ids, empty, settings, generator)
    fixed = torch.Generator().manual_seed(job.seed)
    noise = torch.randn(held.shape, generator=fixed).to(job.device)
    times = torch.linspace(0, len(batches.alphas) - 1, len(held), device=job.device).long()
    noisy = noised(held, noise, batches.alphas[times])

    @torch.no_grad()
    def judge(kept: nn.Module, step: int) -> dict[str, float]:
        parts = zip(
            torch.split(noisy, 500),
            torch.split(times, 500),
            torch.split(held_ids, 500),
            strict=True,
        )
        said = torch.cat([kept(*part) for part in parts])
        return {"held_out.noise": (said - noise).square().mean().item()}

    progress, kept = _fit(job, "unet", net, denoising, batches, generator, judge)
    result = kept[0]
    assert isinstance(result, Denoiser)
    model.unet.load_state_dict(result.unet.state_dict())
    model.text.load_state_dict(result.text.state_dict())
    for part in (model.vae, model.unet, model.text):
        part.eval().requires_grad_(False).to(job.device)
    return progress


def _fit(
    job: _Job,
    stage: str,
    net: nn.Module,
    loss: Any,
    batches: Callable[[int], Mapping[str, Tensor]],
    generator: torch.Generator,
    judge: Any,
) -> tuple[Progress, list[nn.Module]]:
    settings, cuda = job.settings[stage], job.device.type == "cuda"
    precision = job.settings["precision"]
    if precision == "auto":
        precision = "bf16" if cuda else "fp32"
    optimizer = torch.optim.AdamW(
        net.parameters(), lr=settings["lr"], betas=(0.9, 0.99), weight_decay=0.01, fused=cuda
    )
    plan = Plan(
        steps=settings["steps"],
        per_epoch=job.settings["per_epoch"],
        seed=job.seed + 1000 * (stage == "unet"),
        schedule="cosine" if stage == "vae" else "constant",
        warmup=settings["warmup"],
        average=settings["average"],
        precision=precision,
        judge_every=4,
        max_minutes=job.minutes(),
        compile=_auto(job.settings["compile"], cuda),
        graph=_auto(job.settings["graph"], cuda),
    )
    weights = sum(p.numel() for p in net.parameters()) / 1e6
    job.say(f"{stage}: {weights:.2f} M weights, {plan.steps} updates of {settings['batch']} "
            f"pictures on {device_name(job.device)}")  # fmt: skip
    progress, kept = fit(
        Trainable(net, loss, optimizer),
        batches,
        plan=plan,
        folder=job.run.folder / "state" / stage,
        generator=generator,
        judge=judge,
        log=job.say,
    )
    job.run.write_table(f"epochs_{stage}", progress.rows)
    return progress, kept


def _export(job: _Job, model: LatentDiffusion, pictures: Pictures, progress: Progress) -> None:
    """Write RUN/model: a diffusers folder in half precision with its card."""
    rows = {stage: job.run.table(f"epochs_{stage}") for stage in ("vae", "unet")}
    card = {
        "name": job.settings["name"],
        "kind": "latent diffusion",
        "classes": list(pictures.classes),
        "recipe": dict(job.settings),
        "data": pictures.facts,
        "training": {
            "seed": job.seed,
            "updates": {"vae": job.settings["vae"]["steps"], "unet": progress.step},
            "seconds": {
                stage: round(found[-1]["seconds"], 1) for stage, found in rows.items() if found
            },
            "device": device_name(job.device),
            "finished": progress.done,
        },
    }
    latent.save(model, job.run.folder / "model", card=card)
    size = sum(f.stat().st_size for f in (job.run.folder / "model").rglob("*") if f.is_file())
    job.say(f"exported {size / 1e6:.1f} MB to {job.run.folder / 'model'}")


def _measure(
    job: _Job,
    model: LatentDiffusion,
    pictures: Pictures,
    test: str | None,
    judge: str | None,
    cache: Path,
) -> None:
    side = job.settings["side"]
    held = decoded(open_set(test), Preprocess((side, side)), cache=cache) if test else None
    classifier = load(judge, device=str(job.device)) if judge else None
    opened = latent.load(job.run.folder / "model", device=job.device)  # what others will open
    evaluate(
        replace(opened, name=model.name),
        job.run,
        pictures.classes,
        judge=classifier,
        test=held,
        train=pictures.x[: pictures.ends[0]],
        count=job.settings["samples"],
        seed=job.seed,
        say=job.say,
    )


def _prepare(device: torch.device) -> None:
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")


def _on(net: nn.Module, device: torch.device) -> nn.Module:
    net = net.to(device).requires_grad_(True)
    return net.to(memory_format=torch.channels_last) if device.type == "cuda" else net


def _auto(value: Any, cuda: bool) -> bool:
    return cuda if value == "auto" else bool(value)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m counterlens.workflows.train.diffusion`."""
    parser = bare.options(train_diffusion.__doc__, training=True)
    parser.add_argument("--data", action="append", default=[])
    parser.add_argument("--test")
    parser.add_argument("--judge")
    given = vars(parser.parse_args(arguments))
    return bare.command(lambda: train_diffusion(given.pop("data"), **given))


if __name__ == "__main__":
    sys.exit(main())
