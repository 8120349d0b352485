"""How real the images of a search are: KID to real images in the features of an independent judge.

A search that leaves what its generator was trained on makes images that some classifier believes
and nobody would take for a photograph. Beside the KID of the images stands that of their starts,
which no classifier had a part in.

Paper: Bińkowski et al. 2018 (kid2018).
Differs: features of a judge (`--with`) in place of Inception's; never compare across judges.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.classifier import Classifier
from counterlens.explanations.counterfactuals.targets import class_named
from counterlens.generators.diffusion.cutouts import seen
from counterlens.images import ImageSet, prepare
from counterlens.metrics.generation import kid_interval
from counterlens.models.parts import features
from counterlens.runs import Number, Run
from counterlens.types import Images
from counterlens.workflows._shared.generation.generate import reread
from counterlens.workflows.disagree.search import WAYS

FEWEST, MOST = 20, 1000
"""Images of a way, and real ones: fewer say nothing, more say no more."""


def realism(
    run: Run,
    judge: Classifier,
    real: ImageSet,
    names: Sequence[str],
    rows: Sequence[dict[str, Any]],
) -> dict[str, Number]:
    """KID of the images and of their starts, each way."""
    labels = [class_named(real.classes, name) for name in names]
    places = np.flatnonzero(np.isin(real.labels, [k for k in labels if k >= 0]))
    places = np.random.default_rng(0).permutation(places)[:MOST]
    many = len(places) >= FEWEST
    known = _features(judge, _read(real, places, judge)) if many else None
    results: dict[str, Number] = {}
    for way in WAYS:
        part = [row for row in rows if row["way"] == way]
        order = np.random.default_rng(0).permutation(len(part))  # else blocks are of one class
        for key, column in (("kid", "image"), ("start_kid", "start")):
            protocol = (
                f"unbiased KID of the {column}s in the features of {judge.name}, against "
                f"{len(places)} real images of the classes"
            )
            name = f"disagree.{way}.{key}"
            if known is None or len(part) < FEWEST:
                why = f"{len(part)} images and {len(places)} real ones, {FEWEST} of each are needed"
                results[name] = Number.missing(why, protocol, len(part))
                continue
            x = reread(run, [part[i][column] for i in order])
            value, low, high = kid_interval(_features(judge, x), known)
            results[name] = Number(value, len(part), low, high, protocol)
    return results


def _read(real: ImageSet, places: np.ndarray, judge: Classifier) -> Images:
    parts = [torch.from_numpy(prepare(real.read(int(i)), judge.preprocess)) for i in places]
    return torch.stack(parts).float() / 255


@torch.no_grad()
def _features(judge: Classifier, x: Images) -> Float[Tensor, "b d"]:
    side = judge.preprocess.size[0]
    parts = torch.split(x, 100)
    device = judge.mean.device
    return torch.cat([features(judge, seen(part.to(device), side)).float().cpu() for part in parts])
