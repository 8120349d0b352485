"""Train the small latent diffusion model that every method can run with without a download.

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

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from counterlens.classifier import pick_device
from counterlens.data import open_set
from counterlens.errors import InputError
from counterlens.fit import Plan, Progress, Trainable, fit
from counterlens.generators.diffusion import model as latent
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.generators.diffusion.schedule import named
from counterlens.generators.diffusion.tiny import TinyShape, build
from counterlens.losses.diffusion import Autoencoder, Denoiser, autoencoding, denoising
from counterlens.losses.sharp import Sharpness
from counterlens.metrics.generation import psnr
from counterlens.models import load
from counterlens.models.nets import lpips
from counterlens.models.nets.patch_critic import PatchCritic
from counterlens.runs import Run, new_folder
from counterlens.types import Preprocess
from counterlens.workflows._shared import entry_point
from counterlens.workflows._shared.objects import texts
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import Log, begin, end, logger
from counterlens.workflows._shared.settings import as_dict, changed, check_choice
from counterlens.workflows.train.captioned import (
    Captioned,
    LatentBatches,
    PixelBatches,
    gather,
    noised,
    tokens,
)
from counterlens.workflows.train.datasets import decoded, default_cache
from counterlens.workflows.train.diffusion_quality import References, evaluate
from counterlens.workflows.train.latents import latents, scaled, stored_latents, weights_key
from counterlens.workflows.train.options import DiffusionTraining
from counterlens.workflows.train.recipe import (
    DIFFUSION_RECIPES,
    AutoencoderRecipe,
    DenoiserRecipe,
    DiffusionRecipe,
    on,
)
from counterlens.workflows.train.run import device_name


@dataclass(frozen=True)
class _Job:
    run: Run
    recipe: DiffusionRecipe
    options: DiffusionTraining
    device: torch.device
    log: Log
    until: float | None

    def minutes(self) -> float | None:
        """What is left of the time."""
        return None if self.until is None else (self.until - time.monotonic()) / 60

    @property
    def cache(self) -> Path:
        """Where decoded images are stored."""
        return self.options.cache or default_cache()


@takes(DiffusionTraining)
def train_diffusion(data: Sequence[str], options: DiffusionTraining) -> Result:
    """Train, export to RUN/model, draw samples and measure them.

    After `max_minutes` what there is of the second stage is exported; repeat with `resume` to go
    on. With `unet.steps=0` the autoencoder is trained alone, and with `vae.steps=0` and `start`
    the denoiser on the latents of an autoencoder that is there.

    Args:
        data: specs of labelled sets; the first one's last images are held out.
    """
    began = time.monotonic()
    check_choice("recipe", options.recipe, tuple(DIFFUSION_RECIPES))
    recipe, specs = changed(DIFFUSION_RECIPES[options.recipe], options.changes), texts(data)
    named(recipe.schedule)
    if recipe.vae.learns == "decoder" and recipe.vae.steps and not recipe.start:
        raise InputError("vae.learns=decoder keeps an encoder, expected one: start=FOLDER.")
    if not specs:
        raise InputError("no data given, expected data=SPEC, e.g. pack:A.npz+B.npz.")
    device, log = pick_device(options.device), logger(options)
    folder = options.out or new_folder("train", recipe.name)
    inputs = {"recipe": as_dict(recipe), "data": specs}
    run = begin("train", options, name=recipe.name, inputs=inputs, folder=folder)
    minutes = options.max_minutes
    until = None if minutes is None else began + 60 * minutes
    job = _Job(run, recipe, options, device, log, until)
    images = gather(specs, recipe, cache=job.cache)
    model = _model(job, images)
    log(f"{len(images.x)} pictures, {len(images.held)} held out, "
        f"{len(model.tokenizer)} tokens ({time.monotonic() - began:.1f} s)")  # fmt: skip
    _prepare(device)
    images = images.to(device)
    first = _first(job, model, images)
    if first is None:
        return Result(run)
    second = _second(job, model, images, first) if recipe.unet.steps else _alone(model, first)
    _export(job, model, images, second)
    if second.done:
        _measure(job, model, images)
        (run.folder / "state" / "latents.pt").unlink(missing_ok=True)
        end(run, log)
        log(f"done in {(time.monotonic() - began) / 60:.1f} min.")
    else:
        log(f"not finished: repeat the command with --resume ({run.folder}).")
        second.resend()
    return Result(run)


def _model(job: _Job, images: Captioned) -> LatentDiffusion:
    """A fresh model of the recipe's sizes, or one with the weights of an earlier model."""
    recipe = job.recipe
    shape = TinyShape(side=recipe.side, schedule=recipe.schedule, **vars(recipe.shape))
    every = [text for row in images.texts for text in row]
    model = build(shape, every, seed=job.options.seed)
    return _start(model, Path(recipe.start)) if recipe.start else model


