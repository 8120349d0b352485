"""Distil a diffusion model to few steps, halving by halving, for counterfactuals on a laptop.

The teacher's chain of `first` steps, guided, is learned by a student of half the steps without
guidance, which is the teacher of the next one, down to `last`. Autoencoder and text encoder stay.
Each halving is a training of its own, resumable to the bit on a CPU. The result is a generator like
any other, whose card names its sampler.

Planned cost for the generator of photographs (34.4 M weights, 6.6 GFLOP a forward pass and image):
the first halving takes 4 passes of the teacher and 3 of the student an update, the others 2 and 3:
512 images are 24 and 17 TFLOP, some 130 and 95 ms of one H200; 4 × 1,000 updates take 7 minutes.

Paper: Salimans and Ho 2022 (salimans2022); Meng et al. 2023 (meng2023).
Differs: average of the weights, and far fewer updates. The rate falls linearly in each halving.
"""

import copy
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from counterlens import zoo
from counterlens.classifier import pick_device
from counterlens.data import open_set
from counterlens.errors import InputError
from counterlens.fit import Plan, Progress, Trainable, fit
from counterlens.generators.diffusion import model as latent
from counterlens.generators.diffusion.ddim import ddim, repeated
from counterlens.generators.diffusion.few_steps import (
    Teacher,
    TimeGrid,
    halvings,
    network_of,
    trailing,
)
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.losses.diffusion import Autoencoder, Student, distilling
from counterlens.models import load
from counterlens.runs import new_folder
from counterlens.types import Preprocess
from counterlens.workflows._shared import entry_point
from counterlens.workflows._shared.objects import texts
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import Log, begin, end, logger
from counterlens.workflows._shared.settings import as_dict, changed, check_choice
from counterlens.workflows.train.captioned import Captioned, gather, noised, tokens
from counterlens.workflows.train.datasets import decoded, default_cache
from counterlens.workflows.train.diffusion_quality import References, evaluate
from counterlens.workflows.train.latents import latents, stored_latents, weights_key
from counterlens.workflows.train.options import FewStepTraining
from counterlens.workflows.train.recipe import FEW_STEP_RECIPES, FewStepRecipe, on
from counterlens.workflows.train.run import device_name

JUDGED = 64
"""Held-out captions whose images, by student and by teacher, are compared."""


@dataclass(frozen=True)
class _Job:
    recipe: FewStepRecipe
    options: FewStepTraining
    folder: Path
    until: float | None
    log: Log

    def minutes(self) -> float | None:
        """What is left of the time."""
        return None if self.until is None else (self.until - time.monotonic()) / 60


@takes(FewStepTraining)
def train_few_steps(data: Sequence[str], options: FewStepTraining) -> Result:
    """Distil a generator to few steps, export RUN/model, draw samples and measure them.

    After `max_minutes` it stops, with a checkpoint; repeat with `resume` to go on.

    Args:
        data: specs of the labelled sets that the generator was trained on; the last images of the
            first one are held out.
    """
    began = time.monotonic()
    check_choice("recipe", options.recipe, tuple(FEW_STEP_RECIPES))
    recipe, specs = changed(FEW_STEP_RECIPES[options.recipe], options.changes), texts(data)
    if not specs:
        raise InputError("no data given, expected data=SPEC, e.g. pack:A.npz+B.npz.")
    if not recipe.guidance >= 1:
        raise InputError(f"guidance is {recipe.guidance}, expected 1 or more, e.g. 3.")
    device, log = pick_device(options.device), logger(options)
    model = _opened(options.generator, device, recipe)
    rounds = halvings(recipe.first, recipe.last, len(model.schedule.alphas))
    folder = options.out or new_folder("train", recipe.name)
    facts = {"recipe": as_dict(recipe), "data": specs, "teacher": weights_key(model.unet)}
    run = begin("train", options, name=recipe.name, inputs=facts, folder=folder)
    minutes = options.max_minutes
    until = None if minutes is None else began + 60 * minutes
    job = _Job(recipe, options, run.folder, until, log)
    images = gather(specs, recipe, cache=options.cache or default_cache()).to(device)
    log(f"{len(images.x)} pictures ({time.monotonic() - began:.1f} s)")
    student, progress, rows = _distilled(job, model, images, rounds)
    run.write_table("epochs_few", rows)
    if not progress.done:
        log(f"not finished: repeat the command with --resume ({run.folder}).")
        progress.resend()
        return Result(run)
    latent.save(student, run.folder / "model", card=_card(job, model, images, rows))
    _measure(job, Result(run), images, device)
    (run.folder / "state" / "latents.pt").unlink(missing_ok=True)
    end(run, log)
    log(f"done in {(time.monotonic() - began) / 60:.1f} min.")
    return Result(run)


