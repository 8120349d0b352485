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

from counterlens import zoo
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
from counterlens.workflows._shared.generation.generator import best_shipped, open_generator_for
from counterlens.workflows._shared.session import Log
from counterlens.workflows.neurons.data import KnownFeatures, read_known
from counterlens.workflows.neurons.job import FeatureRows, NeuronJob, NeuronWork
from counterlens.workflows.neurons.npca import components
from counterlens.workflows.neurons.object_masks import Find, ObjectMasks, by_attention, find_masks
from counterlens.workflows.neurons.options import SpuriousOptions
from counterlens.workflows.neurons.pixel import key
from counterlens.workflows.neurons.scan import pixels

PER_CLASS = 5
FEWEST, SHARE = 8, 0.25
"""A feature is judged on the images of its class that drive it most: a quarter, at least eight."""
FINE = 7
"""Rows and columns of the maps, where the network has such a layer: on a 4 × 4 grid every place
sees most of a 32-pixel picture, and no map can tell the object from what is around it."""
SHOWN, PICTURES = 8, 4
PART = 64


@dataclass(frozen=True)
class FeatureCandidate:
    """One feature and the images it is judged on, those that drive it most first."""

    direction: Direction
    target: int | None
    rows: tuple[int, ...]
    activation: float


@dataclass(frozen=True)
class JudgedFeature:
    """One row of the table."""

    candidate: FeatureCandidate
    place: Place
    verdict: str


def spurious(job: NeuronJob, options: SpuriousOptions) -> NeuronWork:
    """The features that the options name, or those that speak for each class, ranked."""
    net, log = job.classifier, job.log
    if len(options.mask) > 1:
        raise InputError(f"got {len(options.mask)} masks, expected one source of all masks.")
    units = [unit_direction(net, number) for number in dict.fromkeys(options.unit)]
    job.check_head()
    known = read_known(net, options.data, limit=options.limit, seed=options.seed, log=log)

    def attention() -> Find:
        model = open_generator_for([net], options.generator, half=options.half)
        return by_attention(model, net, options.seed)

    def work(run: Run) -> tuple[FeatureRows, dict[str, Number]]:
        fits = bool(zoo.generators()) and not best_shipped([net])[1]
        masks = find_masks(
            net, known, options.data, options.mask[0] if options.mask else None,
            attention=attention, generator=options.generator is not None or fits, log=log,
        )  # fmt: skip
        run.note(data=known.images.name, masks=masks.origin)
        chosen = _chosen(job, options, known, masks, units)
        log(f"maps of {len(chosen)} features")
        judged = judge(
            net, chosen, masks, lambda rows: pixels(net, known.images, rows), log=log,
            seed=options.seed,
        )  # fmt: skip
        run.write_table("notes", [{"note": note} for note in _notes(known, masks)])
        return [], write_spurious(run, net, known, masks, judged, log)

    return work


def _chosen(
    job: NeuronJob,
    options: SpuriousOptions,
    known: KnownFeatures,
    masks: ObjectMasks,
    units: Sequence[Direction],
) -> list[FeatureCandidate]:
    """The features to rank, each with the images that it is judged on."""
    if not (units or options.npca):
        return features_of_classes(job.classifier, known, masks)
    named = [candidate(direction, None, known, masks) for direction in units]
    if options.npca:
        parts = components(job.classifier, known, options.npca)
        named += [candidate(direction, pca.target, known, masks) for pca, direction in parts]
    chosen = [one for one in named if one is not None]
    if not chosen:
        raise InputError(
            f"fewer than {FEWEST} images have a usable mask. Give more with data=SPEC."
        )
    return chosen


def _notes(known: KnownFeatures, masks: ObjectMasks) -> list[str]:
    """Remarks on the masks for the report."""
    left = int((~masks.usable).sum())
    notes = [] if masks.independent else [f"Masks: {masks.origin}."]
    if left:
        notes.append(
            f"{left} of {len(known.images)} images were left out: no mask, an empty one, "
            "or one that fills the picture."
        )
    return notes


def features_of_classes(
    classifier: Classifier, known: KnownFeatures, masks: ObjectMasks
) -> list[FeatureCandidate]:
    """The units that speak for each class most."""
    candidates = []
    for target in sorted(set(known.classes[masks.usable].tolist())):
        here = known.classes == target
        for number in strongest_units(classifier, known.features[here], target, PER_CLASS):
            one = candidate(unit_direction(classifier, number), target, known, masks)
            candidates += [one] if one else []
    if not candidates:
        raise InputError(
            f"no class has {FEWEST} images with a usable mask. Give more with data=SPEC, or "
            "units by unit=NUMBER, which are judged over all images."
        )
    return candidates


