"""Train a classifier by a recipe: one loop, a choice of loss.

Paper: Augustin, Meinke, Hein 2020 (ratio2020); each recipe names its table.
Differs: checkpoints are judged on held-out training images, where the paper used the test set.
"""

import argparse
import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from counterlens.ball import Ball
from counterlens.classifier import Classifier, pick_device
from counterlens.data import name_of, open_set
from counterlens.data.augment import POLICIES, augment
from counterlens.errors import CounterlensError, InputError
from counterlens.fit import Plan, Player, Progress, World, fit
from counterlens.images import ImageSet
from counterlens.losses import LOSSES, Attack, Loss
from counterlens.models import checkpoint, nets
from counterlens.runs import Number, Run, new_folder
from counterlens.types import Preprocess
from counterlens.workflows import recipes
from counterlens.workflows.health import Health
from counterlens.workflows.pixels import decoded, default_cache, hold_out

Settings = Mapping[str, Any]

NEEDS_OUT = ("outlier-exposure", "acet", "ratio", "three-part-ratio")
NEEDS_NEAR = ("adversarial", "half-adversarial", "trades", "ratio", "three-part-ratio")
NEEDS_FAR = ("acet", "ratio", "three-part-ratio")
HALVED = ("half-adversarial", "three-part-ratio")
RANDOM = ("trades", "random-strength")


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
    say: Callable[[str], None] | None = None,
) -> Run:
    """Train by a recipe; write a run with history, held-out numbers and a checkpoint folder.

    Args:
        recipe: a name of `counterlens train --list`, or a YAML file.
        data: spec of the training images.
        out_data: spec of the out-distribution images, for losses that want them.
        changes: `key=value` settings that replace the recipe's.
        max_minutes: stop after so long with all state kept; repeat with `resume` to go on.
        cache: where decoded sets are kept. Default: COUNTERLENS_CACHE or the user's cache.
    """
    say = say or (lambda line: print(line, file=sys.stderr, flush=True))
    settings = recipes.load(recipe, changes)
    check(settings, out_data)
    world = World()
    say = say if world.main else (lambda line: None)
    where = world.device(pick_device(device))
    folder = out or new_folder("train", settings["name"])
    asked = {"recipe": settings, "data": data, "out_data": out_data, "seed": seed}
    run = Run.create(folder, "train", asked, resume=resume) if world.main else Run(Path(folder))
    sets = Sets.open(settings, data, out_data, cache or default_cache(), say)
    torch.manual_seed(seed)
    net = classifier(settings, sets)
    began = time.monotonic()
    progress, kept = _fit(net, settings, sets.to(where), run, world, say, seed, max_minutes)
    if world.main:
        run.write_table("epochs", progress.rows)
    if not progress.done:
        say(f"not finished: repeat the command with --resume ({run.folder}).")
        return run
    if world.main:
        _finish(run, kept, settings, asked, sets, progress)
        say(f"done in {progress.seconds:.0f} s of training ({time.monotonic() - began:.0f} s now).")
    return run


