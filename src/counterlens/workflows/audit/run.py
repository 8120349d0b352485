"""Audit: measure a classifier on a set of images and write one honest report.

One pass over each set; every number is a function of the logits it leaves.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from counterlens import diagnosis
from counterlens.classifier import Classifier
from counterlens.data import from_images, mined_with, name_of
from counterlens.errors import InputError
from counterlens.explanations.edits.sweeps import edit_numbers
from counterlens.images import ImageSet, fitting_size
from counterlens.models.weights import weights_hash
from counterlens.notation import seconds, split_attacks
from counterlens.runs import Run, key_part, new_folder
from counterlens.search import Robustness
from counterlens.workflows._shared.names import named
from counterlens.workflows._shared.objects import Objects, headline, texts
from counterlens.workflows._shared.options import shared, takes
from counterlens.workflows._shared.pipeline import reporting
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import facts as manifest_facts
from counterlens.workflows._shared.session import running
from counterlens.workflows.audit import groups, operating, slices
from counterlens.workflows.audit.attacks.grids import check_grids, grid_accuracy
from counterlens.workflows.audit.attacks.radius import radius_curves
from counterlens.workflows.audit.attacks.robustness import robustness
from counterlens.workflows.audit.attacks.spec import parse_attack
from counterlens.workflows.audit.attacks.surrogates import Surrogate, surrogates
from counterlens.workflows.audit.backgrounds import open_object_masks, write_backgrounds
from counterlens.workflows.audit.corruptions import check_corruptions, corruption_numbers
from counterlens.workflows.audit.gates import check_requirements, gate_rows
from counterlens.workflows.audit.heads import write_heads
from counterlens.workflows.audit.labelled import background_gap, labelled_numbers
from counterlens.workflows.audit.multilabel import is_multilabel, multilabel_audit
from counterlens.workflows.audit.network_facts import network_facts
from counterlens.workflows.audit.ood.detection import detection
from counterlens.workflows.audit.ood.scores import (
    FitImages,
    check_scores,
    check_unknown,
    fit_images,
    open_bench,
    score_sets,
)
from counterlens.workflows.audit.ood.worst import worst_ood
from counterlens.workflows.audit.options import AuditOptions
from counterlens.workflows.audit.outputs import Outputs
from counterlens.workflows.audit.protocol import Inside, choose
from counterlens.workflows.audit.settings import Settings
from counterlens.workflows.compare import families
from counterlens.workflows.compare.run import compare


@takes(AuditOptions)
def audit(models: object, data: object, options: AuditOptions) -> Result:
    """Measure a model, or several, on labelled images: one result with numbers and a report.

    Several models get a run each, inside `out`, and a comparison of them beside it, which is the
    result; the audits are its `parts`. Under attack they attack each other: adversarial images of
    one are tried on the others.

    Args:
        models: one model or a list of them, or a mapping that names them. A model is a spec
            (NAME=SPEC calls it by a name of your own), a Classifier, or a torch module with
            its classes and size; see `as_classifier`.
        data: a spec, or an object: a torch Dataset or DataLoader, a Hugging Face dataset, (images,
            labels) arrays; see `as_image_set`. So are `calibrate`, and the sets of `ood`: a list,
            or a mapping that names them.

    >>> import counterlens as cl
    >>> result = cl.audit("zoo:cifar10-plain-small", "sample:cifar10", limit=40, quiet=True)
    >>> result.numbers["accuracy.top1"].n
    40
    """
    objects = Objects(options.device, options.limit, options.seed, options.trust_remote_code)
    specs = objects.model_specs(models)
    facts = families.facts_of(options.about, [named(model)[0] for model in specs])
    settings = _settings(specs[0], data, options, objects)
    _check(settings)
    images = settings.data
    if len(specs) == 1:
        folder = options.out or new_folder("audit", f"{_short(specs[0])}-{name_of(images)}")
        with reporting(options.junit, options.log_to) as runs:
            runs.append(_audit(settings, folder, facts, objects))
        return Result(runs[0])
    parent = options.out or new_folder("audit", f"{len(specs)}-models-{name_of(images)}")
    with reporting(options.junit, options.log_to) as runs:
        for number, model in enumerate(specs, 1):
            folder = parent / f"{number}-{_short(model)}"
            if options.resume and (folder / "DONE").exists():
                runs.append(Run.open(folder))
                continue
            peers = tuple(other for other in specs if other != model) if settings.attack else ()
            runs.append(_audit(replace(settings, model=model, peers=peers), folder, facts, objects))
    side_by_side = parent / "compare"
    parts = tuple(map(Result, runs))
    if options.resume and (side_by_side / "DONE").exists():
        return Result(Run.open(side_by_side), parts)
    return compare(*parts, out=side_by_side)


def _settings(model: str, data: object, options: AuditOptions, objects: Objects) -> Settings:
    """The options with specs in place of objects."""
    given = shared(options, Settings)
    given["ood"] = objects.set_specs(options.ood)
    given["calibrate"] = None if options.calibrate is None else objects.set_spec(options.calibrate)
    given["ood_fit"] = None if options.ood_fit is None else objects.set_spec(options.ood_fit)
    given["attack"] = split_attacks(options.attack)
    surrogate = texts(options.surrogate)
    given["groups"] = groups.group_specs(options.groups, objects)
    given["surrogate"] = tuple(objects.model_specs(surrogate)) if surrogate else ()
    return Settings(model=model, data=objects.set_spec(data), **given)


def _check_balls(settings: Settings, numbers: float = float("inf")) -> None:
    """Refuse balls that cannot be read, or that hold every image of so many numbers."""
    for ball in (*settings.attack, settings.ood_attack, settings.radius_curve):
        if ball is not None:
            parse_attack(ball, numbers)


def _check(settings: Settings) -> None:
    """Refuse what cannot work before anything is loaded or written."""
    _check_balls(settings)
    if settings.surrogate and not settings.attack:
        raise InputError(
            "a surrogate is given without an attack, which alone would use it. Give one, for "
            "example attack=['l2:0.5']."
        )
    seconds(settings.budget)
    names = [name_of(spec) for spec in (settings.data, *settings.ood)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            f"two sets are named {twice[0]!r}. Name one of them yourself: ood=NAME=SPEC."
        )
    operating.check_operating(settings)
    groups.check_groups(settings)
    check_scores(settings, names[1:])
    check_corruptions(settings)
    check_grids(settings)
    check_requirements(settings)
    if settings.limit is not None and settings.limit < 1:
        raise InputError(f"limit is {settings.limit}, expected 1 or more.")


def _short(model: str) -> str:
    name, spec = named(model)
    if spec != model:
        return key_part(name)
    return key_part(Path(model.split("@")[0].split(":")[-1]).name) or "model"


def _audit(settings: Settings, folder: Path, facts: families.FamilyFacts, objects: Objects) -> Run:
    name, spec = named(settings.model)
    classifier = objects.load(settings.model)
    size, channels = fitting_size(classifier.preprocess), classifier.channels
    _check_balls(settings, channels * math.prod(classifier.preprocess.size))

    def opened(spec: str) -> ImageSet:
        return objects.open(spec, size=size, channels=channels)

    images = opened(settings.data)
    if is_multilabel(classifier, images):
        return multilabel_audit(settings, folder, name, classifier, images)
    protocol = choose(classifier, images)
    outside = [opened(from_images(spec, settings.data)) for spec in settings.ood]
    held = opened(settings.calibrate) if settings.calibrate else None
    operating.check_classes(settings, protocol.classes)
    columns = groups.open_columns(settings, images, objects)
    groups.check_values(settings, columns)
    fitted = opened(settings.ood_fit) if settings.ood_fit else None
    check_unknown(classifier, images, outside, settings.anyway)
    fit_on = fit_images(settings, classifier, images, held, fitted)
    encoder = slices.open_encoder(settings, classifier)
    masks = open_object_masks(settings, images)
    with running("audit", settings, name=name, folder=folder) as run:
        weights = weights_hash(classifier)
        mined = [s for s in (settings.data, *settings.ood) if weights in mined_with(s)]
        run.note(
            **manifest_facts(classifier, images, *outside, seed=settings.seed),
            spec=spec,
            about={**network_facts(classifier), "filter": bool(mined), **facts.get(name, {})},
            matched=protocol.matching.summary(),
            preprocess=asdict(classifier.preprocess),
            **_fingerprints(calibration=held, ood_fit=fitted),
        )
        run.note(
            model=headline(settings.model, classifier),
            classes=len(protocol.classes),
            notes=_notes(classifier, [images, *outside], mined),
        )
        run.write_table("matching", protocol.matching.table())
        _examine(run, classifier, images, settings)
        outputs_of = Outputs(run, classifier, settings)
        inside, reported = labelled_numbers(outputs_of, images, protocol, held)
        write_heads(outputs_of, images, protocol, reported)
        run.add_numbers(background_gap(outputs_of, images))
        if settings.flips:
            run.add_numbers(edit_numbers(classifier, images, points=settings.flips))
        for other in outside:
            detection(outputs_of, other, inside)
        _scores_and_corruptions(outputs_of, images, outside, inside, reported, fit_on)
        others, rows = surrogates(settings, classifier, images, protocol, objects.load)
        run.write_table("surrogates", rows)
        _attacks(outputs_of, images, outside, inside, reported, others)
        write_backgrounds(run, classifier, images, masks, protocol, reported, settings)
        slices.write_slices(run, encoder, images, protocol.classes, settings)
        groups.write_groups(run, columns, images, settings.group_width)
        sources = (outputs_of, classifier, protocol, images, held)
        operating.write_operating(run, sources, inside, columns, settings)
        run.write_table("gates", gate_rows(settings, run.numbers))
    return run


def _fingerprints(**sets: ImageSet | None) -> dict[str, str]:
    """What identifies the sets that were given, by what they are for."""
    return {f"{use}_fingerprint": one.fingerprint for use, one in sets.items() if one}


def _examine(run: Run, classifier: Classifier, images: ImageSet, settings: Settings) -> None:
    """What the doctor says; a failed check ends the audit, unless it is to go on anyway."""
    findings = diagnosis.examine(classifier, images, seed=settings.seed)
    run.write_table("doctor", [asdict(finding) for finding in findings])
    if not settings.anyway:
        diagnosis.refuse_if_failed(findings)


def _notes(
    classifier: Classifier, sets: Sequence[ImageSet], mined: Sequence[str]
) -> dict[str, object]:
    """What the report states of the sets and of the model."""
    notes: dict[str, object] = {name_of(spec): [families.MINED] for spec in mined}
    notes |= {one.name: list(one.notes) for one in sets if one.notes}
    card = classifier.card.get("notes")
    return notes | ({classifier.name: card} if card else {})


def _scores_and_corruptions(
    outputs_of: Outputs,
    images: ImageSet,
    outside: Sequence[ImageSet],
    inside: Inside,
    reported: Int64[np.ndarray, "n"],
    fit_on: FitImages | None,
) -> None:
    """Several OOD scores, and accuracy under corruptions, where requested."""
    run, classifier, settings = outputs_of.run, outputs_of.classifier, outputs_of.settings
    if fit_on:
        known = (images, reported, inside.outputs)
        bench = open_bench(run, classifier, settings, known, fit_on, outputs_of)
        score_sets(bench, settings, inside, [(o, outputs_of(o, "ood")) for o in outside])
    if settings.corruptions:
        clean = (inside.logits.argmax(1) == inside.labels).numpy()
        corruption_numbers(run, classifier, images, inside.protocol, reported, clean, settings)


def _attacks(
    outputs_of: Outputs,
    images: ImageSet,
    outside: Sequence[ImageSet],
    inside: Inside,
    reported: Int64[np.ndarray, "n"],
    others: Sequence[Surrogate],
) -> None:
    """Robust accuracy, worst-case OOD detection and confidence against radius, where requested."""
    run, classifier, settings = outputs_of.run, outputs_of.classifier, outputs_of.settings
    quiet = settings.quiet
    if settings.grid:
        grid_accuracy(run, classifier, images, inside.protocol, reported, settings)
    smaller: dict[str, Robustness] = {}
    for text in settings.attack:
        norm = parse_attack(text).norm
        smaller[norm] = robustness(
            *(run, classifier, images, inside.protocol, reported, text, settings, others),
            smaller.get(norm),
        )
    if not (settings.ood_attack or settings.radius_curve):
        return
    views = [(other, inside.against(other, classifier)) for other in outside]
    if settings.ood_attack:
        for other, view in views:
            worst_ood(run, classifier, other, view, settings.ood_attack, settings, quiet=quiet)
    if settings.radius_curve:
        radius_curves(run, classifier, images, reported, inside, views, settings, quiet=quiet)
