"""Cases of universal counterfactuals: captions, words and masks of each picture and target."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from counterlens import images
from counterlens.classifier import Classifier
from counterlens.data.synthetic import captions
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals.masks import SoftMask, check_mask, softened
from counterlens.explanations.counterfactuals.targets import class_named
from counterlens.explanations.counterfactuals.uvce import UVCE
from counterlens.generators.diffusion.words import replaced
from counterlens.models.captioner import load_captioner
from counterlens.models.salient import load_salient
from counterlens.models.segmenter import load_segmenter
from counterlens.runs import key_part
from counterlens.types import Preprocess, Probs
from counterlens.workflows._shared.generation.edit_settings import edited
from counterlens.workflows._shared.generation.generate import (
    SMALL,
    check_steps,
    sampling,
    seed_of,
)
from counterlens.workflows._shared.generation.generator import open_generator_for
from counterlens.workflows._shared.generation.vocabulary import own_word
from counterlens.workflows._shared.pictures import Pictures
from counterlens.workflows.explain.job import Editing
from counterlens.workflows.explain.options import DiffusionOptions

ROUNDS = 1
"""Further searches with a small generator: as many as two CPU cores make in four minutes."""
SAM, ATTENTION = "sam:", "attention"


@dataclass(frozen=True)
class Case:
    """One picture on its way to one class.

    Args:
        name: of its files.
        picture, target: which, and to which class of the explained classifier.
        kind: class; error, where the picture is what it shall be seen as; attribute, where two
            texts are set against each other.
        source, goal: captions of what is and of what shall be.
        words: which phrase of the one became which of the other.
        seed: of the cut-outs.
    """

    name: str
    picture: int
    target: int
    kind: str
    source: str
    goal: str
    words: tuple[str, str]
    seed: int


def open_editing(options: DiffusionOptions, classifier: Classifier) -> Editing:
    """Open the generator and what goes with it."""
    updates, rounds = options.updates, options.rounds
    faint = options.guidance is not None and not options.guidance >= 1
    if updates < 0 or (rounds or 0) < 0 or faint:
        raise InputError(
            f"updates are {updates}, rounds {rounds or 0}, guidance is {options.guidance}; "
            "expected 0 or more, 0 or more, and 1 or more."
        )
    device, captioner = classifier.mean.device, options.captioner
    model = open_generator_for([classifier], options.generator, half=options.half)
    phrases = load_captioner(captioner, device=device) if captioner else None
    if rounds is None:
        rounds = ROUNDS if model.side < SMALL and updates else UVCE.rounds
    guidance, steps = sampling(model, options.guidance, options.sampling_steps, UVCE.chain)
    chain = replace(UVCE.chain, steps=steps, updates=updates, guidance=guidance)
    settings = replace(UVCE, chain=chain, rounds=rounds, reference=options.reference)
    settings = edited(settings, options.changes)
    check_steps(model, settings.chain.steps)
    segment, masks = None, options.mask
    if any(name.startswith(SAM) for name in masks):
        if len(masks) > 1:
            raise InputError(f"{len(masks)} masks with {SAM} among them, expected it alone.")
        segment, masks = load_segmenter(masks[0].removeprefix(SAM), device=device), ()
    return Editing(model, settings, options.caption, phrases, masks, options.memory, segment,
                   sampling=(guidance, steps))  # fmt: skip


def checked(
    editing: Editing,
    classifier: Classifier,
    judges: Sequence[Classifier],
    pictures: Pictures,
    probs: Probs,
    targets: Sequence[Sequence[int]],
    *,
    seed: int,
) -> Editing:
    """Refuse what cannot work before a run is created; captions are fixed here."""
    ready = replace(editing, captions=tuple(_captions(editing, classifier, pictures, probs)))
    cases, _ = cases_of(ready, classifier, pictures, probs, targets, seed=seed)
    for judge in judges:
        places_of(judge, classifier, cases)
    read_masks(ready, classifier, pictures)
    return ready


def cases_of(
    editing: Editing,
    classifier: Classifier,
    pictures: Pictures,
    probs: Probs,
    targets: Sequence[Sequence[int]],
    *,
    seed: int,
) -> tuple[list[Case], list[str]]:
    """All cases with their captions, and notes on those that ask for nothing.

    A picture shows its label where that is known, and what the classifier says otherwise. Of a
    mistaken one the answer may be the target: then it is turned to what it was taken for.
    """
    written, classes = editing.captions, classifier.classes
    cases: list[Case] = []
    notes: list[str] = []
    for i, (name, wanted) in enumerate(zip(pictures.ids, targets, strict=True)):
        answer, label = int(probs[i].argmax()), pictures.labels[i]
        shown = label if label >= 0 else answer
        for target in wanted:
            if target == answer == shown:
                notes.append(f"{name} is left out: {classes[target]} is already "
                             "the answer.")  # fmt: skip
                continue
            own = _word(editing, classes[shown])
            was = own if own.lower() in written[i].lower() else phrase(classes[shown])
            words = (was, _word(editing, classes[target]))
            cases.append(
                Case(
                    f"{i:03d}-{key_part(str(target))}",
                    i,
                    target,
                    _kind(classifier, words),
                    written[i],
                    replaced(written[i], words),
                    words,
                    seed_of("uvce", seed, name, target),
                )
            )
    if not cases:
        raise InputError(
            f"{notes[0] if notes else 'nothing to change.'} Name another class: target=CLASS, or "
            "target=near."
        )
    return cases, notes


def phrase(name: str) -> str:
    """The words of a class as a caption holds them after its article.

    >>> phrase("n02690373 airliner"), phrase("a smiling face")
    ('airliner', 'smiling face')
    """
    word = captions.word(name)
    first, _, rest = word.partition(" ")
    return rest if rest and first.lower() in ("a", "an", "the") else word


def _word(editing: Editing, name: str) -> str:
    """A class in the generator's words; in its own where the generator was not trained on it."""
    return phrase(own_word(editing.model.card, name) or name)


