"""Families of models: names, their stated facts, and the tables of a comparison.

Paper: Hendrycks et al. 2021, Natural Adversarial Examples (section 4.2 and appendix: Figures 8 to
       11, 13 to 15 compare training schemes, squeeze and excitation, and sizes).
Differs: what sets models apart is read off them (`network_facts`); `--about` corrects it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from counterlens.errors import InputError
from counterlens.runs import Run

FamilyFacts = Mapping[str, Mapping[str, str]]
KEYS = ("family", "attention", "training")
MINED = "this model was a filter of the set, so its numbers here are low by construction"


def facts_of(texts: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Read `NAME: key=value, key=value`; names are those of the models.

    >>> facts_of(["a: training=PGD, family=resnet"], ["a", "b"])
    {'a': {'training': 'PGD', 'family': 'resnet'}}
    """
    out: dict[str, dict[str, str]] = {}
    for text in texts:
        fitting = [name for name in names if text.startswith(f"{name}:")]
        if not fitting:
            raise InputError(
                f"about is {text!r}, expected NAME: KEY=VALUE with NAME one of {', '.join(names)}."
            )
        name = max(fitting, key=len)
        for part in text[len(name) + 1 :].split(","):
            key, _, value = (piece.strip() for piece in part.partition("="))
            if key not in KEYS or not value:
                raise InputError(
                    f"about {name} says {part.strip()!r}, expected KEY=VALUE with KEY one of "
                    f"{', '.join(KEYS)}."
                )
            out.setdefault(name, {})[key] = value
    return out


def family_rows(
    names: Sequence[str], runs: Sequence[Run], about: FamilyFacts
) -> list[dict[str, Any]]:
    """One row per model whose audit noted what kind of network it is."""
    rows = []
    for name, run in zip(names, runs, strict=True):
        known = run.manifest.get("about")
        if isinstance(known, dict):
            rows.append({"model": name, **known, **about.get(name, {})})
    return rows


def response_rows(names: Sequence[str], runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Response-rate–accuracy curves of all models."""
    return [
        {"model": name, **row}
        for name, run in zip(names, runs, strict=True)
        for row in run.table("response_rate")
    ]
