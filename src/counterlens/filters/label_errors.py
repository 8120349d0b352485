"""Labels to doubt: images that every model gets wrong in the same way, and surely.

Paper: none of its own; RATIO (Augustin et al. 2020) and DiG-IN (Augustin et al. 2024) found wrong
    labels by hand among confident mistakes. An image that is merely hard is answered unsurely or
    differently by different models; one with a wrong label is answered alike and surely.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64


@dataclass(frozen=True)
class Suspects:
    """Images whose label is in doubt, the most doubtful first.

    Args:
        rows: of the pool.
        score: by how much the models prefer their answer to the label, mean over models.
    """

    rows: Int64[np.ndarray, "s"]
    score: Float64[np.ndarray, "s"]


def suspects(
    table: Mapping[str, np.ndarray], labels: Int64[np.ndarray, "n"], models: int
) -> Suspects:
    """Images that no model gives their label and all give one and the same other class.

    Args:
        table: opinions of the models, a row per image of the pool.
        labels: the images' classes, −1 where unknown.
        models: how many models there are.
    """
    first = table["0_answer"]
    alike = np.ones(len(labels), bool)
    gap = np.zeros(len(labels))
    for m in range(models):
        alike &= table[f"{m}_answer"] == first
        gap += (table[f"{m}_confidence"].astype(float) - table[f"{m}_true"]) / models
    rows = np.flatnonzero((table["why"] == "") & (labels >= 0) & (first != labels) & alike)
    order = np.lexsort((rows, -gap[rows]))
    return Suspects(rows[order], gap[rows][order])
