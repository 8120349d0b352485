"""Objectives: what a search raises over images. One score per image, higher is better.

Paper: Croce and Hein 2020 (autoattack2020) for DLR; Augustin et al. 2020 (ratio2020) for the
       margin and the divergence from uniform that the RATIO training attacks raise; Augustin et
       al. 2024 (digin2024) for what counterfactuals, disagreement and neuron pictures raise.
Differs: log-probabilities instead of probabilities, because those saturate. Each objective
       exists twice: as a function of logits (`ce`, `margin_of`, ...), which the engine calls when
       it has the logits anyway, and as an `Objective` over images.

Where every image has a label of its own (a class, a unit), the objective is `Labelled`: it knows
which label belongs to which row, so it can be asked for some of the images, or for many crops of
each.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterlens.errors import InputError
from counterlens.types import Images, Labels, Logits, Objective, Scores

Predict = Callable[[Images], Logits]
ScoreTable = Callable[[Images], Float[Tensor, "b k"]]
"""Images to a row of numbers each: logits, probabilities or features."""

_TINY = 1e-12
_MASKED = -1e30


@dataclass(frozen=True)
class Labelled:
    """An objective whose images have a label each; called with images, it is an `Objective`.

    >>> first = Labelled(lambda z, y: at(z.flatten(1), y), torch.tensor([1, 0]))
    >>> z = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).view(2, 1, 1, 2)
    >>> first(z), first.rows([1])(z[1:])
    (tensor([2., 3.]), tensor([3.]))

    Args:
        value: images and their labels to scores.
        label: of each image.
    """

    value: Callable[[Images, Labels], Scores]
    label: Labels

    def __call__(self, z: Images) -> Scores:
        return self.value(z, self.label)

    def rows(self, index: Sequence[int] | Int[Tensor, "r"]) -> "Labelled":
        """The same for some of the images, or for one of them several times."""
        chosen = index if isinstance(index, Tensor) else list(index)
        return Labelled(self.value, self.label[chosen])


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


def wrongness(predict: Predict, label: Labels) -> Labelled:
    """Cross-entropy of the true label."""
    return Labelled(lambda z, y: ce(predict(z), y), label)


def margin(predict: Predict, label: Labels) -> Labelled:
    """Best other logit minus the true one."""
    return Labelled(lambda z, y: margin_of(predict(z), y), label)


def dlr(predict: Predict, label: Labels) -> Labelled:
    """Difference of logits ratio, three classes or more."""
    return Labelled(lambda z, y: dlr_of(predict(z), y), label)


def targeted_dlr(predict: Predict, label: Labels, target: Labels) -> Objective:
    """Difference of logits ratio towards one class, four classes or more."""
    return lambda z: targeted_dlr_of(predict(z), label, target)


def log_confidence(predict: Predict, target: Labels) -> Labelled:
    """Log-probability of the target class."""
    return Labelled(lambda z, y: log_confidence_of(predict(z), y), target)


def entry(table: ScoreTable, label: Labels) -> Labelled:
    """One number of each image's row: a unit's activation, a class's confidence.

    Equation: digin2024 (6)   max φ(x)_n
    """
    return Labelled(lambda z, y: at(full(table(z)), y), label)


def probabilities(predict: Predict, temperature: float = 1.0) -> ScoreTable:
    """Class probabilities after temperature, as a table for `entry`."""
    return lambda z: (full(predict(z)) / temperature).softmax(1)


def log_probabilities(predict: Predict, temperature: float = 1.0) -> ScoreTable:
    """Their logarithms.

    Equation: digin2024 (5)   log p_f(y | x); (20) for a zero-shot classifier of two texts
    """
    return lambda z: (full(predict(z)) / temperature).log_softmax(1)


def log_doubt(predict: Predict, label: Labels, temperature: float = 1.0) -> Labelled:
    """Log-probability of all other classes: log(1 − p_y), with a gradient where p_y is near 1."""

    def value(z: Images, label: Labels) -> Scores:
        logits = full(predict(z)) / temperature
        others = logits.scatter(1, label[:, None], -torch.inf)
        return others.logsumexp(1) - logits.logsumexp(1)

    return Labelled(value, label)


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