def _opened(spec: str, device: torch.device, recipe: FewStepRecipe) -> LatentDiffusion:
    """The teacher; refused where it is of another size, or has few steps already."""
    where = zoo.generator(spec.removeprefix("zoo:")) if spec.startswith("zoo:") else Path(spec)
    model = latent.load(where, device=device)
    if model.side != recipe.side:
        raise InputError(f"{spec} draws {model.side} pixels, the recipe is for {recipe.side}.")
    if model.sampler:
        raise InputError(f"{spec} draws in {model.sampler[1]} steps already.")
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True
        model.unet.to(memory_format=torch.channels_last)  # and so are its students
    return model


def _distilled(
    job: _Job, model: LatentDiffusion, images: Captioned, rounds: Sequence[int]
) -> tuple[LatentDiffusion, Progress, list[dict[str, Any]]]:
    """The last student, or what there is when the time is over."""
    z = _latents(job, model, images)
    ids = tokens(model.tokenizer, images.texts).to(model.device)
    teacher = replace(model, schedule=trailing(model.schedule))
    guidance, progress = job.recipe.guidance, Progress()
    rows: list[dict[str, Any]] = []
    for steps in rounds:
        progress, teacher = _halved(job, teacher, images, (z, ids), (steps, guidance))
        rows += [{"chain": steps, **row} for row in progress.rows]
        if not progress.done:
            break
        guidance = 1.0  # is in the weights now
    return teacher, progress, rows


def _halved(
    job: _Job,
    model: LatentDiffusion,
    images: Captioned,
    known: tuple[Tensor, Tensor],
    task: tuple[int, float],
) -> tuple[Progress, LatentDiffusion]:
    """A student of so many steps, from a teacher of twice as many with this guidance.

    Args:
        known: latents of the images, and token ids of their captions.
        task: steps of the student, guidance of the teacher.
    """
    recipe, device, steps = job.recipe, model.device, task[0]
    cuda = device.type == "cuda"
    precision = recipe.precision
    if precision == "auto":
        precision = "bf16" if cuda else "fp32"
    generator = torch.Generator(device)
    batches = FewStepBatches(model, images, known, task, recipe, generator, precision == "bf16")
    net = Student(copy.deepcopy(model.unet)).requires_grad_(True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=recipe.lr, betas=(0.9, 0.99), fused=cuda)
    loss = partial(distilling, prediction=model.schedule.prediction)
    plan = Plan(
        steps=recipe.updates,
        per_epoch=recipe.per_epoch,
        seed=job.options.seed + 2000 + steps,
        schedule="linear",
        warmup=recipe.warmup,
        average=recipe.average,
        precision=precision,
        judge_every=4,
        max_minutes=job.minutes(),
        compile=on(recipe.compile, cuda),
        graph=on(recipe.graph, cuda),
    )
    job.log(f"{steps} steps from {2 * steps} at guidance {task[1]:g}: {plan.steps} updates of "
            f"{recipe.batch} pictures on {device_name(device)}")  # fmt: skip
    progress, trained = fit(
        Trainable(net, loss, optimizer),
        batches,
        plan=plan,
        folder=job.folder / "state" / f"few-{steps}",
        generator=generator,
        judge=partial(batches.judge, model, images.held_texts[:JUDGED]),
        log=job.log,
    )
    student: Any = trained[0]
    unet = student.unet.eval().requires_grad_(False)
    return progress, replace(model, unet=unet)


