"""Spuriousness: which features of a model live on the background, over a set with masks.

For every class the units that speak for it most (or components of classes, or given units); for
each the images of the class that drive it most; there the share of its HiResCAM outside the object.

Paper: Augustin et al. 2024 (digin2024, Table 2).
Differs: real images in place of counterfactuals; no averaging of maps over augmented images; images
       whose object vanished or fills the picture are left out by area, not by eye. Maps come from
       the last layer with a grid of at least 7 × 7, the paper's size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.explanations.cam import feature_maps, feature_saliency, overlay
from counterlens.explanations.features.directions import Direction, strongest_units, unit_direction
from counterlens.explanations.figure import Panel
from counterlens.metrics.saliency import shares_outside
from counterlens.metrics.spurious import Place, placed, ranked, verdicts
from counterlens.models.parts import CamLayer, cam_layer, head
from counterlens.runs import Number, Run
from counterlens.types import Images
from counterlens.workflows._shared.figures import save, save_figure
from counterlens.workflows._shared.session import Say
from counterlens.workflows.neurons.data import Known
from counterlens.workflows.neurons.object_masks import Masks
from counterlens.workflows.neurons.pixel import key
from counterlens.workflows.neurons.scan import pixels

PER_CLASS = 5
FEWEST, SHARE = 8, 0.25
"""A feature is judged on the images of its class that drive it most: a quarter, at least eight."""
FINE = 7
"""Rows and columns of the maps, where the network has such a layer: on a 4 × 4 grid every place
sees most of a 32-pixel picture, and no map can tell the thing from what is around it."""
SHOWN, PICTURES = 8, 4
PART = 64


@dataclass(frozen=True)
class Asked:
    """One feature and the images it is judged on, those that drive it most first."""

    direction: Direction
    target: int | None
    rows: tuple[int, ...]
    activation: float


@dataclass(frozen=True)
class Judged:
    """One row of the table."""

    asked: Asked
    place: Place
    verdict: str


def features_of_classes(classifier: Classifier, known: Known, masks: Masks) -> list[Asked]:
    """The units that speak for each class most."""
    found = []
    for target in sorted(set(known.classes[masks.usable].tolist())):
        here = known.classes == target
        for number in strongest_units(classifier, known.features[here], target, PER_CLASS):
            one = ask(unit_direction(classifier, number), target, known, masks)
            found += [one] if one else []
    if not found:
        raise InputError(
            f"no class has {FEWEST} images with a usable mask. Give more --data, or units by "
            "--unit NUMBER, which are judged over all images."
        )
    return found


def ask(direction: Direction, target: int | None, known: Known, masks: Masks) -> Asked | None:
    """A feature with the images that drive it most; None where there are too few.

    Args:
        target: judge on images of this class alone; None: on all.
    """
    here = masks.usable if target is None else masks.usable & (known.classes == target)
    rows = torch.nonzero(here).flatten()
    if len(rows) < FEWEST:
        return None
    values = direction.values(known.features[rows].double())
    count = max(FEWEST, int(SHARE * len(rows)))
    order = torch.argsort(values, descending=True, stable=True)[:count]
    chosen = tuple(rows[order].tolist())
    return Asked(direction, target, chosen, values[order].mean().item())


def judge(
    classifier: Classifier,
    asked: Sequence[Asked],
    masks: Masks,
    look: Callable[[Sequence[int]], Images],
    *,
    say: Say,
    seed: int = 0,
) -> list[Judged]:
    """Where each feature lives, in the order of the table.

    Args:
        look: images by their places in the set.
    """
    layer = cam_layer(classifier, least=FINE)
    wanted: dict[int, list[int]] = {}
    for k, one in enumerate(asked):
        for i in one.rows:
            wanted.setdefault(i, []).append(k)
    shares: dict[tuple[int, int], float] = {}
    order = sorted(wanted, key=lambda i: (wanted[i], i))  # images that need the same maps together
    for at in range(0, len(order), PART):
        rows = order[at : at + PART]
        some = sorted({k for i in rows for k in wanted[i]})
        weights = torch.stack([asked[k].direction.weight for k in some])
        part = _shares(classifier, look(rows), weights, masks, rows, layer)
        for b, i in enumerate(rows):
            shares |= {(some[m], i): part[b, m].item() for m in range(len(some))}
        if at and at % (16 * PART) == 0:
            say(f"  maps of {at} of {len(order)} images")
    area = 1 - masks.masks.flatten(1).double().mean(1)
    places = [
        placed(
            torch.tensor([shares[k, i] for i in one.rows]).double().numpy(),
            area[list(one.rows)].numpy(),
            seed=seed,
        )
        for k, one in enumerate(asked)
    ]
    there = [(one, place) for one, place in zip(asked, places, strict=True) if place is not None]
    if not there:
        raise InputError("no feature has a map with any mass, so there is nothing to rank.")
    found = [place for _, place in there]
    sure = verdicts(found)
    return [Judged(there[i][0], found[i], sure[i]) for i in ranked(found)]


def _shares(
    classifier: Classifier,
    x: Images,
    weights: Float[Tensor, "m d"],
    masks: Masks,
    rows: Sequence[int],
    layer: CamLayer,
) -> Float[Tensor, "b m"]:
    maps = feature_maps(classifier, x, weights, layer=layer)
    return shares_outside(maps, masks.masks[list(rows)].to(maps.device)).cpu()


def write_spurious(
    run: Run, classifier: Classifier, known: Known, masks: Masks, judged: Sequence[Judged], say: Say
) -> dict[str, Number]:
    """The ranked table, pictures of its first rows, and numbers."""
    rows = [_row(classifier, known, one, rank) for rank, one in enumerate(judged, 1)]
    grid, sides = [], []
    for row, one in zip(rows[:SHOWN], judged, strict=False):
        x, mapped, dimmed = _pictures(classifier, known, masks, one)
        stem = f"spurious-{row['rank']:02d}"
        row["pictures"] = [
            {"image": save(run, f"{stem}-{b}.png", dimmed[b]),
             "map": save(run, f"{stem}-{b}-map.png", mapped[b]),
             "id": str(known.images.ids[one.asked.rows[b]])}
            for b in range(len(x))
        ]  # fmt: skip
        grid.append(
            [p for b in range(len(x)) for p in (Panel(dimmed[b], ""), Panel(mapped[b], ""))]
        )
        sides.append(f"{row['name']}\n{row['outside']:.2f} outside")
    run.write_table("spurious", rows)
    title = f"{classifier.name}: objects and maps of features, most on the background first"
    save_figure(run, "figure-spurious", grid, sides=sides, title=title)
    count = sum(one.verdict == "background" for one in judged)
    say(f"{count} of {len(judged)} features live on the background")
    return {
        f"spurious.{key(replace(one.asked.direction, name=row['name']))}.outside": Number(
            row["outside"], row["n"], row["low"], row["high"], protocol(masks)
        )
        for row, one in zip(rows[:SHOWN], judged, strict=False)
    }


def protocol(masks: Masks) -> str:
    """How the shares were measured."""
    return (
        "mean share of HiResCAM mass outside the object, over the images of the class that drive "
        f"the feature most (a quarter, at least {FEWEST}); BCa bootstrap; masks: {masks.told}"
    )


def _row(classifier: Classifier, known: Known, one: Judged, rank: int) -> dict[str, Any]:
    direction, target = one.asked.direction, one.asked.target
    name = direction.name
    if target is not None and direction.kind == "unit":
        name = f"{classifier.classes[target]}, {direction.name}"
    place = one.place
    row: dict[str, Any] = {
        "rank": rank, "name": name, "kind": direction.kind, "number": direction.number,
        "class": classifier.classes[target] if target is not None else None,
        "outside": place.outside, "low": place.low, "high": place.high, "n": place.n,
        "background": place.background, "excess": place.excess,
        "excess_low": place.excess_low, "excess_high": place.excess_high,
        "chance": place.chance, "verdict": one.verdict, "activation": one.asked.activation,
    }  # fmt: skip
    if direction.kind == "unit" and target is not None:
        weight = head(classifier).weight[target, direction.number].item()
        row["contribution"] = weight * one.asked.activation
    return row


def _pictures(
    classifier: Classifier, known: Known, masks: Masks, one: Judged
) -> tuple[Images, Images, Images]:
    """The first images, their maps laid over them, and the images with the background dimmed."""
    rows = list(one.asked.rows[:PICTURES])
    x = pixels(classifier, known.images, rows)
    layer = cam_layer(classifier, least=FINE)
    heat = feature_saliency(classifier, x, one.asked.direction.weight, layer=layer).cpu()
    inside = masks.masks[rows][:, None].to(x)
    dimmed = x * (0.3 + 0.7 * inside)
    return x, overlay(x, heat), dimmed
