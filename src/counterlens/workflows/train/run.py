"""Train a classifier by a recipe: one loop, a choice of loss.

Paper: Augustin, Meinke, Hein 2020 (ratio2020); each recipe names its table.
Differs: checkpoints are judged on held-out training images, where the paper used the test set.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from counterlens.ball import Ball
from counterlens.classifier import Classifier, pick_device
from counterlens.errors import InputError
from counterlens.fit import Progress, Trainable, World, fit
from counterlens.models import load
from counterlens.models.nets import resnets as nets
from counterlens.models.sources import checkpoint
from counterlens.runs import Number, Run, new_folder
from counterlens.types import Preprocess
from counterlens.workflows._shared import entry_point as bare
from counterlens.workflows._shared.session import Say, teller, write_report
from counterlens.workflows.train import recipes
from counterlens.workflows.train.datasets import Batches, Sets, default_cache
from counterlens.workflows.train.health import Health
from counterlens.workflows.train.plan import (
    NEEDS_FAR,
    NEEDS_NEAR,
    NEEDS_OUT,
    Work,
    attack,
    bind,
    check,
    make_plan,
    matrix_rate,
)

Settings = Mapping[str, Any]


def train(
    recipe: str,
    data: str,
    *,
    out_data: str | None = None,
    changes: Sequence[str] = (),
    out: Path | None = None,
    resume: bool = False,
    seed: int = 0,
    device: str = "auto",
    max_minutes: float | None = None,
    cache: Path | None = None,
    quiet: bool = False,
) -> Run:
    """Train by a recipe; write a run with history, held-out numbers and a checkpoint folder.

    Args:
        recipe: a name of `counterlens train --list`, or a YAML file.
        data: spec of the training images.
        out_data: spec of the out-distribution images, for losses that want them.
        changes: `key=value` settings that replace the recipe's.
        max_minutes: stop after so long with all state kept; repeat with `resume` to go on.
            RUN/model then holds the weights so far.
        cache: where decoded sets are kept. Default: COUNTERLENS_CACHE or the user's cache.
    """
    began = time.monotonic()
    settings = recipes.load(recipe, changes)
    check(settings, out_data)
    start = _start(settings)
    world = World()
    say = teller(quiet or not world.main)
    where = world.device(pick_device(device))
    folder = out or new_folder("train", settings["name"])
    asked = {"recipe": settings, "data": data, "out_data": out_data, "seed": seed}
    run = Run.create(folder, "train", asked, resume=resume) if world.main else Run(Path(folder))
    outside = out_data if settings["loss"] in NEEDS_OUT else None
    sets = Sets.open(settings, data, outside, cache or default_cache()).to(where)
    say(
        f"{len(sets.x)} images to train on, {len(sets.held_x)} held out, "
        f"{len(sets.out) if sets.out is not None else 0} from outside "
        f"({time.monotonic() - began:.1f} s)"
    )
    torch.manual_seed(seed)
    net = classifier(settings, sets.classes)
    if start is not None:
        begin_at(net, start, settings["start"])
    if max_minutes is not None:
        max_minutes -= (time.monotonic() - began) / 60
    progress, kept, judge = _fit(net, settings, sets, run, world, say, seed, max_minutes)
    if not world.main:
        return run
    run.write_table("epochs", progress.rows)
    run.write_table("warnings", [{"warning": w} for w in judge.review(progress.rows)])
    save(run, kept, settings, seed, sets, progress)
    if not progress.done:
        say(f"not finished: repeat the command with --resume ({run.folder}).")
        progress.resend()
        return run
    run.add_numbers(numbers(progress, len(sets.held_x)))
    write_report(run, say)
    run.finish()
    say(f"done in {progress.seconds:.0f} s of training.")
    return run


def classifier(settings: Settings, classes: Sequence[str]) -> Classifier:
    """A fresh network of the recipe's architecture with its normalisation."""
    return Classifier(
        nets.build(settings["architecture"], len(classes)),
        classes,
        settings["mean"],
        settings["std"],
        preprocess=Preprocess((settings["size"], settings["size"])),
        name=settings["name"],
    )


