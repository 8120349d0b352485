"""Recipes: named settings of a training, one small YAML file per experiment.

A recipe may build on another (`base`), and any setting may be changed from outside
(`--set near.radius=0.5`). Every setting there is stands in `DEFAULTS`; others are refused.
"""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

from counterlens.errors import InputError, first_line
from counterlens.runs import read_text

_ATTACK = {
    "norm": "l2",
    "radius": 0.0,
    "steps": 7,
    "step_size": 0.1,
    "momentum": 0.9,
    "raises": "margin",
}

DEFAULTS: dict[str, Any] = {
    "name": "",
    "about": "",
    "loss": "plain",
    "near": dict(_ATTACK),
    "far": {**_ATTACK, "steps": 20},
    "out_weight": 1.0,
    "scale": None,
    "beta": 6.0,
    "kind": "pgd",
    "architecture": {"kind": "resnet18"},
    "start": None,
    "size": 32,
    "stored": None,
    "stream": "auto",
    "mean": [0.4914, 0.48216, 0.44653],
    "std": [0.24703, 0.24349, 0.26159],
    "augment": "cifar",
    "fill": None,
    "held_out": 2000,
    "held_out_rule": "hash",
    "batch": 128,
    "out_batch": None,
    "epochs": 100,
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "schedule": "step",
    "drops": [],
    "warmup": 0.0,
    "average": 0.0,
    "keep_best": False,
    "patience": None,
    "checkpoint_minutes": 1.0,
    "judge": {"every": 5, "norm": "l2", "radius": 0.5, "steps": 20, "probe_every": 20},
    "precision": "auto",
    "compile": "auto",
    "graph": "auto",
}
_OPEN = ("architecture",)  # sections whose keys another part checks


def names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(p.name.removesuffix(".yaml") for p in _folder().iterdir() if _is_recipe(p.name))


def about() -> dict[str, str]:
    """One line on each recipe."""
    return {name: str(load(name)["about"]) for name in names()}


def load(recipe: str, changes: Sequence[str] = ()) -> dict[str, Any]:
    """A recipe with its bases, the defaults and the given changes filled in.

    Args:
        recipe: a name, or the path of a YAML file.
        changes: `key=value`, keys of sections joined by a dot.
    """
    settings = copy.deepcopy(DEFAULTS)
    for layer in reversed(_layers(recipe)):
        _merge(settings, layer, where=recipe)
    change(settings, changes)
    settings["name"] = settings["name"] or Path(recipe).name.removesuffix(".yaml")
    return settings


def change(settings: dict[str, Any], changes: Sequence[str]) -> None:
    """Replace settings by `key=value`, keys of sections joined by a dot."""
    for one in changes:
        _merge(settings, nested([one]), where="--set")


def nested(changes: Sequence[str]) -> dict[str, Any]:
    """`key=value` texts as a dictionary; the last dot-joined key wins.

    >>> nested(["lr=0.2", "near.radius=1e-1"])
    {'lr': 0.2, 'near': {'radius': 0.1}}
    """
    found: dict[str, Any] = {}
    for one in changes:
        key, sign, value = one.partition("=")
        if not sign:
            raise InputError(f"--set got {one!r}, expected KEY=VALUE such as lr=0.2.")
        inner: Any = _value(value)
        for part in reversed(key.strip().split(".")):
            inner = {part: inner}
        found |= inner
    return found


def changes_of(settings: Mapping[str, Any]) -> list[str]:
    """What `--set` needs to make these settings from the recipe of their name."""
    return list(_differing(settings, load(settings["name"])))


def _differing(settings: Mapping[str, Any], base: Mapping[str, Any]) -> Iterator[str]:
    for key, value in settings.items():
        if key not in base or value == base[key]:
            continue
        if isinstance(value, dict) and isinstance(base[key], dict):
            yield from (f"{key}.{text}" for text in _differing(value, base[key]))
        else:
            yield f"{key}={json.dumps(value) if not isinstance(value, str) else value}"


def _value(text: str) -> Any:
    import yaml

    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"--set got the value {text[:80]!r}: {first_line(error)}.") from None
    if isinstance(value, str):  # YAML wants a dot in 1e-3; people don't
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _layers(recipe: str) -> list[dict[str, Any]]:
    layers, seen, name = [], set(), recipe
    while name:
        if name in seen:
            raise InputError(f"recipe {recipe} builds on itself through {name}.")
        seen.add(name)
        layer = _read(name)
        base = layer.pop("base", None) or ""
        if not isinstance(base, str):
            raise InputError(f"recipe {name} has the base {base!r}, expected the name of a recipe.")
        name = base
        layers.append(layer)
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


def _merge(settings: dict[str, Any], layer: Mapping[str, Any], *, where: str) -> None:
    for key, value in layer.items():
        if key not in settings:
            near = get_close_matches(str(key), settings, n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]}?" if near else f" Known: {', '.join(settings)}."
            raise InputError(f"{where} sets {key!r}, which no training has.{hint}")
        if key in _OPEN and isinstance(value, Mapping):
            # another kind of network has other options: they are not mixed
            fresh = value.get("kind", settings[key].get("kind")) != settings[key].get("kind")
            settings[key] = dict(value) if fresh else {**settings[key], **value}
        elif isinstance(settings[key], dict):
            if not isinstance(value, Mapping):
                raise InputError(f"{where} sets {key} to {value!r}, expected {key}.KEY=VALUE.")
            _merge(settings[key], value, where=f"{where}: {key}")
        else:
            settings[key] = value


def _is_recipe(name: str) -> bool:
    return name.endswith(".yaml") and not name.startswith("_")


def _folder() -> Any:
    return resources.files("counterlens") / "recipes"
