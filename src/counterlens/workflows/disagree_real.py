"""Every synthetic finding ends on real photographs: the nearest ones, and how often it happens.

Paper: Augustin, Neuhaus, Hein 2024 (digin2024), Figures 5 and 8, appendix C.
Differs: neighbours are found in the features of the classifier that was raised, not in CLIP's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from counterlens.classifier import Classifier
from counterlens.data import open_set
from counterlens.explanations.pixel import rows_that_fit, temperature_of
from counterlens.explanations.targets import class_named
from counterlens.generators.cutouts import seen
from counterlens.images import ImageSet, prepare
from counterlens.models.parts import features
from counterlens.predict import predict
from counterlens.runs import Run
from counterlens.search import frozen
from counterlens.types import Images
from counterlens.workflows.generating import reread
from counterlens.workflows.showing import save

NEAREST = 3


@dataclass(frozen=True)
class Real:
    """How often real images of a class show an error: one classifier right, the other wrong."""

    name: str
    way: str
    up: str
    down: str
    errors: int
    n: int


def verify_on(
    run: Run,
    spec: str,
    pair: tuple[Classifier, Classifier],
    places: Mapping[str, tuple[int, int]],
    rows: list[dict[str, Any]],
    *,
    say: Callable[[str], None],
) -> list[Real]:
    """Measure both classifiers on real images and add the nearest ones to each finding's row."""
    real = open_set(spec)
    say(f"{len(real)} real images of {real.name}")
    probs = [
        (predict(net, real, progress=False).logits / temperature_of(net)).softmax(1) for net in pair
    ]
    found = []
    for name, where in places.items():
        label = class_named(real.classes, name)
        here = torch.from_numpy((real.labels == label) & (label >= 0))
        right = [
            (p.argmax(1) == k)[here] if label >= 0 else here
            for p, k in zip(probs, where, strict=True)
        ]
        for way, word in enumerate(("first", "second")):
            errors = int((right[way] & ~right[1 - way]).sum())
            up, down = pair[way].name, pair[1 - way].name
            found.append(Real(name, word, up, down, errors, int(here.sum())))
    for way, word in enumerate(("first", "second")):
        part = [row for row in rows if row["way"] == word]
        _neighbours(run, real, pair[way], part, places, way, probs)
    run.write_table(
        "real",
        [{"class": r.name, "way": r.way, "right": r.up, "wrong": r.down, "errors": r.errors,
          "n": r.n, "rate": r.errors / r.n if r.n else None} for r in found],
    )  # fmt: skip
    return found


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
                "image": _kept(run, real, i, net),
                "cosine": round(float(c), 4),
                "p_up": round(float(probs[way][i, where[way]]), 4),
                "p_down": round(float(probs[1 - way][i, where[1 - way]]), 4),
            }
            for i, c in zip(order.tolist(), cosine.tolist(), strict=True)
        ]


def _kept(run: Run, real: ImageSet, i: int, net: Classifier) -> str:
    pixels = torch.from_numpy(prepare(real.read(i), net.preprocess)).float() / 255
    return save(run, f"real-{i}.png", pixels)


def _of_set(net: Classifier, real: ImageSet) -> Float[Tensor, "n d"]:
    found = []
    for at in range(0, len(real), 256):
        rows = range(at, min(at + 256, len(real)))
        pixels = np.stack([prepare(real.read(i), net.preprocess) for i in rows])
        found.append(_of_images(net, torch.from_numpy(pixels).float() / 255))
    return torch.cat(found)


@torch.no_grad()
def _of_images(net: Classifier, x: Images) -> Float[Tensor, "b d"]:
    """Features of length one."""
    size = rows_that_fit(x, net.mean.device)
    with frozen(net):
        parts = [
            features(net, part.to(net.mean.device)).float().cpu() for part in torch.split(x, size)
        ]
    return normalize(torch.cat(parts), dim=1)
