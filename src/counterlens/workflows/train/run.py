"""Train a classifier by a recipe: one loop, a choice of loss.

Paper: Augustin, Meinke, Hein 2020 (ratio2020); each recipe names its table.
Differs: checkpoints are judged on held-out training images, where the paper used the test set.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from counterlens.ball import Ball
from counterlens.classifier import Classifier, pick_device
from counterlens.errors import InputError
from counterlens.fit import Progress, Trainable, World, fit
from counterlens.losses import needs
from counterlens.models import load
from counterlens.models.nets import resnets as nets
from counterlens.models.sources import checkpoint
from counterlens.runs import Number, Run, new_folder
from counterlens.types import Preprocess
from counterlens.workflows._shared import entry_point
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import Log, begin, end, logger
from counterlens.workflows._shared.settings import as_dict
from counterlens.workflows.train import recipes
from counterlens.workflows.train.datasets import Batches, Sets, default_cache
from counterlens.workflows.train.health import Health
from counterlens.workflows.train.options import TrainOptions
from counterlens.workflows.train.plan import (
    Attacks,
    UpdateCost,
    attacks,
    bind,
    check,
    make_plan,
    matrix_rate,
)
from counterlens.workflows.train.recipe import Recipe


@takes(TrainOptions)
def train(recipe: str, data: str, options: TrainOptions) -> Result:
    """Train by a recipe; write a run with history, held-out numbers and a checkpoint folder.

    A training that `max_minutes` stopped keeps all its state: repeated with `resume` it goes on,
    and RUN/model holds the weights so far.

    Args:
        recipe: a name of `counterlens train --list`, or a YAML file.
        data: spec of the training images.
    """
    job = _begin(recipe, data, options)
    progress, trained, health = _fit(job)
    if not job.world.main:
        return Result(job.run)
    run, log = job.run, job.log
    run.write_table("epochs", progress.rows)
    run.write_table("warnings", [{"warning": w} for w in health.review(progress.rows)])
    save(run, trained, job.recipe, options.seed, job.sets, progress)
    if not progress.done:
        log(f"not finished: repeat the command with --resume ({run.folder}).")
        progress.resend()
        return Result(run)
    run.add_numbers(numbers(progress, len(job.sets.held_x)))
    end(run, log)
    log(f"done in {progress.seconds:.0f} s of training.")
    return Result(run)


@dataclass(frozen=True)
class _Job:
    """A training under way.

    Args:
        net: the classifier at its start.
        max_minutes: what is left of the time, if it is limited.
    """

    run: Run
    recipe: Recipe
    sets: Sets
    net: Classifier
    world: World
    seed: int
    max_minutes: float | None
    log: Log


def _begin(name: str, data: str, options: TrainOptions) -> _Job:
    """Refuse what cannot work, open the run and the images, build the network."""
    began = time.monotonic()
    recipe = recipes.load(name, options.changes)
    check(recipe, options.out_data)
    start = _start(recipe)
    world = World()
    log = logger(options.quiet or not world.main)
    device = world.device(pick_device(options.device))
    folder = options.out or new_folder("train", recipe.name)
    inputs = {"recipe": as_dict(recipe), "data": data}
    run = (
        begin("train", options, name=recipe.name, inputs=inputs, folder=folder)
        if world.main
        else Run(Path(folder))
    )
    outside = options.out_data if needs(recipe.loss).out else None
    sets = Sets.open(recipe, data, outside, options.cache or default_cache()).to(device)
    log(
        f"{len(sets.x)} images to train on, {len(sets.held_x)} held out, "
        f"{len(sets.out) if sets.out is not None else 0} from outside "
        f"({time.monotonic() - began:.1f} s)"
    )
    torch.manual_seed(options.seed)
    net = classifier(recipe, sets.classes)
    if start is not None:
        begin_at(net, start, str(recipe.start))
    left = options.max_minutes
    if left is not None:
        left -= (time.monotonic() - began) / 60
    return _Job(run, recipe, sets, net, world, options.seed, left, log)


def classifier(recipe: Recipe, classes: Sequence[str]) -> Classifier:
    """A fresh network of the recipe's architecture with its normalisation."""
    return Classifier(
        nets.build(recipe.architecture, len(classes)),
        classes,
        recipe.mean,
        recipe.std,
        preprocess=Preprocess((recipe.size, recipe.size)),
        name=recipe.name,
    )


def _start(recipe: Recipe) -> Classifier | None:
    """The model to start from; refused where its layers are not the recipe's."""
    if not recipe.start:
        return None
    other = load(recipe.start, device="cpu")
    with torch.device("meta"):
        wanted = nets.build(recipe.architecture, len(other.classes)).state_dict()
    own = other.net.state_dict()
    if {k: v.shape for k, v in wanted.items()} != {k: v.shape for k, v in own.items()}:
        raise InputError(_other_layers(recipe.start))
    return other


def _other_layers(spec: str) -> str:
    return (
        f"start is {spec}, whose layers are not those of the recipe's architecture. "
        "Name a model of the same architecture and classes (--set start=FOLDER)."
    )


def begin_at(net: Classifier, other: Classifier, spec: str) -> None:
    """Give a fresh network the weights of a trained one, and remember where they are from."""
    try:
        net.net.load_state_dict(other.net.state_dict())
    except RuntimeError:
        raise InputError(_other_layers(spec)) from None
    facts = ("name", "recipe", "data", "training", "start")
    net.card["start"] = {key: other.card[key] for key in facts if key in other.card}


