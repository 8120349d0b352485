"""Features in pixel space: where pictures drive one, and what they become when it is raised."""

from typing import Any

import torch

from counterlens.classifier import Classifier
from counterlens.explanations.cam import feature_saliency, overlay
from counterlens.explanations.features.directions import Direction
from counterlens.explanations.features.feature_attack import feature_attack
from counterlens.explanations.figure import Panel
from counterlens.models.parts import head
from counterlens.runs import Run, key_part
from counterlens.workflows._shared.figures import save, save_figure
from counterlens.workflows._shared.pictures import Pictures


def raised(
    run: Run, classifier: Classifier, pictures: Pictures, direction: Direction
) -> list[dict[str, Any]]:
    """Maps and feature attacks of a unit or component on pictures."""
    mapped = overlay(pictures.x, feature_saliency(classifier, pictures.x, direction.weight).cpu())
    made = feature_attack(classifier, pictures.x, direction)
    rows, grid = [], []
    for i, name in enumerate(pictures.ids):
        before, after = made.start[i].item(), made.activation[i].item()
        stem = f"{key(direction)}-{i:03d}"
        found = made.images[i].cpu()
        rows.append(
            {
                "kind": direction.kind,
                "unit": direction.number,
                "name": direction.name,
                "how": "feature attack",
                "id": name,
                "original": save(run, f"{stem}-original.png", pictures.x[i]),
                "map": save(run, f"{stem}-map.png", mapped[i]),
                "image": save(run, f"{stem}.png", found),
                "activation": after,
                "start": before,
                "votes": votes(classifier, direction.number) if direction.kind == "unit" else [],
            }
        )
        grid.append(
            [
                Panel(pictures.x[i], f"{name[-18:]}\n{before:.2f}"),
                Panel(mapped[i], "where"),
                Panel(found, f"raised\n{after:.2f}"),
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
