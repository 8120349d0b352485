"""Every synthetic finding ends on real photographs: the nearest ones, and how often it happens.

Paper: Augustin, Neuhaus, Hein 2024 (digin2024), Figures 5 and 8, appendix C.
Differs: neighbours are found in the features of the classifier that was raised, not in CLIP's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from counterlens.classifier import Classifier
from counterlens.data.sources.objects import as_image_set
from counterlens.explanations.counterfactuals.pixel import rows_that_fit, temperature_of
from counterlens.explanations.counterfactuals.targets import class_named
from counterlens.generators.diffusion.cutouts import seen
from counterlens.images import ImageSet, prepare
from counterlens.metrics.numbers import pair_counts
from counterlens.models.parts import features
from counterlens.predictions import predict
from counterlens.runs import Run
from counterlens.search import frozen
from counterlens.types import Images
from counterlens.workflows._shared.figures import save
from counterlens.workflows._shared.generation.generate import reread
from counterlens.workflows._shared.session import Log

NEAREST = 3


@dataclass(frozen=True)
class RealAnswers:
    """Real images of a class: which of the two classifiers answer them right?"""

    name: str
    both: int
    first: int
    second: int
    neither: int

    @property
    def n(self) -> int:
        """All of them."""
        return self.both + self.first + self.second + self.neither

    def errors(self, way: int) -> int:
        """Where the one is right (way 0: the first) and the other wrong."""
        return (self.first, self.second)[way]


def verify_on(
    run: Run,
    spec: str | ImageSet,
    pair: tuple[Classifier, Classifier],
    places: Mapping[str, tuple[int, int]],
    rows: list[dict[str, Any]],
    *,
    log: Log,
) -> list[RealAnswers]:
    """Measure both classifiers on real images and add the nearest ones to each image's row."""
    real = as_image_set(spec)
    log(f"{len(real)} real images of {real.name}")
    probs = [
        (predict(net, real, progress=False).logits / temperature_of(net)).softmax(1) for net in pair
    ]
    counts = []
    for name, where in places.items():
        label = class_named(real.classes, name)
        here = torch.from_numpy((real.labels == label) & (label >= 0))
        right = [
            (p.argmax(1) == k)[here] if label >= 0 else here[here]
            for p, k in zip(probs, where, strict=True)
        ]
        counts.append(RealAnswers(name, *pair_counts(right[0], right[1])))
    for way, word in enumerate(("first", "second")):
        part = [row for row in rows if row["way"] == word]
        _neighbours(run, real, pair[way], part, places, way, probs)
    run.write_table(
        "real",
        [{"class": r.name, "way": word, "right": pair[way].name, "wrong": pair[1 - way].name,
          "errors": r.errors(way), "n": r.n, "rate": r.errors(way) / r.n if r.n else None}
         for r in counts for way, word in enumerate(("first", "second"))],
    )  # fmt: skip
    return counts


def _neighbours(
    run: Run,
    real: ImageSet,
    net: Classifier,
    rows: Sequence[dict[str, Any]],
    places: Mapping[str, tuple[int, int]],
    way: int,
    probs: Sequence[Float[Tensor, "n k"]],
) -> None:
    """Put the nearest real images into each row."""
    pool = _of_set(net, real)
    x = seen(reread(run, [row["image"] for row in rows]), net.preprocess.size[0])
    near = (_of_images(net, x) @ pool.T).topk(min(NEAREST, len(pool)), dim=1)
    for row, order, cosine in zip(rows, near.indices, near.values, strict=True):
        where = places[row["name"]]
        row["nearest"] = [
            {
                "id": str(real.ids[i]),
                "label": real.classes[real.labels[i]] if real.labels[i] >= 0 else None,
                "image": _saved(run, real, i, net),
                "cosine": round(float(c), 4),
                "p_up": round(float(probs[way][i, where[way]]), 4),
                "p_down": round(float(probs[1 - way][i, where[1 - way]]), 4),
            }
            for i, c in zip(order.tolist(), cosine.tolist(), strict=True)
        ]


def _saved(run: Run, real: ImageSet, i: int, net: Classifier) -> str:
    pixels = torch.from_numpy(prepare(real.read(i), net.preprocess)).float() / 255
    return save(run, f"real-{i}.png", pixels)


def _of_set(net: Classifier, real: ImageSet) -> Float[Tensor, "n d"]:
    parts = []
    for at in range(0, len(real), 256):
        rows = range(at, min(at + 256, len(real)))
        pixels = np.stack([prepare(real.read(i), net.preprocess) for i in rows])
        parts.append(_of_images(net, torch.from_numpy(pixels).float() / 255))
    return torch.cat(parts)


@torch.no_grad()
def _of_images(net: Classifier, x: Images) -> Float[Tensor, "b d"]:
    """Features of length one."""
    size = rows_that_fit(x, net.mean.device)
    with frozen(net):
        parts = [
            features(net, part.to(net.mean.device)).float().cpu() for part in torch.split(x, size)
        ]
    return normalize(torch.cat(parts), dim=1)
