"""Explain: what would have to change, and where did it look?

One method at a time: counterfactuals by pixels or by a generator, activation maps, colour or frame
edits. Writes a run whose report shows the pictures side by side. The worst mistakes of an audit
become a chapter of its own report.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any

import torch

from counterlens.ball import NORMS, Norm, check_radius
from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals import dvce
from counterlens.explanations.counterfactuals.pixel import (
    STEPS,
    confidences,
    rows_that_fit,
    temperature_of,
)
from counterlens.explanations.counterfactuals.similar_classes import SIMILAR_CLASSES
from counterlens.explanations.counterfactuals.targets import targets_of
from counterlens.explanations.counterfactuals.uvce import UVCE
from counterlens.generators.diffusion.cutouts import seen
from counterlens.models.sources.objects import as_classifier
from counterlens.models.weights import weights_hash
from counterlens.report import render
from counterlens.runs import Number, Run, key_part, new_folder
from counterlens.types import Preprocess, Probs
from counterlens.workflows._shared.objects import (
    headline,
    model_given,
    pictures_given,
    texts,
    words,
)
from counterlens.workflows._shared.pictures import Pictures, open_pictures
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import teller
from counterlens.workflows.explain.cases import checked as checked_cases
from counterlens.workflows.explain.cases import open_editing
from counterlens.workflows.explain.chapter import WORST, Audit, add_chapter, radii_for
from counterlens.workflows.explain.diffusion import explain_diffusion
from counterlens.workflows.explain.dvce import explain_dvce
from counterlens.workflows.explain.edits import explain_colour, explain_frame
from counterlens.workflows.explain.job import Job
from counterlens.workflows.explain.maps import explain_maps
from counterlens.workflows.explain.pixel import explain_pixel

METHODS: Mapping[str, Callable[[Job], dict[str, Number]]] = {
    "pixel": explain_pixel,
    "diffusion": explain_diffusion,
    "dvce": explain_dvce,
    "cam": explain_maps,
    "colour": explain_colour,
    "frame": explain_frame,
}
GENERATED = ("diffusion", "dvce")
QUICK_STEPS = 100
"""Steps of a search among pixels unless told otherwise: a first look; the paper takes 500."""


def explain(
    model: object,
    images: object = (),
    *,
    target: str | int | Sequence[str | int] = (),
    judge: object = (),
    method: str = "pixel",
    radius: str | float | Sequence[str | float] = (),
    norm: str = "l2",
    steps: int | None = None,
    generator: str | None = None,
    caption: str | Sequence[str] = (),
    captioner: str | None = None,
    mask: str | Sequence[str] = (),
    updates: int = UVCE.chain.updates,
    rounds: int | None = None,
    guidance: float = UVCE.chain.guidance,
    reference: bool = False,
    memory: str | None = None,
    robust: object = None,
    train: str | None = None,
    worst: int | None = None,
    limit: int | None = None,
    batch: int | None = None,
    out: Path | None = None,
    resume: bool = False,
    seed: int = 0,
    device: str = "auto",
    trust_remote_code: bool = False,
    quiet: bool = False,
) -> Result:
    """Explain what a model says of some pictures; the result shows itself in a notebook.

    Args:
        model: a spec, a Classifier or a torch module (see `as_classifier`), or the folder of an
            audit, whose worst mistakes are explained.
        images: one or a list: files, Pillow images, arrays, tensors, (image, label), SPEC#ID,
            SPEC#NUMBER, SPEC#FROM:TO; or a whole SPEC or data set.
        target: classes by name or number; true, predicted, near (near:head, near:wordnet),
            all, random. Without one: near
            for counterfactuals, predicted for maps, true and predicted for an audit's mistakes.
        judge: further classifiers that say whether they see the target too.
        radius: budgets; none: six, scaled to the size of the picture.
        steps: of the search among pixels (100; the paper takes 500), or of the generator's chain
            (20; with dvce 200, of which the second half is walked).
        generator: with diffusion: a diffusers folder or hub id; None takes the shipped one.
        caption, captioner: with diffusion: what the pictures show, or a model that says it; else
            "a photograph of a CLASS".
        mask: with diffusion: files, white on the thing; else by attention to its word.
        updates, guidance, memory: with diffusion: of the search, of the text, and the budget.
        rounds: with diffusion: further searches of pictures that are not 0.8 sure of the target;
            None takes 1 below 128 pixels, and 0, the paper's, above.
        reference: with diffusion: mix words as the paper's code does, faults included.
        robust: with dvce: a robust classifier whose gradients help.
        worst: with the folder of an audit: how many of its surest mistakes (8). Without `out` the
            run lies in that folder and becomes a chapter of the audit's report.
        train: with an audit: where the nearest images are sought; else its calibration images.
    """
    usual = {"pixel": QUICK_STEPS, "diffusion": UVCE.chain.steps, "dvce": dvce.PAPER.steps}
    steps = usual.get(method, STEPS) if steps is None else steps
    radii, checked = _check(method, norm, texts(radius), steps)
    model, wanted = model_given(model, device), pictures_given(images, limit, seed)
    target, caption, mask = tuple(map(str, texts(target))), texts(caption), texts(mask)
    robust = robust and model_given(robust, device)
    helper = words(robust) if robust else None
    judges = [model_given(one, device) for one in texts(judge)]
    settings: dict[str, Any] = {
        "model": words(model),
        "images": [words(one) for one in wanted],
        "target": list(target),
        "judge": [words(one) for one in judges],
        "method": method,
        "radius": list(radii or ()),
        "norm": norm,
        "steps": steps,
        **(
            {
                "generator": generator,
                "caption": list(caption),
                "captioner": captioner,
                "mask": list(mask),
                "updates": updates,
                **({} if rounds is None else {"rounds": rounds}),
                "guidance": guidance,
                "reference": reference,
            }
            if method == "diffusion"
            else {}
        ),
        **({"generator": generator, "robust": helper} if method == "dvce" else {}),
        **({"train": train} if train else {}),
        "worst": worst,
        "limit": limit,
        "seed": seed,
    }
    audit = None
    if isinstance(model, str) and (Path(model) / "run.json").is_file():
        audit = Audit.open(Path(model), train, trust=trust_remote_code)
        model, wanted = audit.model, audit.worst(WORST if worst is None else worst)
        target = target or ("true", "predicted")
    elif worst is not None or train is not None:
        raise InputError("--worst and --train need the folder of an audit in place of the model.")
    helpers = [robust] if robust and method == "dvce" else []
    nets = load_all([model, *judges, *helpers], device=device, trust_remote_code=trust_remote_code)
    classifier, opened = nets[0], nets[: 1 + len(judges)]
    for one in radii or ():
        check_radius(
            f"{one:g}", checked, one, classifier.channels * prod(classifier.preprocess.size)
        )
    if audit:
        audit.check_data(classifier)
    if audit and radii is None:
        radii = radii_for(classifier, checked)
    editing = None
    if method in GENERATED:
        editing = open_editing(
            generator, classifier, caption=caption, captioner=captioner, mask=mask, steps=steps,
            updates=updates, rounds=rounds, guidance=guidance, reference=reference, memory=memory,
        )  # fmt: skip
    fit = Preprocess((editing.model.side, editing.model.side)) if editing else None
    pictures = open_pictures(wanted, classifier, limit=limit, seed=seed, preprocess=fit)
    probs = ask(classifier, pictures)
    target = target or (("near",) if method in ("pixel", *GENERATED) else ("predicted",))
    targets = targets_of(
        target, classifier.classes, probs, labels=pictures.labels, ids=pictures.ids, seed=seed,
        similar_classes={w: SIMILAR_CLASSES[w](classifier) for w in target if w in SIMILAR_CLASSES},
    )  # fmt: skip
    if editing and method == "diffusion":
        editing = checked_cases(
            editing, classifier, tuple(opened[1:]), pictures, probs, targets, seed=seed
        )
    new = f"{key_part(classifier.name)}-{_short(pictures.ids)}"
    folder = out or (audit.folder() if audit else new_folder("explain", new))
    run = Run.create(folder, "explain", settings, resume=resume)
    run.note(
        model=headline(settings["model"], classifier),
        data=_short(pictures.ids),
        weights_hash=weights_hash(classifier),
        temperature=temperature_of(classifier),
        device=str(classifier.mean.device),
        seed=seed,
        **({"rounds": editing.settings.rounds} if editing and method == "diffusion" else {}),
    )
    job = Job(
        run, classifier, tuple(opened[1:]), pictures, probs, targets,
        norm=checked, radii=radii, steps=steps, seed=seed, batch=batch,
        say=teller(quiet), editing=editing, robust=nets[-1] if helpers else None,
    )  # fmt: skip
    run.add_numbers(METHODS[method](job))
    notes = [*pictures.notes, *(_explained(job) if method == "pixel" else ())]
    if method == "pixel" and steps < STEPS:
        notes.append(f"Quick search of {steps} steps. To refine it: --steps {STEPS}.")
    if audit:
        notes += add_chapter(audit, job, method)
    run.write_table("notes", [{"note": note} for note in notes])
    render(run)
    run.finish()
    if audit and out is None:
        render(audit.run)  # with this as a chapter; nothing else of the audit is touched
        job.say(f"a chapter of {audit.run.folder / 'report.html'}")
    return Result(run)


def load_all(
    specs: Sequence[object], *, device: str = "auto", trust_remote_code: bool = False
) -> list[Classifier]:
    """The classifiers of some specs and objects."""
    return [as_classifier(one, device=device, trust_remote_code=trust_remote_code) for one in specs]


def ask(classifier: Classifier, pictures: Pictures) -> Probs:
    """What a classifier says of each picture, after temperature."""
    size = rows_that_fit(pictures.x, classifier.mean.device)
    parts = torch.split(pictures.x, size)
    if pictures.x.shape[2:] != classifier.preprocess.size:  # they are of a generator's size
        parts = tuple(seen(part, classifier.preprocess.size[0]) for part in parts)
    return torch.cat([confidences(classifier, part) for part in parts])


def parse_radius(text: str | float) -> float:
    """A budget: 1.5 or 8/255, above 0.

    >>> parse_radius("1.5"), round(parse_radius("8/255"), 4)
    (1.5, 0.0314)
    """
    try:
        value = float(Fraction(text)) if isinstance(text, str) else float(text)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"radius is {text!r}, expected a number such as 1.5 or 8/255.") from None
    if not 0 < value < float("inf"):
        raise InputError(f"radius is {text}, expected more than 0.")
    return value


def _check(
    method: str, norm: str, radius: Sequence[str | float], steps: int
) -> tuple[tuple[float, ...] | None, Norm]:
    """Refuse what cannot work before anything is loaded."""
    if method not in METHODS:
        raise InputError(f"method is {method!r}, expected one of {', '.join(METHODS)}.")
    if norm not in NORMS:
        raise InputError(f"norm is {norm!r}, expected one of {', '.join(NORMS)}.")
    if steps < 1:
        raise InputError(f"steps are {steps}, expected 1 or more.")
    radii = tuple(sorted({parse_radius(text) for text in radius})) or None
    for text in radius:
        check_radius(str(text), norm, parse_radius(text))
    return radii, norm


def _explained(job: Job) -> list[str]:
    """A sentence on targets that a reader could stumble over."""
    same = [
        f"{job.classifier.classes[t]} ({name})"
        for name, wanted, row in zip(job.pictures.ids, job.targets, job.probs, strict=True)
        for t in wanted
        if t == int(row.argmax())
    ]
    if not same:
        return []
    some = ", ".join(same[:3]) + (f" and {len(same) - 3} more" if len(same) > 3 else "")
    return [
        f"Already the answer: {some}. There the change shows what would make the model surer of it."
    ]


def _short(ids: Sequence[str]) -> str:
    return ids[0] if len(ids) == 1 else f"{len(ids)}-pictures"