def places_of(guide: Classifier, classifier: Classifier, cases: Sequence[Case]) -> list[int]:
    """The targets in a guide's numbering."""
    if guide is classifier:
        return [case.target for case in cases]
    places = [class_named(guide.classes, classifier.classes[case.target]) for case in cases]
    for place, case in zip(places, cases, strict=True):
        if place < 0:
            raise InputError(
                f"{guide.name} cannot guide: it has no class "
                f"{classifier.classes[case.target]!r}. Choose another judge=MODEL or target."
            )
    return places


def read_masks(editing: Editing, classifier: Classifier, pictures: Pictures) -> SoftMask | None:
    """The user's masks: one for all pictures, one for each, or a segmenter that makes them.

    Without any the set's own, if each picture has one; None leaves it to attention.
    """
    if editing.masks == (ATTENTION,) or editing.segment is not None:
        return None
    side = editing.model.side
    fit = replace(classifier.preprocess, size=(side, side), interpolation="bilinear")
    if not editing.masks:
        return _own_masks(pictures, fit)
    count = len(pictures)
    if len(editing.masks) not in (1, count):
        raise InputError(f"{len(editing.masks)} masks for {count} pictures, expected 1 or {count}.")
    missing = [name for name in editing.masks if not Path(name).is_file()]
    if missing:
        raise InputError(
            f"no mask {missing[0]}: there is no such file. Expected a picture, white on the object "
            "and black elsewhere, a segmenter as .onnx, sam:FOLDER, or attention."
        )
    if editing.masks[0].endswith(".onnx"):
        salient = (load_salient(editing.masks[0])(pictures.x) > 0.5).float()
        for one, name in zip(salient, pictures.ids, strict=True):
            check_mask(one[None], images=1, name=f"the segmenter's mask of {name}")
        return softened(salient)
    masks = [_ready(images.read(name), fit, str(name)) for name in editing.masks]
    return torch.cat(masks if len(masks) == count else masks * count)


def _own_masks(pictures: Pictures, fit: Preprocess) -> SoftMask | None:
    """The masks of the set, where each picture has one that shows an object and a background."""
    own = [mask for mask in pictures.masks if mask is not None]
    if not own or len(own) < len(pictures):
        return None
    white = [np.repeat(mask[..., None] * np.uint8(255), 3, axis=2) for mask in own]
    try:
        return torch.cat([_ready(one, fit, "the mask") for one in white])
    except InputError:  # empty or full: attention finds another
        return None


def _ready(pixels: images.Pixels, fit: Preprocess, name: str) -> SoftMask:
    """A mask picture, cut out as the classifier cuts, at the generator's size, with soft edges."""
    ready = images.prepare(pixels, fit)
    mask = torch.from_numpy(ready).float().mean(0)[None, None] / 255
    check_mask(mask, images=1, name=name)
    return softened(mask)


def _kind(classifier: Classifier, words: tuple[str, str]) -> str:
    if words[0] == words[1]:
        return "error"
    raw = classifier.card.get("zero_shot") and classifier.card.get("templates") == 1
    return "attribute" if raw and len(classifier.classes) == 2 else "class"


def _captions(
    editing: Editing, classifier: Classifier, pictures: Pictures, probs: Probs
) -> list[str]:
    """One caption per picture, the class in it."""
    count, classes = len(pictures), classifier.classes
    labels = [
        label if label >= 0 else int(row.argmax())
        for label, row in zip(pictures.labels, probs, strict=True)
    ]
    objects = [_word(editing, classes[k]) for k in labels]
    if editing.captions:
        if len(editing.captions) not in (1, count):
            raise InputError(
                f"{len(editing.captions)} captions for {count} pictures, expected 1 or {count}."
            )
        return (
            [*editing.captions] if len(editing.captions) == count else [*editing.captions] * count
        )
    if editing.captioner is None:
        return [captions.prompt(noun) for noun in objects]
    phrases = editing.captioner([images.to_pixels(x) for x in pictures.x])
    return [forced(text, noun) for text, noun in zip(phrases, objects, strict=True)]


def forced(text: str, noun: str) -> str:
    """A captioner's words with the class in them.

    >>> forced("tabby cat on a sofa", "cat"), forced("animal on a sofa", "cat")
    ('a photograph of a tabby cat on a sofa', 'a photograph of a cat, animal on a sofa')
    """
    try:
        replaced(text, (noun, noun))
    except InputError:
        return f"{captions.prompt(noun)}, {text}"
    return captions.prompt(text)
