"""Open the generator that a workflow draws with; refuse at once one that does not fit."""

from collections.abc import Sequence

import torch

from counterlens import zoo
from counterlens.classifier import Classifier
from counterlens.data.synthetic import captions
from counterlens.errors import InputError
from counterlens.generators.diffusion import model as latent
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.label_spaces.matching import ALIAS
from counterlens.runs import read_json

LARGER = 2
"""A classifier may see this many times the side of the shipped generator; beyond that every edit
would be of a thumbnail."""


def open_generator(spec: str | None, device: torch.device, *, half: bool) -> LatentDiffusion:
    """The generator of a spec, or the shipped one."""
    if spec is None:
        shipped = zoo.generators()
        if not shipped:
            raise InputError(
                "no generator is installed. Install the small one: pip install 'counterlens[zoo]'; "
                "or name a diffusers folder or hub id: generator=FOLDER; or train the small one: "
                "python -m counterlens.workflows.train.diffusion (docs/how-to/generators.md)."
            )
        spec = str(zoo.generator(shipped[0]))
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
    """The generator of a spec, or the shipped one where it fits the classifiers.

    A generator that is named is taken: its words and size are the user's choice.
    """
    why = next(filter(None, map(misfit, classifiers)), "") if spec is None else ""
    if why:
        raise InputError(f"{why} Name one that fits: generator=FOLDER (a diffusers folder).")
    return open_generator(spec, classifiers[0].mean.device, half=half)


def misfit(classifier: Classifier) -> str:
    """Why the shipped generator does not fit a classifier, from its card alone; empty if it does.

    It has to draw at least 1 / LARGER of the classifier's size, and one of its classes.
    """
    shipped = zoo.generators()
    if not shipped:
        return ""  # open_generator says what to do
    card = read_json(zoo.generator(shipped[0]) / "card.json")
    side, own = card["recipe"]["side"], [captions.word(name) for name in card["classes"]]
    names = [captions.word(name).lower() for name in classifier.classes]
    words = {ALIAS.get(word, word) for name in names for word in (name, *name.split())}
    size = max(classifier.preprocess.size)
    facts = f"The shipped generator zoo:{shipped[0]} draws {', '.join(own)} at {side} pixels"
    if size > LARGER * side:
        return f"{facts}; {classifier.name} sees {size} pixels."
    if words.isdisjoint(ALIAS.get(word, word) for word in own):
        return f"{facts}, and none of the classes of {classifier.name}."
    return ""
