"""Recipes: named settings of a training, one small YAML file per experiment.

A recipe may build on another (`base`), and any setting may be changed from outside
(`--set near.radius=0.5`). Every setting there is stands in `Recipe`; others are refused.
"""

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

from counterlens.errors import InputError, first_line
from counterlens.runs import read_text
from counterlens.workflows._shared.settings import as_dict, build, change, differing, merge
from counterlens.workflows.train.recipe import Recipe


def names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(p.name.removesuffix(".yaml") for p in _folder().iterdir() if _is_recipe(p.name))


def about() -> dict[str, str]:
    """One line on each recipe."""
    return {name: load(name).about for name in names()}


def load(recipe: str, changes: Sequence[str] = ()) -> Recipe:
    """A recipe with its bases, the defaults and the given changes filled in.

    Args:
        recipe: a name, or the path of a YAML file.
        changes: `key=value`, keys of sections joined by a dot.

    >>> load("cifar10-ratio-0.25", ["near.steps=7"]).near.steps
    7
    """
    values = as_dict(Recipe())
    for name, layer in reversed(_layers(recipe)):
        merge(Recipe, values, layer, f"recipe {name}")
    change(Recipe, values, changes)
    values["name"] = values["name"] or Path(recipe).name.removesuffix(".yaml")
    return build(Recipe, values)


def changes_of(settings: Mapping[str, Any]) -> list[str]:
    """What `--set` needs to make these settings, as a card holds them, from their recipe."""
    base = as_dict(load(settings["name"]))
    return [
        f"{key}={json.dumps(value) if not isinstance(value, str) else value}"
        for key, value in differing(settings, base)
    ]


def _layers(recipe: str) -> list[tuple[str, dict[str, Any]]]:
    """The recipe and what it builds on, each with its name."""
    layers, seen, name = [], set(), recipe
    while name:
        if name in seen:
            raise InputError(f"recipe {recipe} builds on itself through {name}.")
        seen.add(name)
        here, layer = name, _read(name)
        base = layer.pop("base", None) or ""
        if not isinstance(base, str):
            raise InputError(f"recipe {name} has the base {base!r}, expected the name of a recipe.")
        name = base
        layers.append((here, layer))
    return layers


def _read(recipe: str) -> dict[str, Any]:
    import yaml

    if recipe.endswith((".yaml", ".yml")):
        path = Path(recipe)
        text = read_text(path)
    else:
        file = _folder() / f"{recipe}.yaml"
        if not file.is_file():
            near = get_close_matches(recipe, ["finetune", *names()], n=3, cutoff=0.4)
            hint = f" Near: {', '.join(near)}." if near else ""
            raise InputError(f"no recipe {recipe!r}.{hint} List them: counterlens train --list.")
        text = file.read_text(encoding="utf-8")
    try:
        layer = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"recipe {recipe} is not YAML: {first_line(error)}.") from None
    if not isinstance(layer, dict):
        raise InputError(
            f"recipe {recipe} holds {type(layer).__name__}, expected key: value lines."
        )
    return layer


def _is_recipe(name: str) -> bool:
    return name.endswith(".yaml") and not name.startswith("_")


def _folder() -> Any:
    return resources.files("counterlens") / "recipes"
