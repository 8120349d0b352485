"""Scores that tell known from unknown images: from logits, from features, from a step in pixels.

`fit` turns a name and the features of images that are not reported on into a function of features;
`differences` compares scores on the same images.
"""

from counterlens.metrics.ood_scores.fitted import (
    FittedScore,
    LinearHead,
    fit,
)
from counterlens.metrics.ood_scores.odin import odin
from counterlens.metrics.ood_scores.paired import (
    Difference,
    auroc_replicates,
    differences,
    mean_auroc,
)
from counterlens.notation import FEATURE_SCORES, parse_scores
from counterlens.notation import OOD_SCORES as SCORES

__all__ = [
    "FEATURE_SCORES",
    "SCORES",
    "Difference",
    "FittedScore",
    "LinearHead",
    "auroc_replicates",
    "differences",
    "fit",
    "mean_auroc",
    "odin",
    "parse_scores",
]
