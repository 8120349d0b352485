"""Numbers of models that give each image any number of labels: one binary question per label.

The probability of a label is the sigmoid of its own logit, and the label is given from 0.5 on.
Truth is 1, 0, or −1 where it is not known: such an image does not count for that label.

Paper: DeLong et al. 1988 (intervals of AUROC); Wilson 1927 (of proportions).
Differs: means over labels carry the means of the labels' bounds, which is on the safe side.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from counterlens.errors import InputError
from counterlens.metrics.calibration import ece_of, width_bins
from counterlens.metrics.intervals.calibration import ece_interval
from counterlens.metrics.intervals.closed_form import delong
from counterlens.metrics.numbers import NumberDict, share
from counterlens.metrics.ood import auroc
from counterlens.runs import Number, key_part

_Targets = Int[np.ndarray, "n k"]
METRICS = ("auroc", "accuracy", "sensitivity", "specificity", "ece", "prevalence")
MEANS = ("auroc", "accuracy", "ece")
"""Metrics whose plain mean over the labels is given."""


def multilabel_numbers(
    logits: Float[Tensor, "n k"], targets: _Targets, labels: Sequence[str], *, seed: int = 0
) -> NumberDict:
    """Per label: AUROC, accuracy, sensitivity, specificity, ECE and prevalence; and their means.

    >>> numbers = multilabel_numbers(
    ...     torch.tensor([[2.0, -1.0], [-2.0, 3.0]]), np.array([[1, 0], [0, 1]]), ["a", "b"])
    >>> numbers["label.a.accuracy"].value, numbers["multilabel.exact_match"].n
    (1.0, 2)

    Args:
        logits: one column per label.
        targets: 1, 0 or −1, as the logits.
        labels: their names.
        seed: of the resampling.
    """
    if logits.shape != targets.shape or logits.shape[1] != len(labels):
        raise InputError(
            f"got logits of shape {tuple(logits.shape)} and targets of shape {targets.shape} for "
            f"{len(labels)} labels, expected a column of both per label."
        )
    truth = torch.from_numpy(np.asarray(targets, dtype=np.int64))
    scores = logits.detach().cpu().double()
    out: NumberDict = {}
    for place, label in enumerate(labels):
        known = truth[:, place] >= 0
        own = _label(scores[known, place], truth[known, place] == 1, label, seed)
        out |= {f"label.{key_part(label)}.{metric}": number for metric, number in own.items()}
    for metric in MEANS:
        out[f"multilabel.{metric}"] = _mean(metric, labels, out)
    whole = (truth >= 0).all(1)
    if whole.any():
        right = ((scores[whole] > 0) == (truth[whole] == 1)).all(1)
        text = f"all {len(labels)} labels right at 0.5"
        out["multilabel.exact_match"] = share(right, text)
    return out


def _label(
    z: Float[Tensor, "m"], truth: Bool[Tensor, "m"], label: str, seed: int
) -> dict[str, Number]:
    """The numbers of one label; what its images cannot show says why."""
    n, given = len(z), z > 0
    if not n:
        nothing = Number.missing(f"no image says whether it shows {label}", f"label {label}")
        return dict.fromkeys(METRICS, nothing)
    p = z.sigmoid()
    bins = width_bins(p, truth, bins=15, start=0.0)
    value = ece_of(bins)
    low, high = ece_interval(bins, value, seed=seed)
    text = f"15 equal bins of [0, 1] of the probability of {label}; interval by test inversion"
    return {
        "auroc": _auroc(z, truth, label),
        "accuracy": share(given == truth, f"{label} given or not as labelled, at 0.5"),
        "sensitivity": _rate(given, truth, f"{label} given at 0.5", "with"),
        "specificity": _rate(~given, ~truth, f"{label} not given at 0.5", "without"),
        "ece": Number(value, n, low, high, text),
        "prevalence": share(truth, f"images labelled {label}"),
    }


def _auroc(z: Float[Tensor, "m"], truth: Bool[Tensor, "m"], label: str) -> Number:
    positive, negative = z[truth], z[~truth]
    text = f"{len(positive)} images with and {len(negative)} without {label}; DeLong interval"
    if not len(positive) or not len(negative):
        lack = "with" if not len(positive) else "without"
        return Number.missing(f"there is no image {lack} {label}", text, len(z))
    low, high = delong(positive.numpy(), negative.numpy())
    return Number(auroc(positive, negative), len(z), low, high, text)


def _rate(hits: Bool[Tensor, "m"], among: Bool[Tensor, "m"], text: str, lack: str) -> Number:
    if not among.any():
        return Number.missing(f"there is no image {lack} it", text)
    return share(hits[among], f"{text}, of those {lack} it")


def _mean(metric: str, labels: Sequence[str], numbers: NumberDict) -> Number:
    """Plain mean over the labels that have the number."""
    own = [numbers[f"label.{key_part(label)}.{metric}"] for label in labels]
    usable = [one for one in own if one.value is not None]
    without = f", {len(own) - len(usable)} labels without it left out" if own != usable else ""
    text = f"plain mean over {len(usable)} labels{without}; bounds are the means of their bounds"
    if not usable:
        return Number.missing("no label has this number", text)
    ends = (
        sum(float(getattr(one, name) or 0.0) for one in usable) / len(usable)
        for name in ("value", "low", "high")
    )
    value, low, high = ends
    return Number(value, max(one.n for one in usable), low, high, text)
