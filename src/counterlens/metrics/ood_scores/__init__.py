"""Scores that tell known from unknown images: from logits, from features, from a step in pixels.

`fit` turns a name and the features of images that are not reported on into a function of features;
`differences` compares scores on the same images.
"""

from counterlens.metrics.ood_scores.fitted import (
    FEATURE_SCORES,
    SCORES,
    FittedScore,
    LinearHead,
    fit,
    parse_scores,
)
from counterlens.metrics.ood_scores.odin import odin
from counterlens.metrics.ood_scores.paired import (
    Difference,
    auroc_replicates,
    differences,
    mean_auroc,
)

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