def _start(model: LatentDiffusion, folder: Path) -> LatentDiffusion:
    """Begin with the weights and the vocabulary of an earlier model, or its autoencoder alone."""
    if latent.is_autoencoder(folder):
        _same(model.vae, latent.load_autoencoder(folder), folder)
        return model
    given = latent.load(folder)
    mine, theirs = (cast(Any, one.vae) for one in (model, given))
    mine.register_to_config(scaling_factor=theirs.config.scaling_factor)
    for mine, theirs in (
        (model.vae, given.vae), (model.unet, given.unet), (model.text, given.text),
    ):  # fmt: skip
        _same(mine, theirs, folder)
    return replace(model, tokenizer=given.tokenizer)


def _same(mine: nn.Module, theirs: nn.Module, folder: Path) -> None:
    """Take over the weights of a network of the same shapes."""
    try:
        mine.load_state_dict(theirs.state_dict())
    except RuntimeError as error:
        raise InputError(f"start={folder} has other shapes than the settings: {error}") from error


def _first(job: _Job, model: LatentDiffusion, images: Captioned) -> Autoencoder | None:
    """The autoencoder; None where the time was not enough."""
    recipe = job.recipe.vae
    net = _on(Autoencoder(model.vae), job.device)
    if recipe.learns == "decoder":
        for part in (model.vae.encoder, model.vae.quant_conv):
            part.requires_grad_(False)
    generator = torch.Generator(job.device)
    crop = job.recipe.side if job.recipe.stored else None
    batches = PixelBatches(images, recipe.batch, model.shape, generator, crop=crop)
    distance = lpips.load(recipe.lpips, device=job.device) if recipe.lpips else None

    @torch.no_grad()
    def judge(trained: nn.Module, step: int) -> dict[str, float]:
        rebuilt, wanted = [], []
        for part in torch.split(images.held, 500):
            x = part.float() / 127.5 - 1
            noise = torch.zeros(len(x), *model.shape, device=x.device)
            rebuilt.append(trained(x, noise)[0].clamp(-1, 1) / 2 + 0.5)
            wanted.append(x / 2 + 0.5)
        pair = torch.cat(rebuilt), torch.cat(wanted)
        numbers = {"held_out.psnr": psnr(*pair)}
        if distance is not None:
            parts = zip(torch.split(pair[0], 250), torch.split(pair[1], 250), strict=True)
            numbers["held_out.lpips"] = torch.cat([distance(*part) for part in parts]).mean().item()
        return numbers

    team, phase = _team(net, job, distance)
    progress, trained = _fit(job, "vae", team, batches, generator, judge, phase=phase)
    if not progress.done:
        job.log(f"not finished: repeat the command with --resume ({job.run.folder}).")
        progress.resend()
        return None
    result = trained[0]
    assert isinstance(result, Autoencoder)
    return result


def _team(
    net: nn.Module, job: _Job, distance: lpips.Lpips | None
) -> tuple[list[Trainable], Callable[[int], bool]]:
    """The autoencoder, alone or with a critic; and whether the critic takes part in an update."""
    recipe = job.recipe.vae
    optimizer = _adam(net, recipe)
    if recipe.loss == "squared":
        return [Trainable(net, partial(autoencoding, kl=recipe.kl), optimizer)], lambda step: False
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.options.seed)
        critic = PatchCritic().to(job.device)
    begins = round(recipe.critic_from * recipe.steps)
    loss = Sharpness(
        critic, distance, recipe.perceptual, recipe.adversarial, recipe.kl, begins=begins
    )
    # without weight decay: a critic that does not learn yet must stay as it is
    against = torch.optim.Adam(critic.parameters(), lr=recipe.lr, betas=(0.5, 0.9))
    return [
        Trainable(net, loss.autoencoder_terms, optimizer),
        Trainable(critic, loss.critic_terms, against),
    ], loss.phase


