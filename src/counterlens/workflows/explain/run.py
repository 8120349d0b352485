"""Explain: what would have to change, and where does the evidence lie?

One method at a time: counterfactuals by pixels or by a generator, activation maps, colour or frame
edits. Writes a run whose report shows the pictures side by side. The worst mistakes of an audit
become a chapter of its own report.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, cast

from counterlens.ball import Norm
from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals.pixel import STEPS, temperature_of
from counterlens.explanations.counterfactuals.similar_classes import SIMILAR_CLASSES
from counterlens.explanations.counterfactuals.targets import targets_of
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.notation import check_radius, parse_radius
from counterlens.report import render
from counterlens.runs import Number, Run, key_part
from counterlens.types import Preprocess, Probs
from counterlens.workflows._shared.generation.generator import open_generator_for
from counterlens.workflows._shared.objects import (
    headline,
    load_all,
    model_given,
    pictures_given,
    words,
)
from counterlens.workflows._shared.options import takes_by
from counterlens.workflows._shared.pictures import Given, Pictures, confidences_of, open_pictures
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import facts, logger, running
from counterlens.workflows.explain.cases import checked as checked_cases
from counterlens.workflows.explain.cases import open_editing
from counterlens.workflows.explain.chapter import WORST, Audit, add_chapter, radii_for
from counterlens.workflows.explain.diffusion import explain_diffusion
from counterlens.workflows.explain.dvce import explain_dvce
from counterlens.workflows.explain.edits import explain_colour, explain_frame
from counterlens.workflows.explain.job import Editing, ExplainJob
from counterlens.workflows.explain.maps import explain_maps
from counterlens.workflows.explain.options import (
    METHODS,
    DiffusionOptions,
    DvceOptions,
    ExplainOptions,
    PixelOptions,
)
from counterlens.workflows.explain.pixel import explain_pixel

EXPLAIN: Mapping[str, Callable[[ExplainJob, Any], dict[str, Number]]] = {
    "pixel": explain_pixel,
    "diffusion": lambda job, _: explain_diffusion(job),
    "dvce": explain_dvce,
    "cam": lambda job, _: explain_maps(job),
    "colour": lambda job, _: explain_colour(job),
    "frame": lambda job, _: explain_frame(job),
}


@takes_by(METHODS, default="pixel")
def explain(model: object, images: object = (), *, method: str, options: ExplainOptions) -> Result:
    """Explain what a model says of some pictures; the result shows itself in a notebook.

    pixel       the picture in a ball of pixels of which the model is surest (RATIO)
    diffusion   a generator changes what the picture shows, the background held (DiG-IN)
    dvce        guided sampling from the noised picture, a robust model helping
    cam         where the evidence for a class lies: Grad-CAM and HiResCAM
    colour      hues, saturations, grey and channel orders: which change the answer?
    frame       small shifts, scales and crops: which change the answer?

    Args:
        model: a spec, a Classifier or a torch module (see `as_classifier`), or the folder of an
            audit, whose worst mistakes are explained. Without `out` the run then lies in that
            folder and becomes a chapter of the audit's report.
        images: one or a list: files, Pillow images, arrays, tensors, (image, label), SPEC#ID,
            SPEC#NUMBER, SPEC#FROM:TO; or a whole SPEC or data set.
        method: one of the above.

    >>> import counterlens as cl
    >>> result = cl.explain("zoo:cifar10-plain-small", "sample:cifar10#3", method="cam", quiet=True)
    >>> [row["method"] for row in result.table("maps")]
    ['grad-cam', 'hires-cam']
    """
    radii = _check(options)
    call = _open(model, images, options)
    classifier = call.classifier
    if isinstance(options, PixelOptions):
        radii = _fitting(radii, options, call)
    call, editing = _editing(call, options)
    generator = _generator(options, classifier, editing)
    pictures = open_pictures(
        call.images, classifier, limit=options.limit, seed=options.seed,
        preprocess=Preprocess((generator.side, generator.side)) if generator else None,
    )  # fmt: skip
    probs = confidences_of(classifier, pictures)
    targets = _targets(call, pictures, probs, options, method)
    if editing:
        editing = checked_cases(
            editing, classifier, call.judges, pictures, probs, targets, seed=options.seed
        )
    folder = call.audit.folder() if call.audit and not options.out else None
    inputs = {"model": call.model, "images": call.named, "method": method}
    name = f"{key_part(classifier.name)}-{_short(pictures.ids)}"
    with running("explain", call.written, name=name, inputs=inputs, folder=folder) as run:
        _note(run, call, pictures, editing)
        job = ExplainJob(
            run, classifier, call.judges, pictures, probs, targets, options.seed, logger(options),
            radii=radii, editing=editing, generator=generator, robust=call.robust,
        )  # fmt: skip
        run.add_numbers(EXPLAIN[method](job, options))
        notes = _notes(job, options)
        if call.audit:
            notes += add_chapter(call.audit, job, method)
        run.write_table("notes", [{"note": note} for note in notes])
    if call.audit and folder:
        render(call.audit.run)  # with this as a chapter; nothing else of the audit is touched
        job.log(f"a chapter of {call.audit.run.folder / 'report.html'}")
    return Result(run)


def _editing(call: "_Call", options: ExplainOptions) -> "tuple[_Call, Editing | None]":
    """What edits by diffusion need, and the options with the generator's own guidance and steps."""
    if not isinstance(options, DiffusionOptions):
        return call, None
    editing = open_editing(options, call.classifier)
    guidance, steps = editing.sampling
    chain: dict[str, Any] = {"guidance": guidance, "sampling_steps": steps}
    return replace(call, written=replace(call.written, **chain)), editing