class FewStepBatches:
    """The student's batch of each update: noisy latents, times, conditions, and its target."""

    def __init__(
        self,
        model: LatentDiffusion,
        images: Captioned,
        known: tuple[Tensor, Tensor],
        task: tuple[int, float],
        recipe: FewStepRecipe,
        generator: torch.Generator,
        half: bool = False,
    ) -> None:
        """`model`: the teacher; `half`: it computes in bf16."""
        (self.z, self.ids), (self.steps, self.guidance) = known, task
        self.images, self.generator, self.half = images, generator, half
        self.batch, self.drop = recipe.batch, recipe.drop
        self.text = model.text
        self.empty = tokens(model.tokenizer, [[""]])[0, 0].to(self.ids)
        self.grid = TimeGrid.make(model.schedule, self.steps, model.device)
        null = self.text(self.empty[None].long()).last_hidden_state
        self.teacher = Teacher(network_of(model), model.schedule.prediction, null, self.guidance)

    @torch.no_grad()
    def __call__(self, step: int) -> dict[str, Tensor]:
        device, n = self.z.device, self.batch
        rows = self.images.rows(n, self.generator)
        draw = torch.rand(4, n, device=device, generator=self.generator)
        view, place, variant = (
            (part * size).long().clamp_max(size - 1)
            for part, size in zip(
                draw, (self.z.shape[1], self.steps, self.ids.shape[1]), strict=False
            )
        )
        ids = torch.where((draw[3] < self.drop)[:, None], self.empty, self.ids[rows, variant])
        clean = self.z[rows, view].float()
        noise = torch.randn(clean.shape, device=device, generator=self.generator)
        time, level = self.grid.start(place + 1)
        z = noised(clean, noise, level)
        with torch.autocast(device.type, torch.bfloat16, enabled=self.half):
            cond = self.text(ids.long()).last_hidden_state.float()
            target = self.teacher.target(z, place + 1, self.grid, cond)
        return {"z": z, "time": time, "level": level, "cond": cond, "target": target.float()}

    @torch.no_grad()
    def judge(
        self, model: LatentDiffusion, prompts: Sequence[str], trained: nn.Module, step: int
    ) -> dict[str, float]:
        """How far the student's chain ends from its teacher's, beside how far the teacher's would.

        Both begin with the same noise; the second distance is that of the teacher in as few steps.
        """
        shape = (len(prompts), *model.shape)
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(model.device)
        cond, null = model.embed(prompts), model.embed([""]).expand(len(prompts), -1, -1)

        def drawn(unet: nn.Module, steps: int, guidance: float) -> Tensor:
            conds = repeated(cond, steps), repeated(null, steps)
            one = replace(model, unet=unet)
            return ddim(one, noise, *conds, guidance=guidance).originals[-1]

        wanted = drawn(model.unet, 2 * self.steps, self.guidance)
        ours = drawn(_Unwrapped(trained), self.steps, 1.0)
        plain = drawn(model.unet, self.steps, self.guidance)
        return {
            "held_out.distance": (ours - wanted).square().mean().item(),
            "held_out.undistilled": (plain - wanted).square().mean().item(),
        }


class _Unwrapped(nn.Module):
    """A student called as a UNet is."""

    def __init__(self, student: Any) -> None:
        super().__init__()
        self.student = student

    def forward(self, z: Tensor, time: Tensor, encoder_hidden_states: Tensor) -> Any:
        return SimpleNamespace(sample=self.student(z, time, encoder_hidden_states))


def _latents(job: _Job, model: LatentDiffusion, images: Captioned) -> Tensor:
    """Latents of the training images as the model scales them; those of crops are stored."""
    recipe, net = job.recipe, Autoencoder(model.vae)
    crops = (recipe.views, recipe.side) if recipe.stored else None
    encoded = partial(latents, net, images.x, crops=crops, seed=job.options.seed)
    file = job.folder / "state" / "latents.pt"
    z = stored_latents(file, weights_key(net), encoded, model.device) if crops else encoded()
    return torch.cat([model.scaled(some.float()).half() for some in torch.split(z, 4096)])


def _card(
    job: _Job, model: LatentDiffusion, images: Captioned, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What is known about the student; its sampler is that which commands use unless told."""
    recipe = job.recipe
    return {
        "name": recipe.name,
        "kind": "latent diffusion",
        "classes": list(images.classes),
        "sampler": {"steps": recipe.last, "guidance": 1.0},
        "recipe": as_dict(recipe),
        "data": images.facts,
        "training": {
            "teacher": model.name,
            "guidance": recipe.guidance,
            "seed": job.options.seed,
            "updates": recipe.updates * len({row["chain"] for row in rows}),
            "seconds": round(sum(
                max(row["seconds"] for row in rows if row["chain"] == chain)
                for chain in {row["chain"] for row in rows}
            ), 1),
            "device": device_name(model.device),
            "finished": True,
        },
    }  # fmt: skip


def _measure(job: _Job, result: Result, images: Captioned, device: torch.device) -> None:
    """Draw samples with the exported model and measure them."""
    recipe, options = job.recipe, job.options
    if not recipe.samples:
        return
    size = Preprocess((recipe.side, recipe.side))
    cache = options.cache or default_cache()
    held = decoded(open_set(options.test), size, cache=cache) if options.test else None
    classifier = load(options.judge, device=str(device)) if options.judge else None
    evaluate(
        latent.load(result.folder / "model", device=device),
        result.run,
        images.classes,
        references=References(classifier, held, images.x[: images.ends[0]]),
        count=recipe.samples,
        seed=options.seed,
        log=job.log,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m counterlens.workflows.train.few_steps`."""
    return entry_point.run(train_few_steps, FewStepTraining, arguments)


if __name__ == "__main__":
    sys.exit(main())