def _alone(model: LatentDiffusion, first: Autoencoder) -> Progress:
    """The autoencoder as it was trained, without a second stage."""
    model.vae.load_state_dict(first.vae.state_dict())
    return Progress(done=True)


def _second(job: _Job, model: LatentDiffusion, images: Captioned, first: Autoencoder) -> Progress:
    """Text encoder and UNet on the latents; `model` then holds the averaged weights of all."""
    z, held = _latents(job, model, images, first)
    ids = tokens(model.tokenizer, images.texts).to(job.device)
    empty = tokens(model.tokenizer, [[""]])[0, 0].to(job.device)
    held_ids = (
        tokens(model.tokenizer, [[text] for text in images.held_texts])[:, 0].to(job.device).long()
    )
    net = _on(Denoiser(model.unet, model.text), job.device)
    generator = torch.Generator(job.device)
    trainable = Trainable(net, denoising, _adam(net, job.recipe.unet))
    batches = LatentBatches(images, z, ids, empty, job.recipe.unet, generator, model.schedule)
    fixed = torch.Generator().manual_seed(job.options.seed)
    noise = torch.randn(held.shape, generator=fixed).to(job.device)
    times = torch.linspace(0, len(batches.alphas) - 1, len(held), device=job.device).long()
    noisy = noised(held, noise, batches.alphas[times])
    target = batches.target(held, noise, times)

    @torch.no_grad()
    def judge(trained: nn.Module, step: int) -> dict[str, float]:
        parts = zip(
            torch.split(noisy, 500),
            torch.split(times, 500),
            torch.split(held_ids, 500),
            strict=True,
        )
        predicted = torch.cat([trained(*part) for part in parts])
        return {"held_out.noise": (predicted - target).square().mean().item()}

    progress, trained = _fit(job, "unet", [trainable], batches, generator, judge)
    result = trained[0]
    assert isinstance(result, Denoiser)
    model.unet.load_state_dict(result.unet.state_dict())
    model.text.load_state_dict(result.text.state_dict())
    for part in (model.vae, model.unet, model.text):
        part.eval().requires_grad_(False).to(job.device)
    return progress


def _latents(
    job: _Job, model: LatentDiffusion, images: Captioned, first: Autoencoder
) -> tuple[Tensor, Tensor]:
    """Scaled latents of the training images and of the held-out ones; the model's scale is set.

    Those of random crops take a while, so they are stored until the training is finished.
    """
    began, recipe = time.monotonic(), job.recipe
    first = first.to(job.device)
    crops = (recipe.views, recipe.side) if recipe.stored else None
    encoded = partial(latents, first, images.x, crops=crops, seed=job.options.seed)
    file = job.run.folder / "state" / "latents.pt"
    z = stored_latents(file, weights_key(first), encoded, job.device) if crops else encoded()
    held = latents(first, images.held)[:, 0].float()
    model.vae.load_state_dict(first.vae.state_dict())
    z, held, scale = scaled(model.vae, z, held, each=recipe.normalise)
    job.log(
        f"{len(z)} × {z.shape[1]} latents, scale {scale:.4f} ({time.monotonic() - began:.1f} s)"
    )
    return z, held


def _adam(net: nn.Module, recipe: AutoencoderRecipe | DenoiserRecipe) -> torch.optim.Optimizer:
    fused = next(net.parameters()).is_cuda
    return torch.optim.AdamW(
        net.parameters(), lr=recipe.lr, betas=(0.9, 0.99), weight_decay=0.01, fused=fused
    )


