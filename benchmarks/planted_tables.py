"""The tables of planted_feature.py: features on the background, and the harm that a patch does."""

from dataclasses import asdict

import torch
from torch import Tensor

from counterlens.classifier import Classifier
from counterlens.data.sets import array_set
from counterlens.explanations.features.directions import Direction, driven, logits_of
from counterlens.explanations.features.npca import neural_pca
from counterlens.generators.diffusion import model as latent
from counterlens.models.parts import head
from counterlens.workflows.neurons.data import KnownFeatures
from counterlens.workflows.neurons.npca import components
from counterlens.workflows.neurons.object_masks import LEAST, MOST, ObjectMasks, by_attention
from counterlens.workflows.neurons.scan import activations
from counterlens.workflows.neurons.spurious import (
    FeatureCandidate,
    candidate,
    features_of_classes,
    judge,
)
from planted_networks import CLASS, RADIUS, SIZE, patched, share


def known(model: Classifier, x: Tensor, y: Tensor) -> KnownFeatures:
    phi = activations(model, x)
    pixels = (x * 255).round().byte().permute(0, 2, 3, 1).numpy()
    return KnownFeatures(
        array_set("planted", pixels, y.numpy(), model.classes), phi, logits_of(model, phi), y
    )


def disc(count: int) -> ObjectMasks:
    """The middle of the picture, for all images."""
    place = torch.arange(32) - 15.5
    inside = place.square()[:, None] + place.square()[None] < RADIUS**2
    every = inside.expand(count, 32, 32).clone()
    return ObjectMasks(every, torch.ones(count, dtype=torch.bool), f"a disc of radius {RADIUS}")


def attended(
    model: Classifier, generator: latent.LatentDiffusion, x: Tensor, y: Tensor
) -> ObjectMasks:
    """A generator's masks of images without the patch."""
    find = by_attention(generator, model, 0)
    found = torch.cat([find(a, b).cpu() for a, b in zip(x.split(128), y.split(128), strict=True)])
    area = found.flatten(1).float().mean(1)
    return ObjectMasks(found, (area >= LEAST) & (area <= MOST), "attention to the class word")


def table(
    model: Classifier, seen: KnownFeatures, x: Tensor, masks: ObjectMasks, kind: str
) -> dict[str, object]:
    """The ranked table, and how much of each feature's map lies in the corner of the patch."""
    if kind == "units":
        asked = features_of_classes(model, seen, masks)
    else:
        every = (candidate(d, p.target, seen, masks) for p, d in components(model, seen, ["all"]))
        asked = [one for one in every if one is not None]

    def quiet(line: str) -> None:
        pass

    def look(rows: list[int]) -> Tensor:
        return x[list(rows)]

    def name(one: FeatureCandidate) -> str:
        return f"{model.classes[one.target or 0]}: {one.direction.kind} {one.direction.number}"

    corner = torch.zeros(32, 32, dtype=torch.bool)
    corner[:SIZE, :SIZE] = True
    here = ObjectMasks(corner.expand(len(x), 32, 32).clone(), masks.usable, "corner")
    judged = judge(model, asked, masks, look, log=quiet)
    inside = {
        name(one.candidate): 1 - one.place.outside
        for one in judge(model, asked, here, look, log=quiet)
    }
    rows = [
        {"rank": rank, "feature": name(one.candidate), "verdict": one.verdict,
         "corner": inside[name(one.candidate)], **asdict(one.place)}
        for rank, one in enumerate(judged, 1)
    ]  # fmt: skip
    return {
        "features": len(rows),
        "on_background": sum(row["verdict"] == "background" for row in rows),
        "first": rows[0]["feature"],
        "first_is_planted": str(rows[0]["feature"]).startswith(f"{CLASS}:"),
        "largest_corner": max(inside.values()),
        "uniform_corner": SIZE * SIZE / 1024,
        "rows": rows[:8],
    }


def first_component(model: Classifier, seen: KnownFeatures) -> Direction:
    target = model.classes.index(CLASS)
    return neural_pca(head(model), seen.features[seen.labels == target], target).direction(0, CLASS)


def harm(model: Classifier, seen: KnownFeatures, x: Tensor, y: Tensor) -> dict[str, object]:
    """Images of other classes, a tenth of them with the patch: taken for the class, and driven."""
    target = model.classes.index(CLASS)
    direction = first_component(model, seen)
    result: dict[str, object] = {}
    rows = torch.nonzero(y != target).flatten()
    some = rows[: len(rows) // 10]  # few, so that the usual value is that without the patch
    mixed = x.clone()
    mixed[some] = patched(x[some])
    phi = activations(model, mixed)
    taken, pushed = driven(logits_of(model, phi), direction.values(phi.double()), target, y)
    rest = rows[len(rows) // 10 :]
    for word, where in (("with_patch", some), ("without", rest)):
        result[word] = {"taken": share(taken[where]), "driven": share(pushed[where])}
    return result
