"""The temperature of an audit: which images set it, and when there are too few of them.

Differs: below 100 images no temperature is fitted. zoo:cifar10-plain-small, 60 draws from the 2,500
       images of sample:cifar10 and sample:cifar10-calibration, likelihood on the rest: fitted by
       ECE on 100 images the 95 % quantile of the loss against temperature 1 is 0.04 nats, on 50,
       20 or 10 it is 1.6. This model needs no temperature, so most fits cost a little at any size.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool
from torch import Tensor

from counterlens import metrics
from counterlens.runs import Number

LEAST = 100
SHARE = 0.2


def set_apart(ids: Sequence[str], known: Bool[np.ndarray, "n"]) -> Bool[np.ndarray, "n"]:
    """The images to fit the temperature on: a fifth, by id; none where that is below 100.

    >>> set_apart([str(i) for i in range(50)], np.ones(50, dtype=bool)).any()
    np.False_
    """
    apart = metrics.split_by_id(ids, SHARE) & known
    return apart if apart.sum() >= LEAST else np.zeros_like(apart)


def fit_temperature(
    logits: Tensor, labels: Tensor, source: str, seed: int
) -> tuple[float | None, dict[str, Number]]:
    """The temperature and its numbers; None and the reason where there are too few images."""
    if len(labels) < LEAST:
        reason = f"{source}, expected {LEAST} or more to fit it on; temperature 1 is used"
        missing = Number.missing(reason, "not fitted: temperature 1", len(labels))
        return None, {"calibration.temperature": missing}
    fitted = metrics.temperature_number(logits, labels, source=source, seed=seed)
    by_nll = metrics.temperature_number(logits, labels, source=source, method="nll", seed=seed)
    numbers = {"calibration.temperature": fitted, "calibration.temperature_nll": by_nll}
    return fitted.value, numbers