def _fit(
    job: _Job,
    stage: Literal["vae", "unet"],
    team: list[Trainable],
    batches: Callable[[int], Mapping[str, Tensor]],
    generator: torch.Generator,
    judge: Any,
    phase: Callable[[int], bool] = lambda step: False,
) -> tuple[Progress, list[nn.Module]]:
    """Train one stage."""
    recipe, cuda = job.recipe, job.device.type == "cuda"
    own = recipe.vae if stage == "vae" else recipe.unet
    precision = recipe.precision
    if precision == "auto":
        precision = "bf16" if cuda else "fp32"
    plan = Plan(
        steps=own.steps,
        per_epoch=recipe.per_epoch,
        seed=job.options.seed + 1000 * (stage == "unet"),
        **_rate(own),
        warmup=own.warmup,
        average=own.average,
        precision=precision,
        judge_every=4,
        max_minutes=job.minutes(),
        compile=on(recipe.compile, cuda),
        graph=on(recipe.graph, cuda),
    )
    weights = sum(p.numel() for p in team[0].net.parameters()) / 1e6
    job.log(f"{stage}: {weights:.2f} M weights, {plan.steps} updates of {own.batch} "
            f"pictures on {device_name(job.device)}")  # fmt: skip
    progress, trained = fit(
        team,
        batches,
        plan=plan,
        folder=job.run.folder / "state" / stage,
        generator=generator,
        judge=judge,
        phase=phase,
        log=job.log,
    )
    job.run.write_table(f"epochs_{stage}", progress.rows)
    return progress, trained


def _rate(recipe: AutoencoderRecipe | DenoiserRecipe) -> dict[str, Any]:
    """How the learning rate of a stage falls."""
    if isinstance(recipe, AutoencoderRecipe):
        return {"schedule": "cosine"}
    if recipe.hold is None:
        return {"schedule": "constant"}
    return {"schedule": "linear", "hold": recipe.hold}


def _export(job: _Job, model: LatentDiffusion, images: Captioned, progress: Progress) -> None:
    """Write RUN/model: a diffusers folder in half precision with its card.

    Without a denoiser of its latents it holds the autoencoder alone.
    """
    recipe = job.recipe
    kept = recipe.vae.learns == "decoder" and not latent.is_autoencoder(Path(recipe.start or ""))
    rows = {stage: job.run.table(f"epochs_{stage}") for stage in ("vae", "unet")}
    card = {
        "name": job.recipe.name,
        "kind": "latent diffusion",
        "classes": list(images.classes),
        "recipe": as_dict(job.recipe),
        "data": images.facts,
        "training": {
            "seed": job.options.seed,
            "updates": {"vae": job.recipe.vae.steps, "unet": progress.step},
            "seconds": {
                stage: round(epochs[-1]["seconds"], 1) for stage, epochs in rows.items() if epochs
            },
            "device": device_name(job.device),
            "finished": progress.done,
        },
    }
    save = latent.save if recipe.unet.steps or kept else latent.save_autoencoder
    save(model, job.run.folder / "model", card=card)
    size = sum(f.stat().st_size for f in (job.run.folder / "model").rglob("*") if f.is_file())
    job.log(f"exported {size / 1e6:.1f} MB to {job.run.folder / 'model'}")


def _measure(job: _Job, model: LatentDiffusion, images: Captioned) -> None:
    """Draw samples with the exported model and measure them; without an untrained denoiser."""
    if not (job.recipe.unet.steps and job.recipe.samples):
        return
    options, side = job.options, job.recipe.side
    size = Preprocess((side, side))
    held = decoded(open_set(options.test), size, cache=job.cache) if options.test else None
    classifier = load(options.judge, device=str(job.device)) if options.judge else None
    opened = latent.load(job.run.folder / "model", device=job.device)  # what others will open
    evaluate(
        replace(opened, name=model.name),
        job.run,
        images.classes,
        references=References(classifier, held, images.x[: images.ends[0]]),
        count=job.recipe.samples,
        seed=options.seed,
        log=job.log,
    )


def _prepare(device: torch.device) -> None:
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")


def _on(net: nn.Module, device: torch.device) -> nn.Module:
    net = net.to(device).requires_grad_(True)
    return net.to(memory_format=torch.channels_last) if device.type == "cuda" else net


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m counterlens.workflows.train.diffusion`."""
    return entry_point.run(train_diffusion, DiffusionTraining, arguments)


if __name__ == "__main__":
    sys.exit(main())