def _fit(job: _Job) -> tuple[Progress, Classifier, Health]:
    """Train; the progress, the network to keep, and what was noticed on the way."""
    recipe, sets, log = job.recipe, job.sets, job.log
    device = sets.y.device
    cuda = device.type == "cuda"
    net = job.net.to(device)
    if cuda:
        torch.backends.cudnn.benchmark = True
        net = net.to(memory_format=torch.channels_last)
    generator = torch.Generator(device)
    share = (job.world.rank, job.world.size)
    batches = Batches(sets, recipe, seed=job.seed, generator=generator, share=share)
    steps = max(1, round(recipe.epochs * batches.per_epoch))
    both = attacks(recipe, steps)
    health = _health(job, both, batches.per_epoch, steps)
    work = UpdateCost(nets.flops(net, (3, recipe.size, recipe.size)), recipe, both)
    log(
        f"{recipe.name}: {sum(p.numel() for p in net.parameters()) / 1e6:.2f} M weights, "
        f"{steps} updates of {recipe.batch} images, {work(0) / 1e12:.2f} TFLOP each, "
        f"on {device_name(device)}"
    )
    plan = make_plan(
        recipe, steps, batches.per_epoch, seed=job.seed, cuda=cuda, max_minutes=job.max_minutes
    )
    progress, trained = fit(
        Trainable(net, bind(recipe, both, generator), _optimizer(net, recipe)),
        batches,
        plan=plan,
        folder=job.run.folder / "state",
        generator=generator,
        judge=health,
        phase=lambda step: (both.near.steps(step), both.far.steps(step)),
        flops=work,
        peak=matrix_rate(device) if cuda else 0.0,
        log=log,
        events=job.run.folder / "events",
        world=job.world,
    )
    result = trained[0]
    assert isinstance(result, Classifier)
    return progress, result, health


def _health(job: _Job, both: Attacks, per_epoch: int, steps: int) -> Health:
    """What judges the network on held-out images."""
    judging, wanted = job.recipe.judge, needs(job.recipe.loss)
    return Health(
        job.sets,
        both.near if wanted.near else None,
        both.far if wanted.far else None,
        (Ball(cast(Any, judging.norm), float(judging.radius)), judging.steps),
        per_epoch=per_epoch,
        probe_every=judging.probe_every,
        total=steps,
        log=job.log,
    )


def _optimizer(net: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        net.parameters(),
        lr=recipe.lr,
        momentum=recipe.momentum,
        nesterov=recipe.momentum > 0,
        weight_decay=recipe.weight_decay,
    )


def save(
    run: Run, net: Classifier, recipe: Recipe, seed: int, sets: Sets, progress: Progress
) -> None:
    """Export the weights in half precision with their card, as RUN/model."""
    judged = _judged(progress)
    card = {
        "name": recipe.name,
        "architecture": dict(recipe.architecture),
        "recipe": as_dict(recipe),
        "data": sets.facts,
        "training": {
            "seed": seed,
            "seconds": round(progress.seconds, 1),
            "updates": progress.step,
            "chosen": judged["step"],
            "device": device_name(sets.y.device),
            "held_out": {k: v for k, v in judged.items() if k.startswith(("held_out", "probe"))},
        },
    }
    if "start" in net.card:
        card["start"] = net.card["start"]
        named = net.card["start"].get("name")  # a card travels, the path of a folder does not
        card["recipe"] = {**as_dict(recipe), "start": named}
    checkpoint.save(run.folder / "model", net.cpu(), card, half=True)


def _judged(progress: Progress) -> dict[str, Any]:
    """The judgement of the weights that are kept: the best one if it was asked for."""
    rows = [row for row in progress.rows if "held_out.clean" in row]
    if progress.best_state is not None:
        rows = [row for row in rows if row["step"] == progress.best_step]
    return rows[-1] if rows else {"step": progress.step}


def numbers(progress: Progress, n: int) -> dict[str, Number]:
    """Held-out accuracies of the kept weights with their intervals."""
    from counterlens.metrics.intervals.closed_form import wilson

    out = {}
    for key in ("clean", "robust", "near"):
        share = _judged(progress).get(f"held_out.{key}")
        if share is not None:
            low, high = wilson(round(share * n), n)
            protocol = f"{key} accuracy on {n} held-out training images"
            out[f"held_out.{key}"] = Number(share, n, low, high, protocol)
    return out


def device_name(device: torch.device) -> str:
    """What the device is called."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m counterlens.workflows.train.run`, for `accelerate launch`."""
    parser = entry_point.parser(train.__doc__, TrainOptions)
    parser.add_argument("recipe", nargs="?")
    given = vars(parser.parse_args(arguments))
    options = entry_point.options_from(TrainOptions, given)
    if options.list_recipes:
        for name, line in recipes.about().items():
            print(f"{name:32} {line}")
        return 0

    def work() -> Result:
        if not given["recipe"] or not options.data:
            raise InputError(
                "train needs a recipe and data=SPEC. counterlens train --list lists recipes."
            )
        return train(given["recipe"], options.data, options=options)

    return entry_point.command(work, TrainOptions)


if __name__ == "__main__":
    sys.exit(main())