def _start(settings: Settings) -> Classifier | None:
    """The model to start from; refused where its layers are not the recipe's."""
    if not settings["start"]:
        return None
    other = load(settings["start"], device="cpu")
    with torch.device("meta"):
        wanted = nets.build(settings["architecture"], len(other.classes)).state_dict()
    own = other.net.state_dict()
    if {k: v.shape for k, v in wanted.items()} != {k: v.shape for k, v in own.items()}:
        raise InputError(_other_layers(settings["start"]))
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
    kept = ("name", "recipe", "data", "training", "start")
    net.card["start"] = {key: other.card[key] for key in kept if key in other.card}


def _fit(
    net: Classifier,
    settings: Settings,
    sets: Sets,
    run: Run,
    world: World,
    say: Say,
    seed: int,
    max_minutes: float | None,
) -> tuple[Progress, Classifier, Health]:
    device = sets.y.device
    cuda = device.type == "cuda"
    net = net.to(device)
    if cuda:
        torch.backends.cudnn.benchmark = True
        net = net.to(memory_format=torch.channels_last)
    generator = torch.Generator(device)
    batches = Batches(
        sets, settings, seed=seed, generator=generator, share=(world.rank, world.size)
    )
    steps = max(1, round(settings["epochs"] * batches.per_epoch))
    drops = settings["drops"] if settings["schedule"] == "step" else ()
    near, far = attack(settings["near"], steps, drops), attack(settings["far"], steps, drops)
    name, judging = settings["loss"], settings["judge"]
    judge = Health(
        sets,
        near if name in NEEDS_NEAR else None,
        far if name in NEEDS_FAR else None,
        (Ball(judging["norm"], float(judging["radius"])), judging["steps"]),
        per_epoch=batches.per_epoch,
        probe_every=judging["probe_every"],
        total=steps,
        say=say,
    )
    work = Work(nets.flops(net, (3, settings["size"], settings["size"])), settings, near, far)
    optimizer = torch.optim.SGD(
        net.parameters(),
        lr=settings["lr"],
        momentum=settings["momentum"],
        nesterov=settings["momentum"] > 0,
        weight_decay=settings["weight_decay"],
    )
    say(
        f"{settings['name']}: {sum(p.numel() for p in net.parameters()) / 1e6:.2f} M weights, "
        f"{steps} updates of {settings['batch']} images, {work(0) / 1e12:.2f} TFLOP each, "
        f"on {device_name(device)}"
    )
    progress, kept = fit(
        Trainable(net, bind(settings, near, far, generator), optimizer),
        batches,
        plan=make_plan(settings, steps, batches.per_epoch, seed, cuda, max_minutes),
        folder=run.folder / "state",
        generator=generator,
        judge=judge,
        phase=lambda step: (near.steps(step), far.steps(step)),
        flops=work,
        peak=matrix_rate(device) if cuda else 0.0,
        log=say,
        events=run.folder / "events",
        world=world,
    )
    result = kept[0]
    assert isinstance(result, Classifier)
    return progress, result, judge


def save(
    run: Run, net: Classifier, settings: Settings, seed: int, sets: Sets, progress: Progress
) -> None:
    """Export the weights in half precision with their card, as RUN/model."""
    judged = _judged(progress)
    card = {
        "name": settings["name"],
        "architecture": dict(settings["architecture"]),
        "recipe": dict(settings),
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
        card["recipe"] = {**card["recipe"], "start": named}
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

    found = {}
    for key in ("clean", "robust", "near"):
        share = _judged(progress).get(f"held_out.{key}")
        if share is not None:
            low, high = wilson(round(share * n), n)
            protocol = f"{key} accuracy on {n} held-out training images"
            found[f"held_out.{key}"] = Number(share, n, low, high, protocol)
    return found


def device_name(device: torch.device) -> str:
    """What the device is called."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m counterlens.workflows.train.run`: for `accelerate launch` and bare machines."""
    parser = bare.options(train.__doc__, training=True)
    parser.add_argument("recipe", nargs="?")
    parser.add_argument("--data")
    parser.add_argument("--out-data")
    parser.add_argument("--list", action="store_true")
    given = vars(parser.parse_args(arguments))
    if given.pop("list"):
        for name, line in recipes.about().items():
            print(f"{name:32} {line}")
        return 0

    def work() -> Run:
        if not given["recipe"] or not given["data"]:
            raise InputError("train needs a recipe and --data SPEC. List recipes: --list.")
        return train(given.pop("recipe"), given.pop("data"), **given)

    return bare.command(work)


if __name__ == "__main__":
    sys.exit(main())