@dataclass(frozen=True)
class _Call:
    """What one call of explain is about, opened.

    Args:
        model, named: what stands for the model and for the images in the manifest.
        images: to be opened.
        written: the options with specs in place of objects.
    """

    model: str
    named: list[str]
    classifier: Classifier
    judges: tuple[Classifier, ...]
    robust: Classifier | None
    images: Sequence[Given]
    audit: Audit | None
    written: ExplainOptions


def _open(model: object, images: object, options: ExplainOptions) -> _Call:
    """Load models; of an audit also its worst mistakes, in place of images."""
    given: str | Classifier = model_given(model, options.device)
    wanted = pictures_given(images, options.limit, options.seed)
    named = [words(one) for one in wanted]
    judges = [model_given(one, options.device) for one in getattr(options, "judge", ())]
    helper = getattr(options, "robust", None)
    robust = [] if helper is None else [model_given(helper, options.device)]
    source, audit = words(given), None
    if isinstance(given, str) and (Path(given) / "run.json").is_file():
        if wanted:
            raise InputError(
                f"images are given with {given}, a run folder, of which the worst mistakes are "
                "explained. Leave the images out, or name a model."
            )
        audit = Audit.open(Path(given), options.train, trust=options.trust_remote_code)
        given = audit.model
        count = WORST if options.worst is None else options.worst
        wanted = audit.worst(count, options.slice_number)
    elif any(one is not None for one in (options.worst, options.train, options.slice_number)):
        raise InputError(
            "worst, slice and train need the folder of an audit in place of the model."
        )
    nets = load_all(
        [given, *judges, *robust],
        device=options.device,
        trust_remote_code=options.trust_remote_code,
    )
    if audit:
        audit.check_data(nets[0])
    return _Call(
        source, named, nets[0], tuple(nets[1 : 1 + len(judges)]), nets[-1] if robust else None,
        wanted, audit, _written(options, [words(one) for one in judges], map(words, robust)),
    )  # fmt: skip


def _written(
    options: ExplainOptions, judges: Sequence[str], robust: Iterable[str]
) -> ExplainOptions:
    """The options as the manifest holds them: specs in place of objects, texts of numbers."""
    changes: dict[str, Any] = {}
    if hasattr(options, "judge"):
        changes["judge"] = tuple(judges)
    if hasattr(options, "robust"):
        changes["robust"] = next(iter(robust), None)
    for name in ("target", "radius"):
        if hasattr(options, name):
            changes[name] = tuple(str(one) for one in getattr(options, name))
    return replace(options, **changes)


def _check(options: ExplainOptions) -> tuple[float, ...] | None:
    """Refuse what cannot work before anything is loaded; the radii of a search among pixels."""
    for name in ("steps", "sampling_steps"):
        count = getattr(options, name, 1)
        if count is not None and count < 1:
            raise InputError(f"{name.replace('_', ' ')} are {count}, expected 1 or more.")
    if not isinstance(options, PixelOptions):
        return None
    for given in options.radius:
        check_radius(str(given), options.norm, parse_radius(given))
    return tuple(sorted({parse_radius(given) for given in options.radius})) or None


def _fitting(
    radii: tuple[float, ...] | None, options: PixelOptions, call: _Call
) -> tuple[float, ...] | None:
    """The radii, none so large that every image lies within; of an audit two, if none is named."""
    size = call.classifier.channels * prod(call.classifier.preprocess.size)
    for radius in radii or ():
        check_radius(f"{radius:g}", options.norm, radius, size)
    if radii is None and call.audit:
        return radii_for(call.classifier, cast(Norm, options.norm))
    return radii


def _generator(
    options: ExplainOptions, classifier: Classifier, editing: Editing | None
) -> LatentDiffusion | None:
    """The generator that the method draws with, if it does."""
    if editing:
        return editing.model
    if isinstance(options, DvceOptions):
        model = open_generator_for([classifier], options.generator, half=options.half)
        if model.sampler:
            raise InputError(
                f"{model.name} draws in {model.sampler[1]} steps, and DVCE walks the second half "
                "of a long chain. Name a generator of many steps, or choose method='diffusion'."
            )
        return model
    return None


def _targets(
    call: _Call, pictures: Pictures, probs: Probs, options: ExplainOptions, method: str
) -> list[list[int]]:
    """The classes that each picture is explained for."""
    target = tuple(str(one) for one in getattr(options, "target", ()))
    counterfactual = method in ("pixel", "diffusion", "dvce")
    usual = ("true", "predicted") if call.audit else ("near",) if counterfactual else ("predicted",)
    target, classifier = target or usual, call.classifier
    similar = {w: SIMILAR_CLASSES[w](classifier) for w in target if w in SIMILAR_CLASSES}
    return targets_of(
        target, classifier.classes, probs, labels=pictures.labels, ids=pictures.ids,
        seed=options.seed, similar_classes=similar,
    )  # fmt: skip


def _note(run: Run, call: _Call, pictures: Pictures, editing: Editing | None) -> None:
    """The manifest's facts."""
    run.note(**facts(call.classifier, seed=call.written.seed))
    run.note(
        model=headline(call.model, call.classifier),
        data=_short(pictures.ids),
        temperature=temperature_of(call.classifier),
        **({"rounds": editing.settings.rounds} if editing else {}),
    )


def _notes(job: ExplainJob, options: ExplainOptions) -> list[str]:
    """Remarks for the report."""
    notes = list(job.pictures.notes)
    if isinstance(options, PixelOptions):
        notes += _explained(job)
        if options.steps < STEPS:
            notes.append(f"Quick search of {options.steps} steps. To refine it: --steps {STEPS}.")
    return notes


def _explained(job: ExplainJob) -> list[str]:
    """A sentence on targets that are the answer already."""
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
