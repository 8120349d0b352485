"""The audit of a multi-label model: per label, and no number that asks for one answer per image."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from counterlens import diagnosis
from counterlens.classifier import Classifier
from counterlens.data.targets import Targets, targets_of
from counterlens.errors import InputError
from counterlens.images import ImageSet
from counterlens.label_spaces.matching import pair_classes
from counterlens.metrics.multilabel import METRICS, multilabel_numbers
from counterlens.predictions import predict
from counterlens.runs import Run, key_part, parse_gate, refuse_impossible, store_logits
from counterlens.workflows._shared.objects import headline
from counterlens.workflows._shared.session import facts as manifest_facts
from counterlens.workflows._shared.session import running
from counterlens.workflows.audit.gates import gate_rows
from counterlens.workflows.audit.settings import Settings

PROTOCOL = "several labels per image: the sigmoid of each logit, given from 0.5 on"
_ONE_ANSWER = (
    *("attack", "ood", "ood_attack", "radius_curve", "flips", "surrogate", "calibrate"),
    *("groups", "grid", "corruptions", "ood_score", "ood_fit", "ood_near"),
)
"""Options that ask for one answer per image."""


def is_multilabel(classifier: Classifier, images: ImageSet) -> bool:
    """Whether model and images have several labels per image; a mixture is refused."""
    several = targets_of(images) is not None
    if several and not classifier.multilabel:
        raise InputError(
            f"{images.name} gives each image any number of labels, but {classifier.name} one "
            "answer. Say that the logits are independent, Classifier(…, multilabel=True) or "
            '"multilabel": true in FILE.json; or give one class per image in a column label.'
        )
    if classifier.multilabel and not several:
        raise InputError(
            f"{classifier.name} gives each image any number of labels, but {images.name} has one "
            "class per image. Give a table with the column labels, names joined by |."
        )
    return several


def multilabel_audit(
    settings: Settings, folder: Path, name: str, classifier: Classifier, images: ImageSet
) -> Run:
    """One audit of a multi-label model, as a run of the command audit."""
    for option in _ONE_ANSWER:
        if getattr(settings, option):
            raise InputError(
                f"{option} asks for one answer per image, and {classifier.name} gives several "
                "labels. Audit one label as two classes: counterlens.one_label(model, "
                f"{classifier.classes[0]!r}), and the images by the same function."
            )
    rows, targets = _paired(classifier, images)
    gates = [parse_gate(text) for text in settings.require]
    refuse_impossible(gates, _possible(classifier))
    with running("audit", settings, name=name, folder=folder) as run:
        run.note(**manifest_facts(classifier, images, seed=settings.seed))
        run.note(
            model=headline(settings.model, classifier),
            classes=len(classifier.classes),
            protocol=PROTOCOL,
            preprocess=asdict(classifier.preprocess),
            notes={n.name: list(c) for n, c in ((images, images.notes),) if c},
        )
        run.write_table("matching", rows)
        findings = diagnosis.examine(classifier, images, seed=settings.seed)
        run.write_table("doctor", [asdict(finding) for finding in findings])
        if not settings.anyway:
            diagnosis.refuse_if_failed(findings)
        outputs = predict(
            classifier,
            images,
            batch=settings.batch or "auto",
            workers="auto" if settings.workers is None else settings.workers,
            progress=not settings.quiet,
        )
        logits = torch.as_tensor(outputs.logits)
        run.add_numbers(multilabel_numbers(logits, targets, classifier.classes, seed=settings.seed))
        store_logits(
            run, key_part(images.name), logits.numpy(), labels=[-1] * len(logits),
            ids=list(images.ids),
        )  # fmt: skip
        run.write_table("gates", gate_rows(settings, run.numbers))
    return run


def _paired(
    classifier: Classifier, images: ImageSet
) -> tuple[list[dict[str, str | None]], Targets]:
    """Which label of the data is which of the model, and the truth in the model's order.

    A label of the model that the data never names is unknown on every image, not absent.
    """
    theirs = targets_of(images)
    assert theirs is not None
    pairs = pair_classes(classifier.classes, images.classes)
    out = np.full((len(images), len(classifier.classes)), -1, dtype=np.int8)
    rows: list[dict[str, str | None]] = []
    for column, (label, (place, how)) in enumerate(zip(images.classes, pairs, strict=True)):
        known = classifier.classes[place] if place >= 0 else None
        rows.append({"data_class": label, "model_class": known, "how": how or "none"})
        if place >= 0:
            out[:, place] = theirs[:, column]
    if (out < 0).all():
        raise InputError(
            f"none of the labels of {images.name} ({', '.join(images.classes[:5])}) is a label of "
            f"{classifier.name} ({', '.join(classifier.classes[:5])})."
        )
    return rows, out


def _possible(classifier: Classifier) -> list[str]:
    labels = [f"label.{key_part(one)}.{metric}" for one in classifier.classes for metric in METRICS]
    return [*(f"multilabel.{m}" for m in ("auroc", "accuracy", "ece", "exact_match")), *labels]
