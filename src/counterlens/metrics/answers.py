"""One float64 pass from logits to what every metric needs: answer, confidence, score, right, loss.

Paper: Hendrycks & Gimpel 2017, arXiv:1610.02136 (maximum softmax probability as a score).
Differs: scores are log-odds of the confidence, log p − log(1 − p). They order images as the
    confidence does, but never saturate: a float32 softmax is exactly 1.0 from a logit gap of 17
    on, a float64 one from 37 on, and both make ties that are not in the logits.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from counterlens.checks import check_labels
from counterlens.errors import InputError
from counterlens.types import Flags, Labels, Logits

Doubles = Float64[Tensor, "b"]
_CELLS = 4_000_000  # float64 cells per chunk: 32 MB


@dataclass(frozen=True)
class Answers:
    """What a classifier says about each image, on the CPU.

    Args:
        answer: the class with the highest logit, the first one on a tie.
        confidence: its softmax probability after temperature.
        score: log-odds of that probability.
    """

    answer: Labels
    confidence: Doubles
    score: Doubles


@dataclass(frozen=True)
class Judged(Answers):
    """Answers compared with the true classes.

    Args:
        right: whether the answer is the true class.
        nll: −log p(true class).
        brier: squared distance between the probabilities and the true corner, in [0, 2].
    """

    right: Flags
    nll: Doubles
    brier: Doubles


def check_finite_logits(logits: Tensor, *, name: str = "logits") -> None:
    """Refuse anything but finite float logits of one row or more and two classes or more."""
    if logits.ndim != 2 or not logits.is_floating_point():
        raise InputError(
            f"{name} is {logits.dtype} of shape {tuple(logits.shape)}, "
            "expected float (images, classes)."
        )
    if len(logits) < 1 or logits.shape[1] < 2:
        raise InputError(
            f"{name} has shape {tuple(logits.shape)}, expected at least 1 image and 2 classes."
        )
    bad = sum(int((~torch.isfinite(part)).any(1).sum()) for part in _parts(logits))
    if bad:
        raise InputError(
            f"{name}: {bad} of {len(logits)} rows hold NaN or infinity. Find the images with "
            "`counterlens doctor`, or run without half precision (amp=False)."
        )


def answers(logits: Logits, *, temperature: float = 1.0) -> Answers:
    """Answer, confidence and score of each image.

    >>> result = answers(torch.tensor([[0.0, 90.0], [1.0, 1.0]]))
    >>> result.answer.tolist(), result.confidence.tolist(), result.score.tolist()
    ([1, 0], [1.0, 0.5], [90.0, 0.0])
    """
    check_finite_logits(logits)
    _check_temperature(temperature)
    rows = [_answer(part, temperature)[:3] for part in _parts(logits)]
    answer, confidence, score = (torch.cat(column).cpu() for column in zip(*rows, strict=True))
    return Answers(answer, confidence, score)


def judge(logits: Logits, labels: Labels, *, temperature: float = 1.0) -> Judged:
    """Answers beside the truth: right or wrong, negative log likelihood, Brier score.

    Equation: guo2017 (5)   q = max_k softmax(z / T)_k

    >>> result = judge(torch.tensor([[0.0, 2.0]]), torch.tensor([0]))
    >>> result.right.tolist(), round(result.nll.item(), 4), round(result.brier.item(), 4)
    ([False], 2.1269, 1.5516)
    """
    check_finite_logits(logits)
    check_labels(labels, classes=logits.shape[1], rows=len(logits))
    _check_temperature(temperature)
    rows = []
    start = 0
    for part in _parts(logits):
        answer, confidence, score, log_p = _answer(part, temperature)
        y = labels[start : start + len(part)].to(part.device, torch.int64)
        start += len(part)
        nll = -log_p.gather(1, y[:, None])[:, 0]
        p = log_p.exp_()
        p[torch.arange(len(y), device=p.device), y] = torch.expm1(-nll)  # p − 1, without rounding
        rows.append((answer, confidence, score, answer == y, nll, (p * p).sum(1)))
    columns = (torch.cat(column).cpu() for column in zip(*rows, strict=True))
    return Judged(*columns)


def _answer(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    z = logits.double() / temperature
    top, answer = z.max(1)
    if z.shape[1] == 2:
        others = z.gather(1, 1 - answer[:, None])[:, 0]
    else:
        rest = z.scatter(1, answer[:, None], -torch.inf)
        others = rest.logsumexp(1)
    score = top - others
    return answer, torch.sigmoid(score), score, z - torch.logaddexp(top, others)[:, None]


def _parts(logits: Tensor) -> list[Tensor]:
    rows = max(1, _CELLS // max(1, logits.shape[1]))
    return list(torch.split(logits.detach(), rows))


def _check_temperature(temperature: float) -> None:
    if not 0 < temperature < float("inf"):
        raise InputError(f"temperature is {temperature}, expected a finite number above 0.")
