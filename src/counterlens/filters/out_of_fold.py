"""Labels to doubt by probabilities of a model that has not seen the image: confident learning.

Paper: Northcutt, Jiang, Chuang 2021 (northcutt2021), Confident Learning.
Differs: images are ranked by the margin of the label alone; the paper has five ways to prune.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64

from counterlens.filters.label_errors import Suspects

Probabilities = Float64[np.ndarray, "n k"]
Integers = Int64[np.ndarray, "n"]


def doubtful(probs: Probabilities, labels: Integers) -> tuple[Suspects, Integers]:
    """Images that count for another class in the confident joint; with the class of each image.

    Equation: northcutt2021 (1)   C_ij = |{x : ỹ = i, argmax_{l : p_l(x) ≥ t_l} p_l(x) = j}|

    t_l is the mean of p_l over the images labelled l. An image that reaches no threshold counts for
    its own class.

    Args:
        probs: of each image, by a model that was fitted without it.
        labels: the classes as they stand.
    """
    count = probs.shape[1]
    least = np.array(
        [probs[labels == k, k].mean() if (labels == k).any() else np.inf for k in range(count)]
    )
    sure = np.where(probs >= least, probs, -1.0)
    counted = np.where(sure.max(1) >= 0, sure.argmax(1), labels).astype(np.int64)
    rows = np.flatnonzero(counted != labels)
    places = np.arange(len(labels))
    margin = probs[places, counted] - probs[places, labels]
    order = np.lexsort((rows, -margin[rows]))
    return Suspects(rows[order], margin[rows][order]), counted


def fold_of(keys: Sequence[str], labels: Integers, folds: int, seed: int) -> Integers:
    """The fold of each image: classes spread evenly, equal keys in one fold.

    >>> fold_of(["a", "b", "a", "c"], np.array([0, 0, 0, 0]), 2, 0).tolist()
    [0, 1, 0, 0]
    """
    out = np.zeros(len(labels), dtype=np.int64)
    first: dict[str, int] = {}
    rng = np.random.default_rng(seed)
    for k in np.unique(labels):
        place = 0
        for i in rng.permutation(np.flatnonzero(labels == k)).tolist():
            if keys[i] not in first:
                first[keys[i]] = place % folds
                place += 1
            out[i] = first[keys[i]]
    return out
