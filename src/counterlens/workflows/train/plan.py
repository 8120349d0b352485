"""From a recipe's settings to the parts of a training: attacks, loss, plan, amount of work.

Paper: Augustin et al. 2020 (ratio2020), appendix: the out-attack grows after each drop of the rate.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import torch

from counterlens.ball import Ball
from counterlens.data.augment import POLICIES
from counterlens.errors import InputError
from counterlens.fit import Plan, RateSchedule
from counterlens.losses import LOSSES, Attack, Loss

Settings = Mapping[str, Any]

NEEDS_OUT = ("outlier-exposure", "acet", "ratio", "three-part-ratio")
NEEDS_NEAR = ("adversarial", "half-adversarial", "trades", "ratio", "three-part-ratio")
NEEDS_FAR = ("acet", "ratio", "three-part-ratio")
HALVED = ("half-adversarial", "three-part-ratio")
RANDOM = ("trades", "random-strength")


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
    if settings["schedule"] not in get_args(RateSchedule):
        raise InputError(
            f"schedule is {settings['schedule']!r}, expected one of "
            f"{', '.join(get_args(RateSchedule))}."
        )
    for section in ("near", "far"):
        attack(settings[section], 1, ())  # its ball refuses what is no radius


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
        patience=settings["patience"],
        checkpoint_minutes=settings["checkpoint_minutes"],
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
        return float(passes * self.forward)


def matrix_rate(device: torch.device, size: int = 8192) -> float:
    """The device's measured bf16 matrix rate in FLOP/s: random data, ten products, warmed up."""
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    b = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    for _ in range(3):
        a @ b
    start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(10):
        a @ b
    end.record()
    torch.cuda.synchronize()
    return float(10 * 2 * size**3 / (start.elapsed_time(end) / 1e3))
