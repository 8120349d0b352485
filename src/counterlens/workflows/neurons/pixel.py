"""Features in pixel space: where pictures drive one, and what they become when it is raised."""

from collections.abc import Sequence
from typing import Any

import torch

from counterlens.classifier import Classifier
from counterlens.explanations.cam import feature_saliency, overlay
from counterlens.explanations.counterfactuals.targets import class_index
from counterlens.explanations.features.directions import Direction, unit_direction
from counterlens.explanations.features.feature_attack import feature_attack
from counterlens.explanations.features.neurons import NeuronKind, NeuronPictures, neuron_pictures
from counterlens.explanations.figure import Panel
from counterlens.models.parts import head
from counterlens.runs import Number, Run, key_part
from counterlens.workflows._shared.figures import save, save_figure
from counterlens.workflows._shared.objects import pictures_given
from counterlens.workflows._shared.pictures import Pictures, open_pictures
from counterlens.workflows.neurons.job import FeatureRows, NeuronJob, NeuronWork
from counterlens.workflows.neurons.options import ShowOptions

COLUMNS = 8


def show(job: NeuronJob, options: ShowOptions) -> NeuronWork:
    """An image from nothing for each unit and logit; on pictures the units' maps and attacks."""
    net, units = job.classifier, list(options.unit)
    classes = [class_index(net.classes, str(name)) for name in options.logit]
    given = pictures_given(options.image, options.limit, options.seed)
    pictures = open_pictures(given, net, limit=options.limit, seed=options.seed) if given else None
    directions = [unit_direction(net, number) for number in units] if pictures else []

    def work(run: Run) -> tuple[FeatureRows, dict[str, Number]]:
        rows: FeatureRows = []
        panels: list[Panel] = []
        kinds: tuple[tuple[NeuronKind, list[int]], ...] = (("unit", units), ("logit", classes))
        for kind, numbers in kinds:
            if not numbers:
                continue
            job.log(f"{len(numbers)} {kind}s from nothing: {options.steps} steps")
            drawn = neuron_pictures(net, numbers, kind=kind, steps=options.steps, seed=options.seed)
            rows.extend(_rows(run, net, drawn, kind, numbers))
            panels.extend(_panels(net, drawn, kind, numbers))
        grid = [panels[at : at + COLUMNS] for at in range(0, len(panels), COLUMNS)]
        save_figure(run, "figure-000", grid, title=f"{net.name}: pictures from nothing")
        if pictures:
            rows += on_pictures(run, job, pictures, directions)
        return rows, {}

    return work


def on_pictures(
    run: Run, job: NeuronJob, pictures: Pictures, directions: Sequence[Direction]
) -> FeatureRows:
    """Where each picture drives each feature, and the feature attack."""
    rows: FeatureRows = []
    for direction in directions:
        job.log(f"{direction.name} on {len(pictures)} pictures")
        rows += raised(run, job.classifier, pictures, direction)
    return rows


def _panels(
    classifier: Classifier, drawn: NeuronPictures, kind: str, numbers: Sequence[int]
) -> list[Panel]:
    return [
        Panel(image.cpu(), f"{_name(classifier, kind, number)}\n{value:.2f}")
        for image, value, number in zip(
            drawn.images, drawn.activation.tolist(), numbers, strict=True
        )
    ]


def _name(classifier: Classifier, kind: str, number: int) -> str:
    return classifier.classes[number] if kind == "logit" else f"unit {number}"


def _rows(
    run: Run, classifier: Classifier, drawn: NeuronPictures, kind: str, numbers: Sequence[int]
) -> FeatureRows:
    return [
        {
            "kind": kind,
            "unit": number,
            "name": _name(classifier, kind, number),
            "how": "from nothing",
            "image": save(run, f"{kind}-{number}.png", drawn.images[k].cpu()),
            "activation": drawn.activation[k].item(),
            "start": drawn.start[k].item(),
            "votes": votes(classifier, number) if kind == "unit" else [],
        }
        for k, number in enumerate(numbers)
    ]


def raised(
    run: Run, classifier: Classifier, pictures: Pictures, direction: Direction
) -> list[dict[str, Any]]:
    """Maps and feature attacks of a unit or component on pictures."""
    mapped = overlay(pictures.x, feature_saliency(classifier, pictures.x, direction.weight).cpu())
    attacked = feature_attack(classifier, pictures.x, direction)
    rows, grid = [], []
    for i, name in enumerate(pictures.ids):
        before, after = attacked.start[i].item(), attacked.activation[i].item()
        stem = f"{key(direction)}-{i:03d}"
        image = attacked.images[i].cpu()
        rows.append(
            {
                "kind": direction.kind,
                "unit": direction.number,
                "name": direction.name,
                "how": "feature attack",
                "id": name,
                "original": save(run, f"{stem}-original.png", pictures.x[i]),
                "map": save(run, f"{stem}-map.png", mapped[i]),
                "image": save(run, f"{stem}.png", image),
                "activation": after,
                "start": before,
                "votes": votes(classifier, direction.number) if direction.kind == "unit" else [],
            }
        )
        grid.append(
            [
                Panel(pictures.x[i], f"{name}\n{before:.2f}"),
                Panel(mapped[i], "where"),
                Panel(image, f"raised\n{after:.2f}"),
            ]
        )
    title = f"{classifier.name}, {direction.name}"
    save_figure(run, f"figure-{key(direction)}", grid, title=title)
    return rows


def key(direction: Direction) -> str:
    """A direction's name as files and numbers have it: unit-3, cat-component-0.

    >>> key(Direction("tiger cat, component 0", "component", 0, torch.zeros(1)))
    'tiger_cat-component-0'
    """
    words = direction.name.replace(f"{direction.kind} ", f"{direction.kind}-").replace(", ", "-")
    return key_part(words)


def votes(classifier: Classifier, number: int) -> list[dict[str, Any]]:
    """The classes a unit speaks for most, by the weight of the last layer."""
    top = torch.topk(head(classifier).weight[:, number], min(3, len(classifier.classes)))
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return [{"class": classifier.classes[k], "weight": round(w, 4)} for k, w in pairs]
