"""All units over a data set in one pass: the images that drive each most, and which units are
correlated.

Paper: Augustin, Neuhaus, Hein 2024 (digin2024), Figures 9 and 30, for groups of similar units.
Differs: the paper picks its groups by eye; here similar means correlated over the data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import normalize

from counterlens.classifier import Classifier
from counterlens.data import open_set
from counterlens.data.sources.objects import as_image_set
from counterlens.errors import InputError
from counterlens.explanations.figure import canvas
from counterlens.generators.diffusion.cutouts import seen
from counterlens.images import ImageSet, prepared
from counterlens.metrics.intervals.closed_form import wilson
from counterlens.models.parts import features, head
from counterlens.objectives import ScoreTable
from counterlens.runs import Number, Run, atomic
from counterlens.search import frozen
from counterlens.types import Images
from counterlens.workflows._shared.session import Log

TOP = 5
PART = 256


@dataclass(frozen=True)
class Scan:
    """What a data set does to every unit.

    Args:
        images: the set.
        values, rows: the highest values of each unit and logit, and which images they are.
        alike: correlation of every two units, and logits, over the set.
    """

    images: ImageSet
    values: Float[Tensor, "top d"]
    rows: Int64[Tensor, "top d"]
    alike: Float[Tensor, "d d"]


def scan(classifier: Classifier, data: object, log: Log) -> Scan:
    """One pass over a data set; what is stored does not grow with it."""
    images = open_set(data) if isinstance(data, str) else as_image_set(data)
    log(f"activations on {len(images)} images of {images.name}")
    width = head(classifier).in_features + len(classifier.classes)
    values = torch.full((0, width), 0.0)
    rows = torch.zeros(0, width, dtype=torch.long)
    sums, products = torch.zeros(width).double(), torch.zeros(width, width).double()
    for at in range(0, len(images), PART):
        some = range(at, min(at + PART, len(images)))
        new = unit_values(classifier, pixels(classifier, images, some))
        sums += new.double().sum(0)
        products += new.double().T @ new.double()
        pool = torch.cat([values, new])
        origin = torch.cat([rows, torch.tensor(some)[:, None].expand(-1, width)])
        values, order = pool.topk(min(TOP, len(pool)), dim=0)
        rows = origin.gather(0, order)
    mean = sums / len(images)
    covariance = products / len(images) - mean[:, None] * mean
    spread = covariance.diagonal().clamp_min(0).sqrt()
    alike = covariance / (spread[:, None] * spread).clamp_min(1e-12)
    return Scan(images, values, rows, alike.float())


def activations(classifier: Classifier, x: Images) -> Float[Tensor, "b d"]:
    """Penultimate activations of whole images, on the CPU."""
    parts = []
    with torch.no_grad(), frozen(classifier):
        for part in torch.split(seen(x, classifier.preprocess.size[0]), 128):
            parts.append(features(classifier, part.to(classifier.mean.device)).float().cpu())
    return torch.cat(parts)


def units_and_logits(classifier: Classifier) -> ScoreTable:
    """Units first, then logits, of images of the classifier's size; differentiable."""
    last = head(classifier)

    def table(x: Images) -> Float[Tensor, "b d"]:
        phi = features(classifier, x)
        return torch.cat([phi, last(phi)], 1)

    return table


def unit_values(classifier: Classifier, x: Images) -> Float[Tensor, "b d"]:
    """Units first, then logits, of whole images."""
    phi = activations(classifier, x)
    last = head(classifier)
    with torch.no_grad():
        return torch.cat([phi, last(phi.to(last.weight)).float().cpu()], 1)


def pixels(classifier: Classifier, images: ImageSet, rows: Sequence[int]) -> Images:
    """Some images of a set as the classifier sees them."""
    fit, channels = classifier.preprocess, classifier.channels
    ready = [prepared(images.read, i, fit, channels=channels) for i in rows]
    return torch.from_numpy(np.stack(ready)).float() / 255


def groups(
    classifier: Classifier, seen_on: Scan | None, units: Sequence[int], count: int
) -> list[dict[str, Any]]:
    """For each unit so many others that go with it, the most alike first.

    Over data: correlation. Without: cosine of what the last layer makes of them.
    """
    weight = normalize(head(classifier).weight.float().cpu(), dim=0)
    width = weight.shape[1]
    alike = seen_on.alike[:width, :width] if seen_on else weight.T @ weight
    if count >= len(alike):
        raise InputError(f"got {count} similar units, expected at most {len(alike) - 1}.")
    rows = []
    for unit in units:
        order = [int(k) for k in alike[unit].argsort(descending=True, stable=True) if k != unit]
        rows += [
            {"unit": unit, "other": k, "alike": round(alike[unit, k].item(), 4)}
            for k in order[:count]
        ]
    return rows


def cross(run: Run, units: Mapping[int, str], own: Float[Tensor, "u d"]) -> dict[str, Number]:
    """What the images of each unit do to the others: table, figure, and how pure they are.

    Args:
        units: by number, with their names.
        own: mean value of all units on each unit's images.
    """
    table = own[:, list(units)]
    run.write_table(
        "cross_activation",
        [{"images_of": name, **{other: table[i, j].item()
                                for j, other in enumerate(units.values())}}
         for i, name in enumerate(units.values())],
    )  # fmt: skip
    if len(units) < 2:
        return {}
    draw_matrix(run, list(units.values()), table)
    others = table.masked_fill(torch.eye(len(units), dtype=torch.bool), -torch.inf)
    counts: Mapping[str, int] = {
        "neurons.own_first": int((table.diagonal() > others.amax(1)).sum()),
        "neurons.images_first": int((table.diagonal() > others.amax(0)).sum()),
    }
    protocols = {
        "neurons.own_first": "units whose own images drive them further than any other unit shown",
        "neurons.images_first": "units that no other unit's images drive as far as their own do",
    }
    return {
        key: Number(hits / len(units), len(units), *wilson(hits, len(units)), protocols[key])
        for key, hits in counts.items()
    }


def draw_matrix(run: Run, names: Sequence[str], table: Float[Tensor, "u u"]) -> None:
    """The matrix as a figure: a row per unit's images, a column per unit."""
    side = 1.2 + 0.42 * len(names)
    figure = canvas(side + 0.6, side)
    axes = figure.add_subplot()
    high = table.max().item()
    axes.imshow(table.numpy(), cmap="Blues", vmin=0, vmax=high)
    axes.set_xticks(
        range(len(names)), [name.removeprefix("unit ") for name in names], rotation=90, fontsize=7
    )
    axes.set_yticks(range(len(names)), [name.removeprefix("unit ") for name in names], fontsize=7)
    axes.set_xlabel("mean activation of unit", fontsize=8)
    axes.set_ylabel("on the images of unit", fontsize=8)
    for i in range(len(names)):
        for j in range(len(names)):
            value = table[i, j].item()
            colour = "white" if value > 0.6 * high else "#16202c"
            axes.text(j, i, f"{value:.1f}", ha="center", va="center", fontsize=6, color=colour)
    with atomic(run.path("images", "figure-cross.png")) as part:
        figure.savefig(part, format="png")