def candidate(
    direction: Direction, target: int | None, known: KnownFeatures, masks: ObjectMasks
) -> FeatureCandidate | None:
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
    return FeatureCandidate(direction, target, chosen, values[order].mean().item())


def judge(
    classifier: Classifier,
    candidates: Sequence[FeatureCandidate],
    masks: ObjectMasks,
    read: Callable[[Sequence[int]], Images],
    *,
    log: Log,
    seed: int = 0,
) -> list[JudgedFeature]:
    """Where each feature lives, in the order of the table.

    Args:
        read: images by their places in the set.
    """
    layer = cam_layer(classifier, least=FINE)
    wanted: dict[int, list[int]] = {}
    for k, one in enumerate(candidates):
        for i in one.rows:
            wanted.setdefault(i, []).append(k)
    shares: dict[tuple[int, int], float] = {}
    order = sorted(wanted, key=lambda i: (wanted[i], i))  # images that need the same maps in a row
    for at in range(0, len(order), PART):
        rows = order[at : at + PART]
        some = sorted({k for i in rows for k in wanted[i]})
        weights = torch.stack([candidates[k].direction.weight for k in some])
        part = _shares(classifier, read(rows), weights, masks, rows, layer)
        for b, i in enumerate(rows):
            shares |= {(some[m], i): part[b, m].item() for m in range(len(some))}
        if at and at % (16 * PART) == 0:
            log(f"  maps of {at} of {len(order)} images")
    area = 1 - masks.masks.flatten(1).double().mean(1)
    places = [
        placed(
            torch.tensor([shares[k, i] for i in one.rows]).double().numpy(),
            area[list(one.rows)].numpy(),
            seed=seed,
        )
        for k, one in enumerate(candidates)
    ]
    there = [
        (one, place) for one, place in zip(candidates, places, strict=True) if place is not None
    ]
    if not there:
        raise InputError("no feature has a map with any mass, so there is nothing to rank.")
    known = [place for _, place in there]
    words = verdicts(known)
    return [JudgedFeature(there[i][0], known[i], words[i]) for i in ranked(known)]


def _shares(
    classifier: Classifier,
    x: Images,
    weights: Float[Tensor, "m d"],
    masks: ObjectMasks,
    rows: Sequence[int],
    layer: CamLayer,
) -> Float[Tensor, "b m"]:
    maps = feature_maps(classifier, x, weights, layer=layer)
    return shares_outside(maps, masks.masks[list(rows)].to(maps.device)).cpu()


def write_spurious(
    run: Run,
    classifier: Classifier,
    known: KnownFeatures,
    masks: ObjectMasks,
    judged: Sequence[JudgedFeature],
    log: Log,
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
             "id": str(known.images.ids[one.candidate.rows[b]])}
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
    log(f"{count} of {len(judged)} features live on the background")
    return {
        f"spurious.{key(replace(one.candidate.direction, name=row['name']))}.outside": Number(
            row["outside"], row["n"], row["low"], row["high"], protocol(masks)
        )
        for row, one in zip(rows[:SHOWN], judged, strict=False)
    }


def protocol(masks: ObjectMasks) -> str:
    """How the shares were measured."""
    return (
        "mean share of HiResCAM mass outside the object, over the images of the class that drive "
        f"the feature most (a quarter, at least {FEWEST}); BCa bootstrap; masks: {masks.origin}"
    )


def _row(
    classifier: Classifier, known: KnownFeatures, one: JudgedFeature, rank: int
) -> dict[str, Any]:
    direction, target = one.candidate.direction, one.candidate.target
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
        "chance": place.chance, "verdict": one.verdict, "activation": one.candidate.activation,
    }  # fmt: skip
    if direction.kind == "unit" and target is not None:
        weight = head(classifier).weight[target, direction.number].item()
        row["contribution"] = weight * one.candidate.activation
    return row


def _pictures(
    classifier: Classifier, known: KnownFeatures, masks: ObjectMasks, one: JudgedFeature
) -> tuple[Images, Images, Images]:
    """The first images, their maps laid over them, and the images with the background dimmed."""
    rows = list(one.candidate.rows[:PICTURES])
    x = pixels(classifier, known.images, rows)
    layer = cam_layer(classifier, least=FINE)
    saliency = feature_saliency(classifier, x, one.candidate.direction.weight, layer=layer).cpu()
    inside = masks.masks[rows][:, None].to(x)
    dimmed = x * (0.3 + 0.7 * inside)
    return x, overlay(x, saliency), dimmed
