"""OOD scores with what they need from images that are not reported on.

Constants: kNN k = one per thousand fitted images, at most 50 (50 of CIFAR's 50,000; the paper, too,
    scales k with the share of images used), ReAct 90th percentile, ASH 90 %, as OpenOOD has them;
    ViM D = 1000 from 2048 features on, 512 above 512, else half, as its authors. None is tuned on
    unknown images.
Differs: k and D shrink with few fitted images, and the words of the score say to what.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.errors import InputError
from counterlens.metrics.ood_scores import formulas
from counterlens.notation import FEATURE_SCORES, OOD_SCORES
from counterlens.types import Labels, Logits

NEIGHBOURS, PER_NEIGHBOUR, REACT, ASH = 50, 1000, 90.0, 90.0  # 50 of the 50,000 of CIFAR
LEAST = 20

_Rows = Float[Tensor, "n d"]


@dataclass(frozen=True)
class LinearHead:
    """The last linear layer: logits = features · weightᵀ + bias, float64."""

    weight: Float[Tensor, "k d"]
    bias: Float[Tensor, "k"]

    def logits(self, features: _Rows) -> Logits:
        """What leaves the layer."""
        return features.double() @ self.weight.T + self.bias


@dataclass(frozen=True)
class FittedScore:
    """A score ready to be used.

    Args:
        name: one of OOD_SCORES.
        text: its formula and constants in words, for the protocol.
        score: features to one number per image, higher for known images.
    """

    name: str
    text: str
    score: Callable[[_Rows], Tensor]


def fit(name: str, features: _Rows, labels: Labels, head: LinearHead) -> FittedScore:
    """Fit one score.

    Args:
        features: of images that are not reported on.
        labels: their classes; −1 counts as unlabelled.
    """
    if name in FEATURE_SCORES and len(features) < LEAST:
        raise InputError(
            f"{len(features)} images to fit OOD scores on, expected {LEAST} or more. "
            "Give features of more images that are not reported on."
        )
    bank = features.double()
    match name:
        case "msp":
            return FittedScore(name, "maximum softmax", lambda x: formulas.msp(head.logits(x)))
        case "max_logit":
            return FittedScore(name, "highest logit", lambda x: formulas.max_logit(head.logits(x)))
        case "energy":
            return FittedScore(name, "energy, T = 1", lambda x: formulas.energy(head.logits(x)))
        case "entropy":
            return FittedScore(name, "negative entropy", lambda x: formulas.entropy(head.logits(x)))
        case "knn":
            k = min(NEIGHBOURS, max(1, round(len(bank) / PER_NEIGHBOUR)))
            return FittedScore(name, f"kNN, k = {k}", lambda x: formulas.knn(x, bank, k))
        case "mahalanobis" | "relative_mahalanobis":
            return _gaussian(name, bank, labels)
        case "vim":
            return _vim(bank, head)
        case "react":
            ceiling = float(torch.quantile(_thinned(bank), REACT / 100))
            return FittedScore(
                name,
                f"ReAct, features clipped at {ceiling:.4g} ({REACT:g}th percentile), then energy",
                lambda x: formulas.energy(head.logits(formulas.clip(x, ceiling))),
            )
        case "ash_s" | "ash_b":
            shaped = formulas.ash_s if name == "ash_s" else formulas.ash_b
            return FittedScore(
                name,
                f"ASH-{name[-1].upper()}, {ASH:g} % of each image's features removed, then energy",
                lambda x: formulas.energy(head.logits(shaped(x, ASH))),
            )
    raise InputError(f"no fitted OOD score {name!r}, expected one of {', '.join(OOD_SCORES)}.")


def _thinned(bank: _Rows, most: int = 10_000_000) -> Tensor:
    """The values of evenly spaced rows: torch's quantile takes 16 million at most."""
    rows = max(1, min(len(bank), most // bank.shape[1]))
    return bank[torch.linspace(0, len(bank) - 1, rows).round().long()].flatten()


def _gaussian(name: str, bank: _Rows, labels: Labels) -> FittedScore:
    known = labels >= 0
    classes = torch.unique(labels[known])
    if not len(classes):
        raise InputError(f"{name} needs labels of known classes among the fitted images.")
    rows, true = bank[known], labels[known]
    means = torch.stack([rows[true == c].mean(0) for c in classes])
    centred = rows - means[torch.searchsorted(classes, true)]
    precision, full = _precision(centred)
    text = f"{len(classes)} class means, tied covariance of {len(rows)} images"
    text += "" if full else ", singular: pseudo-inverse"
    if name == "mahalanobis":
        return FittedScore(
            name, f"Mahalanobis, {text}", lambda x: formulas.mahalanobis(x, means, precision)
        )
    mean = rows.mean(0)
    whole, _ = _precision(rows - mean)
    return FittedScore(
        name,
        f"relative Mahalanobis, {text}",
        lambda x: formulas.relative_mahalanobis(x, means, precision, mean, whole),
    )


def _precision(centred: _Rows) -> tuple[Tensor, bool]:
    """Inverse of the empirical covariance and whether it has full rank."""
    covariance = centred.T @ centred / len(centred)
    rank = int(torch.linalg.matrix_rank(covariance, hermitian=True))
    return torch.linalg.pinv(covariance, hermitian=True), rank == len(covariance)


def _vim(bank: _Rows, head: LinearHead) -> FittedScore:
    width, fewest = bank.shape[1], min(bank.shape)
    size = 1000 if width >= 2048 else 512
    size = size if size < fewest else max(1, fewest // 2)
    origin = -torch.linalg.pinv(head.weight) @ head.bias
    gaps = bank - origin
    vectors = torch.linalg.eigh(gaps.T @ gaps / len(gaps)).eigenvectors  # ascending
    residual = vectors[:, : width - size]
    length = (gaps @ residual).norm(dim=1).mean()
    alpha = float(formulas.max_logit(head.logits(bank)).mean() / length.clamp_min(1e-12))
    return FittedScore(
        "vim",
        f"ViM, D = {size} of {width}, α = {alpha:.4g}",
        lambda x: formulas.vim(x, head.logits(x), origin, residual, alpha),
    )
