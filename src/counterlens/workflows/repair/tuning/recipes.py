"""Settings of a fine-tuning by name: what `--with recipe:NAME` trains, and from which images.

A name is one of `NAMES`, or a recipe of `counterlens train`: of that one the loss and its attacks
are taken; the network, its size and its normalisation are those of the model.

Paper: Hendrycks et al. 2019 (oe2019); Madry et al. 2018 (madry2018); Augustin et al. 2020
       (ratio2020); Hendrycks et al. 2021 (nae2021) for noise, fgsm and pgd; Liu et al. 2021
       (jtt2021); Sagawa et al. 2020 (groupdro2020).
Differs: a few epochs from a trained network at a small rate, where the papers train from scratch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from counterlens.errors import InputError
from counterlens.losses import needs
from counterlens.workflows._shared.settings import as_dict, build, change, merge
from counterlens.workflows.audit.attacks.spec import parse_attack
from counterlens.workflows.train import plan, recipes
from counterlens.workflows.train.recipe import Recipe

PREFIX = "recipe:"
GENTLE: dict[str, Any] = {
    "epochs": 3, "lr": 0.005, "batch": 64, "schedule": "cosine", "augment": "crop-flip",
}  # fmt: skip
"""A trained network is changed, not trained anew."""
NAMES: dict[str, dict[str, Any]] = {
    "plain": {"loss": "plain"},
    "outlier-exposure": {"loss": "outlier-exposure"},
    "acet": {"loss": "acet"},
    "adversarial": {"loss": "adversarial"},
    "trades": {"loss": "trades"},
    "ratio": {"loss": "ratio"},
    "noise": {"loss": "random-strength", "kind": "noise"},
    "fgsm": {"loss": "random-strength", "kind": "fgsm"},
    "pgd": {"loss": "random-strength", "kind": "pgd"},
    "jtt": {"loss": "plain", "epochs": 5},
    "group-dro": {"loss": "plain", "epochs": 5},
    "pairs": {"loss": "plain"},
}
KINDS = ("jtt", "group-dro", "pairs")
AROUND_OUTSIDE = 2.0
"""Radius around out-distribution images as a multiple of that around the others (ratio2020)."""
STEPS = 5


@dataclass(frozen=True)
class Tuning:
    """One fine-tuning.

    Args:
        name: as it was asked for, with its prefix.
        kind: one of `KINDS`, or "loss" where the loss alone makes the difference.
        recipe: loss, attacks, epochs, rate.
        moving: whether batch norm follows the images even where they are few: attacked ones move
            the statistics so far that a network which holds them falls to chance.
    """

    name: str
    kind: str
    recipe: Recipe
    moving: bool = False


def is_tuning(name: str) -> bool:
    """Whether a remedy trains the whole network.

    >>> is_tuning("recipe:ratio"), is_tuning("dfr")
    (True, False)
    """
    return name.startswith(PREFIX)


def tuning(
    name: str, changes: Sequence[str], attacks: Sequence[str], out_data: str | None
) -> Tuning:
    """The settings of `recipe:NAME`.

    Args:
        name: with its prefix.
        changes: `key=value`, as in training.
        attacks: balls of the proof; the first is what a robust training trains for by default.
        out_data: set of out-distribution images to train on.
    """
    short = name.removeprefix(PREFIX)
    recipe = _named(short, attacks) if short in NAMES else _of_training(short)
    values = as_dict(recipe)
    change(Recipe, values, list(changes))
    recipe = build(Recipe, values)
    plan.check(recipe, out_data)
    if needs(recipe.loss).near and not recipe.near.radius:
        raise InputError(
            f"{name} needs the ball to train for: an attack of the proof, attack=['l2:0.25'], "
            "or changes=['near.radius=0.25']."
        )
    moving = needs(recipe.loss).near
    return Tuning(name, short if short in KINDS else "loss", recipe, moving)


def _named(short: str, attacks: Sequence[str]) -> Recipe:
    values = as_dict(Recipe())
    ball: dict[str, Any] = {"near": {"steps": STEPS, "step_size": None, "momentum": 0.0}}
    if short in ("noise", "fgsm", "pgd"):
        ball["near"] |= {"radius": 8 / 255, "norm": "linf"}
    elif attacks:
        first = parse_attack(attacks[0])
        ball["near"] |= {"radius": float(first.radius), "norm": first.norm}
        ball["far"] = {
            **ball["near"], "radius": AROUND_OUTSIDE * float(first.radius),
        }  # fmt: skip
    merge(Recipe, values, {**GENTLE, **NAMES[short], **ball, "name": short}, f"recipe {short}")
    return build(Recipe, values)


def _of_training(short: str) -> Recipe:
    try:
        recipe = recipes.load(short)
    except InputError as error:
        raise InputError(f"{error} Of repair: {', '.join(NAMES)}.") from None
    values = as_dict(recipe)
    merge(Recipe, values, GENTLE, f"recipe {short}")
    return build(Recipe, values)


def plain(one: Tuning) -> Tuning:
    """The placebo of a loss: as many updates on the same images by plain cross-entropy."""
    return replace(one, kind="loss", recipe=replace(one.recipe, loss="plain", loss_options={}))
