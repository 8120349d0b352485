"""Open the generator that a workflow draws with; refuse at once one that does not fit."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from counterlens import zoo
from counterlens.classifier import Classifier
from counterlens.data.synthetic import captions
from counterlens.errors import InputError
from counterlens.generators.diffusion import model as latent
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.label_spaces.matching import ALIAS
from counterlens.runs import read_json

LARGER = 2.5
"""A classifier may see this many times the side of a shipped generator; beyond that every edit
would be of a thumbnail."""
SHOWN = 12
"""Classes of a generator that a message names."""


def open_generator(spec: str | None, device: torch.device, *, half: bool) -> LatentDiffusion:
    """The generator of a spec, or the first that is shipped."""
    if spec is None:
        spec = str(zoo.generator(_shipped()[0]))
    elif spec.startswith("zoo:"):
        spec = str(zoo.generator(spec.removeprefix("zoo:")))
    return latent.load(spec, device=device, precision="bfloat16" if half else "float32")


def check_graphs(model: LatentDiffusion, graphs: bool) -> None:
    """Refuse CUDA graphs where there is no CUDA device."""
    if graphs and model.device.type != "cuda":
        raise InputError(f"graphs needs a CUDA device, the generator is on {model.device}.")


def open_generator_for(
    classifiers: Sequence[Classifier], spec: str | None, *, half: bool
) -> LatentDiffusion:
    """The generator of a spec, or the shipped one that fits the classifiers best.

    A generator that is named is taken: its words and size are the user's choice.
    """
    if spec is None:
        name, why = best_shipped(classifiers)
        if why:
            raise InputError(f"{why} Name one that fits: generator=FOLDER (a diffusers folder).")
        spec = f"zoo:{name}"
    return open_generator(spec, classifiers[0].mean.device, half=half)


def best_shipped(classifiers: Sequence[Classifier]) -> tuple[str, str]:
    """The shipped generator nearest in size of those that fit; and why none does, else empty."""
    size = max(max(classifier.preprocess.size) for classifier in classifiers)
    cards = {name: read_json(zoo.generator(name) / "card.json") for name in _shipped()}
    near = sorted(cards, key=lambda name: abs(math.log(size / cards[name]["recipe"]["side"])))
    reasons = {
        name: next(filter(None, (misfit(one, name, cards[name]) for one in classifiers)), "")
        for name in near
    }
    return next(
        ((name, "") for name, why in reasons.items() if not why), (near[0], reasons[near[0]])
    )


def misfit(classifier: Classifier, name: str, card: Mapping[str, Any]) -> str:
    """Why a shipped generator does not fit a classifier, from its card alone; empty if it does.

    It has to draw at least 1 / LARGER of the classifier's size, and one of its classes or kinds
    (a generator that draws a Bengal cat draws a cat).
    """
    side, own = card["recipe"]["side"], [captions.word(one) for one in card["classes"]]
    names = [captions.word(one).lower() for one in classifier.classes]
    words = {ALIAS.get(word, word) for one in names for word in (one, *one.split())}
    size = max(classifier.preprocess.size)
    drawn = own if len(own) <= SHOWN else [*own[:SHOWN], f"… {len(own)} classes in all"]
    facts = f"The shipped generator zoo:{name} draws {', '.join(drawn)} at {side} pixels"
    if size > LARGER * side:
        return f"{facts}; {classifier.name} sees {size} pixels."
    kinds = [text.partition("=")[2] for text in card["recipe"].get("kinds", ())]
    known = {one.lower() for name in (*own, *kinds) for one in (name, name.split()[-1])}
    if words.isdisjoint(ALIAS.get(word, word) for word in known):
        return f"{facts}, and none of the classes of {classifier.name}."
    return ""


def _shipped() -> list[str]:
    """Names of the shipped generators; at least one."""
    if shipped := zoo.generators():
        return shipped
    raise InputError(
        "no generator is installed. Install one: pip install 'counterlens[zoo]' (32 pixels) or "
        "'counterlens[photos]' (128 pixels); or name a diffusers folder or hub id: "
        "generator=FOLDER; or train the small one: python -m counterlens.workflows.train.diffusion "
        "(docs/how-to/generators.md)."
    )