class Sets:
    """The pixels of a training: inside, held out, outside; uint8, on one device."""

    def __init__(
        self, x: Tensor, y: Tensor, held_x: Tensor, held_y: Tensor, out: Tensor | None
    ) -> None:
        self.x, self.y, self.held_x, self.held_y = x, y, held_x, held_y
        held = len(held_x) // 2
        self.out = out[held:] if out is not None else None
        self.held_out = out[:held] if out is not None else None
        self.classes: tuple[str, ...] = ()
        self.facts: dict[str, Any] = {}

    @classmethod
    def open(
        cls,
        settings: Settings,
        data: str,
        out_data: str | None,
        cache: Path,
        say: Callable[[str], None],
    ) -> "Sets":
        """Decode what the recipe needs."""
        began = time.monotonic()
        preprocess = Preprocess((settings["size"], settings["size"]))
        images = open_set(data)
        _check_labels(images)
        count = settings["held_out"]
        if not 0 < count < len(images):
            raise InputError(f"held_out is {count}, expected 1 … {len(images) - 1} of {data}.")
        pixels = decoded(images, preprocess, cache=cache)
        labels = torch.from_numpy(images.labels)
        kept, held = hold_out(images, count, settings["held_out_rule"])
        outside = None
        facts: dict[str, Any] = {
            "in": {"spec": name_of(data), "n": len(kept), "fingerprint": images.fingerprint},
            "held_out": {"n": len(held), "rule": settings["held_out_rule"]},
        }
        if out_data is not None and settings["loss"] in NEEDS_OUT:
            pool = open_set(out_data)
            if len(pool) < count:
                raise InputError(f"{out_data} has {len(pool)} images, expected {count} or more.")
            order, rest = hold_out(pool, count // 2)
            outside = decoded(pool, preprocess, cache=cache)[torch.cat([rest, order])]
            facts["out"] = {
                "spec": name_of(out_data),
                "n": len(order),
                "fingerprint": pool.fingerprint,
            }
        sets = cls(pixels[kept], labels[kept], pixels[held], labels[held], outside)
        sets.classes, sets.facts = images.classes, facts
        say(
            f"{len(kept)} images to train on, {len(held)} held out"
            + (f", {len(outside)} from outside" if outside is not None else "")
            + f" ({time.monotonic() - began:.1f} s)"
        )
        return sets

    def to(self, device: torch.device) -> "Sets":
        """Move everything to the device that trains."""
        for name in ("x", "y", "held_x", "held_y", "out", "held_out"):
            value = getattr(self, name)
            setattr(self, name, value if value is None else value.to(device))
        return self


def _check_labels(images: ImageSet) -> None:
    if len(images.classes) < 2:
        raise InputError(f"{images.name} has {len(images.classes)} classes, expected 2 or more.")
    if (images.labels < 0).any():
        raise InputError(f"{images.name} has images without a label; training needs all of them.")


def check(settings: Settings, out_data: str | None) -> None:
    """Refuse settings that do not fit each other, before anything is decoded."""
    loss = settings["loss"]
    if loss not in LOSSES:
        raise InputError(f"loss is {loss!r}, expected one of {', '.join(LOSSES)}.")
    if loss in NEEDS_OUT and out_data is None:
        raise InputError(
            f"the {loss} loss needs out-distribution images. Name a set: --out-data SPEC."
        )
    if settings["augment"] not in POLICIES:
        raise InputError(
            f"augment is {settings['augment']!r}, expected one of {', '.join(POLICIES)}."
        )
    for key in ("batch", "epochs", "size"):
        if not settings[key] > 0:
            raise InputError(f"{key} is {settings[key]}, expected more than 0.")


def classifier(settings: Settings, sets: Sets) -> Classifier:
    """A fresh network of the recipe's architecture with its normalisation."""
    return Classifier(
        nets.build(settings["architecture"], len(sets.classes)),
        sets.classes,
        settings["mean"],
        settings["std"],
        preprocess=Preprocess((settings["size"], settings["size"])),
        name=settings["name"],
    )


def attack(section: Settings, steps: int, drops: Sequence[float]) -> Attack:
    """A training attack of a recipe; a list of steps grows at the drops, or in equal stages."""
    counts = section["steps"] if isinstance(section["steps"], list) else [section["steps"]]
    if drops and len(drops) >= len(counts) - 1:
        starts = [0.0, *drops][: len(counts)]
    else:
        starts = [i / len(counts) for i in range(len(counts))]
    stages = tuple((round(s * steps), int(n)) for s, n in zip(starts, counts, strict=True))
    return Attack(
        Ball(section["norm"], float(section["radius"])),
        stages,
        section["step_size"],
        section["momentum"],
        section["raises"],
    )


def bind(settings: Settings, near: Attack, far: Attack, generator: torch.Generator) -> Loss:
    """The recipe's loss with its attacks and weights filled in."""
    name = settings["loss"]
    options: dict[str, Any] = {}
    if name in NEEDS_NEAR:
        options["near"] = near
    if name in NEEDS_FAR:
        options["far"] = far
    if name in NEEDS_OUT:
        options["out_weight"] = settings["out_weight"]
        if settings["scale"] is not None:
            options["scale"] = settings["scale"]
    if name == "trades":
        options["beta"] = settings["beta"]
    if name == "random-strength":
        options |= {"kind": settings["kind"], "radius": settings["near"]["radius"]}
        options["steps"] = near.steps(0)
    if name in RANDOM:
        options["generator"] = generator
    return functools.partial(LOSSES[name], **options)


class Batches:
    """The batch of each update: a function of the seed and the update's number alone."""

    def __init__(
        self, sets: Sets, settings: Settings, world: World, seed: int, generator: torch.Generator
    ) -> None:
        self.sets, self.seed, self.generator = sets, seed, generator
        self.policy = settings["augment"]
        self.fill = tuple(settings["fill"]) if settings["fill"] else None
        self.batch = settings["batch"]
        self.outer = settings["out_batch"] or settings["batch"]
        self.per_epoch = len(sets.x) // self.batch
        if not self.per_epoch:
            raise InputError(f"batch is {self.batch}, more than the {len(sets.x)} images.")
        if self.batch % world.size or self.outer % world.size:
            raise InputError(f"batch {self.batch} does not divide by {world.size} processes.")
        self.world = world
        self._orders: dict[str, tuple[int, Tensor]] = {}

    def __call__(self, step: int) -> dict[str, Tensor]:
        """Augmented images of this process's share of the batch."""
        rows = self.rows("in", len(self.sets.x), self.batch, step)
        batch = {"x": self.image(self.sets.x[rows]), "y": self.sets.y[rows]}
        if self.sets.out is not None:
            rows = self.rows("out", len(self.sets.out), self.outer, step)
            batch["out"] = self.image(self.sets.out[rows])
        return batch

    def image(self, pixels: Tensor) -> Tensor:
        """Augmented, in [0, 1]."""
        return augment(self.policy, pixels, self.generator, self.fill)  # type: ignore[arg-type]

    def rows(self, which: str, count: int, size: int, step: int) -> Tensor:
        """Rows of the set that this process sees in this update; each pass is shuffled anew."""
        whole, part = divmod(step, count // size)
        if self._orders.get(which, (-1,))[0] != whole:
            shuffler = torch.Generator().manual_seed(
                (self.seed * 1_000_003 + whole) * 2 + (which == "out")
            )
            order = torch.randperm(count, generator=shuffler).to(self.sets.x.device)
            self._orders[which] = (whole, order)
        share = size // self.world.size
        start = part * size + self.world.rank * share
        return self._orders[which][1][start : start + share]


def _fit(
    net: Classifier,
    settings: Settings,
    sets: Sets,
    run: Run,
    world: World,
    say: Callable[[str], None],
    seed: int,
    max_minutes: float | None,
) -> tuple[Progress, Classifier]:
    device = sets.x.device
    cuda = device.type == "cuda"
    net = net.to(device)
    if cuda:
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = True
        net = net.to(memory_format=torch.channels_last)
    generator = torch.Generator(device)
    batches = Batches(sets, settings, world, seed, generator)
    steps = round(settings["epochs"] * batches.per_epoch)
    drops = settings["drops"] if settings["schedule"] == "step" else ()
    near = attack(settings["near"], steps, drops)
    far = attack(settings["far"], steps, drops)
    plan = make_plan(settings, steps, batches.per_epoch, seed, cuda, max_minutes)
    name = settings["loss"]
    judging = settings["judge"]
    judge = Health(
        sets.held_x,
        sets.held_y,
        sets.held_out,
        near if name in NEEDS_NEAR else None,
        far if name in NEEDS_FAR else None,
        (Ball(judging["norm"], float(judging["radius"])), judging["steps"]),
        batches.per_epoch,
        judging["probe_every"],
        steps,
        say,
    )
    work = Work(nets.flops(net, (3, settings["size"], settings["size"])), settings, near, far)
    peak = matrix_rate(device) if cuda else 0.0
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
        Player(net, bind(settings, near, far, generator), optimizer),
        batches,
        plan=plan,
        folder=run.folder / "state",
        generator=generator,
        judge=judge,
        phase=lambda step: (near.steps(step), far.steps(step)),
        flops=work,
        peak=peak,
        say=say,
        world=world,
    )
    result = kept[0]
    assert isinstance(result, Classifier)
    return progress, result


def make_plan(
    settings: Settings,
    steps: int,
    per_epoch: int,
    seed: int,
    cuda: bool,
    max_minutes: float | None,
) -> Plan:
    """The plan of a recipe; "auto" means the fast choice on a GPU and the plain one elsewhere."""
    compiled = cuda if settings["compile"] == "auto" else bool(settings["compile"])
    plain = settings["loss"] == "random-strength"  # its radius differs per image and update
    graph = cuda and not plain if settings["graph"] == "auto" else bool(settings["graph"])
    precision = settings["precision"]
    if precision == "auto":
        precision = "bf16" if cuda else "fp32"
    return Plan(
        steps=steps,
        per_epoch=per_epoch,
        seed=seed,
        schedule=settings["schedule"],
        warmup=round(settings["warmup"] * per_epoch),
        drops=tuple(settings["drops"]),
        average=settings["average"],
        precision=precision,
        compile=compiled,
        graph=graph,
        draws=settings["loss"] in RANDOM,
        judge_every=settings["judge"]["every"],
        keep_best=settings["keep_best"],
        max_minutes=max_minutes,
    )


class Work:
    """Model FLOPs of one update: convolutions and linear layers, attacks included."""

    def __init__(self, forward: int, settings: Settings, near: Attack, far: Attack) -> None:
        self.forward, self.near, self.far = forward, near, far
        self.loss = settings["loss"]
        self.batch = settings["batch"]
        self.outer = (settings["out_batch"] or self.batch) if self.loss in NEEDS_OUT else 0

    def __call__(self, step: int) -> float:
        """A gradient step is a forward and a backward to the input; an update is three forwards."""
        passes = 3.0 * (self.batch + self.outer)
        if self.loss in NEEDS_NEAR:
            hit = self.batch / 2 if self.loss in HALVED else self.batch
            passes += hit * (2 * self.near.steps(step) + 1)
        if self.loss in NEEDS_FAR:
            passes += self.outer * (2 * self.far.steps(step) + 1)
        return passes * self.forward


def matrix_rate(device: torch.device, size: int = 8192) -> float:
    """The device's measured bf16 matrix rate in FLOP/s: random data, ten products, warmed up."""
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    b = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    for _ in range(3):
        a @ b
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(10):
        a @ b
    end.record()
    torch.cuda.synchronize()
    return float(10 * 2 * size**3 / (start.elapsed_time(end) / 1e3))


def _finish(
    run: Run,
    net: Classifier,
    settings: Settings,
    asked: Settings,
    sets: Sets,
    progress: Progress,
) -> None:
    """Export the weights with their card, add the held-out numbers, close the run."""
    last = progress.rows[-1]
    card = {
        "name": settings["name"],
        "architecture": dict(settings["architecture"]),
        "recipe": dict(settings),
        "data": sets.facts,
        "training": {
            "seed": asked["seed"],
            "seconds": round(progress.seconds, 1),
            "updates": progress.step,
            "chosen": progress.best_step if settings["keep_best"] else progress.step,
            "device": device_name(sets.x.device),
            "held_out": {k: v for k, v in last.items() if k.startswith(("held_out", "probe"))},
        },
    }
    checkpoint.save(run.folder / "model", net.cpu(), card, half=True)
    from counterlens.metrics.intervals import wilson

    n = len(sets.held_x)
    numbers = {}
    for key in ("clean", "robust", "near"):
        share = last.get(f"held_out.{key}")
        if share is None:
            continue
        low, high = wilson(round(share * n), n)
        protocol = f"{key} accuracy on {n} held-out training images"
        numbers[f"held_out.{key}"] = Number(share, n, low, high, protocol)
    run.add_numbers(numbers)
    run.finish()


def device_name(device: torch.device) -> str:
    """What the device is called."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m counterlens.workflows.train`: the command without the command line's extras."""
    parser = argparse.ArgumentParser(prog="counterlens train", description=train.__doc__)
    parser.add_argument("recipe", nargs="?")
    parser.add_argument("--data")
    parser.add_argument("--out-data")
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--max-minutes", type=float)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--list", action="store_true")
    given = vars(parser.parse_args(arguments))
    try:
        if given.pop("list"):
            for name, line in recipes.about().items():
                print(f"{name:32} {line}")
            return 0
        if not given["recipe"] or not given["data"]:
            raise InputError("train needs a recipe and --data SPEC. List recipes: --list.")
        print(train(given.pop("recipe"), given.pop("data"), **given).folder)
    except CounterlensError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
