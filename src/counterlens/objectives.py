"""Objectives: what a search raises over images. One score per image, higher is better.

Paper: Croce and Hein 2020 (autoattack2020) for DLR; Augustin et al. 2020 (ratio2020) for the
       margin and the divergence from uniform that the RATIO training attacks raise.
Differs: log-probabilities instead of probabilities, because those saturate. Each objective
       exists twice: as a function of logits (`ce`, `margin_of`, ...), which the engine calls when
       it has the logits anyway, and as an `Objective` over images that closes over its rows.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from counterlens.errors import InputError
from counterlens.types import Images, Labels, Logits, Objective, Scores

Predict = Callable[[Images], Logits]

_TINY = 1e-12
_MASKED = -1e30


def full(logits: Logits) -> Logits:
    """Logits in float32 at least: scores are compared, so half precision would tie them."""
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits


def at(logits: Logits, label: Labels) -> Scores:
    """The logit of one class per row."""
    return logits.gather(1, label[:, None])[:, 0]


def ce(logits: Logits, label: Labels) -> Scores:
    """Cross-entropy of the true label: −log p_y."""
    logits = full(logits)
    return torch.logsumexp(logits, 1) - at(logits, label)


def margin_of(logits: Logits, label: Labels) -> Scores:
    """Best other logit minus the true one: above 0 the image is misclassified, at 0 it is a tie.

    Equation: ratio2020 (2)   max_{k≠y} f_k(z) − f_y(z)
    """
    logits = full(logits)
    other = logits.scatter(1, label[:, None], _MASKED)
    return other.amax(1) - at(logits, label)


def decision_margin_of(logits: Logits, label: Labels) -> Scores:
    """The margin, above 0 exactly where arg-max is another class.

    At a tie arg-max takes the first of the tied classes, and so does every accuracy; the margin
    alone is 0 there and does not show whether the image is misclassified.
    """
    margin = margin_of(logits, label)
    lost_tie = (margin == 0) & (full(logits).argmax(1) != label)
    return torch.where(lost_tie, torch.finfo(margin.dtype).tiny, margin)


def dlr_of(logits: Logits, label: Labels) -> Scores:
    """Difference of logits ratio: a margin that no rescaling of the logits changes.

    Equation: autoattack2020 (6)   −(z_y − max_{i≠y} z_i) / (z_π1 − z_π3)
    """
    _need(logits, 3, "dlr")
    logits = full(logits)
    top = logits.topk(3, dim=1).values
    return margin_of(logits, label) / (top[:, 0] - top[:, 2] + _TINY)


def targeted_dlr_of(logits: Logits, label: Labels, target: Labels) -> Scores:
    """Difference of logits ratio towards one class.

    Equation: autoattack2020 (7)   −(z_y − z_t) / (z_π1 − ½ (z_π3 + z_π4))
    """
    _need(logits, 4, "targeted dlr")
    logits = full(logits)
    top = logits.topk(4, dim=1).values
    span = top[:, 0] - (top[:, 2] + top[:, 3]) / 2 + _TINY
    return (at(logits, target) - at(logits, label)) / span


def log_confidence_of(logits: Logits, target: Labels) -> Scores:
    """Log-probability of one class per row."""
    return -ce(logits, target)


def confidence_anywhere_of(logits: Logits) -> Scores:
    """Log-probability of the top class, whichever it is.

    Equation: ratio2020 §4.1   log max_k p_k(z)
    """
    logits = full(logits)
    return logits.amax(1) - torch.logsumexp(logits, 1)


def lead_of(logits: Logits) -> Scores:
    """Top logit minus the second: grows where the log-probability has long saturated."""
    top = full(logits).topk(2, dim=1).values
    return top[:, 0] - top[:, 1]


def uniform_divergence_of(logits: Logits) -> Scores:
    """How far the prediction is from knowing nothing.

    Equation: ratio2020 (3)   KL(1/K ‖ p(z)) = −(1/K) Σ_k log p_k(z) − log K
    """
    logits = full(logits)
    classes = torch.full((), logits.shape[1], dtype=logits.dtype, device=logits.device)
    return torch.logsumexp(logits, 1) - logits.mean(1) - classes.log()


def wrongness(predict: Predict, label: Labels) -> Objective:
    """Cross-entropy of the true label."""
    return lambda z: ce(predict(z), label)


def margin(predict: Predict, label: Labels) -> Objective:
    """Best other logit minus the true one."""
    return lambda z: margin_of(predict(z), label)


def dlr(predict: Predict, label: Labels) -> Objective:
    """Difference of logits ratio, three classes or more."""
    return lambda z: dlr_of(predict(z), label)


def targeted_dlr(predict: Predict, label: Labels, target: Labels) -> Objective:
    """Difference of logits ratio towards one class, four classes or more."""
    return lambda z: targeted_dlr_of(predict(z), label, target)


def log_confidence(predict: Predict, target: Labels) -> Objective:
    """Log-probability of the target class."""
    return lambda z: log_confidence_of(predict(z), target)


def confidence_anywhere(predict: Predict) -> Objective:
    """Log-probability of the top class, whichever it is."""
    return lambda z: confidence_anywhere_of(predict(z))


def lead(predict: Predict) -> Objective:
    """Top logit minus the second."""
    return lambda z: lead_of(predict(z))


def uniform_divergence(predict: Predict) -> Objective:
    """How far the prediction is from uniform: what the out-distribution attack of RATIO raises."""
    return lambda z: uniform_divergence_of(predict(z))


def weighted(*terms: tuple[float, Objective]) -> Objective:
    """A weighted sum of objectives.

    >>> both = weighted((2.0, lambda z: z.sum((1, 2, 3))), (-1.0, lambda z: z.amax((1, 2, 3))))
    >>> both(torch.ones(1, 1, 1, 2))
    tensor([3.])
    """
    if not terms:
        raise InputError("weighted() has no terms, expected at least one (weight, objective) pair.")

    def total(z: Images) -> Scores:
        score: Tensor = terms[0][0] * terms[0][1](z)
        for weight, objective in terms[1:]:
            score = score + weight * objective(z)
        return score

    return total


def _need(logits: Logits, classes: int, name: str) -> None:
    if logits.shape[1] < classes:
        raise InputError(
            f"{name} needs {classes} classes or more, the model has {logits.shape[1]}. "
            "Use the margin instead."
        )
