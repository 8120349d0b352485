"""From a recipe to the parts of a training: attacks, loss, plan, amount of work.

Paper: Augustin et al. 2020 (ratio2020), appendix: the out-attack grows after each drop of the rate.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

import torch

from counterlens.ball import Ball
from counterlens.data.augment import POLICIES
from counterlens.errors import InputError
from counterlens.fit import Plan, RateSchedule
from counterlens.losses import ATTACKED_SHARE, LOSSES, Attack, Loss, needs
from counterlens.workflows._shared.settings import check_choice
from counterlens.workflows.train.recipe import AttackRecipe, Recipe, on


def check(recipe: Recipe, out_data: str | None) -> None:
    """Refuse settings that do not fit each other, before anything is decoded."""
    loss = recipe.loss
    check_choice("loss", loss, list(LOSSES))
    if needs(loss).out and out_data is None:
        raise InputError(
            f"the {loss} loss needs out-distribution images. Name a set: out_data=SPEC."
        )
    unknown = sorted(set(recipe.loss_options) - set(needs(loss).names))
    if unknown:
        raise InputError(
            f"the {loss} loss has no option {unknown[0]!r}. It has: "
            f"{', '.join(needs(loss).names) or 'none'}."
        )
    check_choice("augment", recipe.augment, list(POLICIES))
    check_choice("schedule", recipe.schedule, get_args(RateSchedule))
    for key in ("batch", "epochs", "size"):
        if not getattr(recipe, key) > 0:
            raise InputError(f"{key} is {getattr(recipe, key)}, expected more than 0.")
    for section in (recipe.near, recipe.far):
        attack(section, 1, ())  # its ball refuses what is no radius


def attack(section: AttackRecipe, steps: int, drops: Sequence[float]) -> Attack:
    """A training attack of a recipe; a list of steps grows at the drops, or in equal stages."""
    counts = section.steps if isinstance(section.steps, tuple) else (section.steps,)
    if drops and len(drops) >= len(counts) - 1:
        starts = [0.0, *drops][: len(counts)]
    else:
        starts = [i / len(counts) for i in range(len(counts))]
    stages = tuple((round(s * steps), int(n)) for s, n in zip(starts, counts, strict=True))
    return Attack(
        Ball(cast(Any, section.norm), float(section.radius)),
        stages,
        section.step_size,
        section.momentum,
        section.raises,
    )


@dataclass(frozen=True)
class Attacks:
    """The attacks of a training around in- and out-distribution images."""

    near: Attack
    far: Attack


def attacks(recipe: Recipe, steps: int) -> Attacks:
    """Both attacks of a recipe, laid out over so many updates."""
    drops = recipe.drops if recipe.schedule == "step" else ()
    return Attacks(attack(recipe.near, steps, drops), attack(recipe.far, steps, drops))


def bind(recipe: Recipe, both: Attacks, generator: torch.Generator) -> Loss:
    """The recipe's loss, each of its keyword arguments filled in from the recipe."""
    values: dict[str, Any] = {
        "near": both.near,
        "far": both.far,
        "generator": generator,
        "out_weight": recipe.out_weight,
        "beta": recipe.beta,
        "kind": recipe.kind,
        "radius": recipe.near.radius,
        "steps": both.near.steps(0),
        **({} if recipe.scale is None else {"scale": recipe.scale}),
        **recipe.loss_options,
    }
    names = needs(recipe.loss).names
    return functools.partial(LOSSES[recipe.loss], **{k: values[k] for k in names if k in values})


def make_plan(
    recipe: Recipe,
    steps: int,
    per_epoch: int,
    *,
    seed: int,
    cuda: bool,
    max_minutes: float | None = None,
) -> Plan:
    """The plan of a recipe; "auto" means the fast choice on a GPU and the plain one elsewhere."""
    plain = recipe.loss == "random-strength"  # its radius differs per image and update
    precision = recipe.precision
    if precision == "auto":
        precision = "bf16" if cuda else "fp32"
    return Plan(
        steps=steps,
        per_epoch=per_epoch,
        seed=seed,
        schedule=cast(RateSchedule, recipe.schedule),
        warmup=round(recipe.warmup * per_epoch),
        drops=recipe.drops,
        average=recipe.average,
        precision=precision,
        compile=on(recipe.compile, cuda),
        graph=on(recipe.graph, cuda and not plain),
        draws=needs(recipe.loss).random,
        judge_every=recipe.judge.every,
        keep_best=recipe.keep_best,
        patience=recipe.patience,
        checkpoint_minutes=recipe.checkpoint_minutes,
        max_minutes=max_minutes,
    )


class UpdateCost:
    """Model FLOPs of one update: convolutions and linear layers, attacks included."""

    def __init__(self, forward: int, recipe: Recipe, both: Attacks) -> None:
        self.forward, self.attacks = forward, both
        self.needs = needs(recipe.loss)
        self.batch = recipe.batch
        self.attacked = recipe.batch * ATTACKED_SHARE.get(recipe.loss, 1.0)
        self.outer = (recipe.out_batch or recipe.batch) if self.needs.out else 0

    def __call__(self, step: int) -> float:
        """A gradient step is a forward and a backward to the input; an update is three forwards."""
        passes = 3.0 * (self.batch + self.outer)
        if self.needs.near:
            passes += self.attacked * (2 * self.attacks.near.steps(step) + 1)
        if self.needs.far:
            passes += self.outer * (2 * self.attacks.far.steps(step) + 1)
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
