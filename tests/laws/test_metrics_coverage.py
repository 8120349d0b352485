"""95 % intervals hold the truth about 95 % of the time, in simulated worlds of known truth.

Calibrated logits u, labels drawn from softmax(u), measured logits z = factor · u; the truth comes
from a large sample with the labels averaged out. benchmarks/coverage.py does the same at length.
"""

import numpy as np
import pytest
import torch
from scipy.stats import binom

from counterlens.metrics import (
    answers,
    aupr,
    auroc,
    classification_numbers,
    fpr95,
    ood_numbers,
    temperature_number,
)
from counterlens.metrics.calibration import count_bins, ece_of, rms_of, width_bins

K, SPREAD, MANY = 6, 2.5, 100_000


pytestmark = pytest.mark.usefixtures("one_thread")


def _logits(rng: np.random.Generator, n: int, spread: float = SPREAD) -> torch.Tensor:
    return torch.from_numpy(rng.normal(size=(n, K)) * spread)


def _labels(rng: np.random.Generator, u: torch.Tensor) -> torch.Tensor:
    return (u + torch.from_numpy(rng.gumbel(size=u.shape))).argmax(1)


def _truth(u: torch.Tensor, factor: float, n: int) -> dict[str, float]:
    p, z = u.softmax(1), u * factor
    said = answers(z)
    hit = p.gather(1, said.answer[:, None])[:, 0]
    log_q = z.log_softmax(1)
    equal = count_bins(said.confidence, hit, size=len(u) // (n // 100))
    order = said.score.argsort(descending=True)
    curve = hit[order].cumsum(0) / torch.arange(1, len(u) + 1)
    return {
        "accuracy.top1": hit.mean().item(),
        "calibration.ece": ece_of(width_bins(said.confidence, hit, start=1 / K)),
        "calibration.ece_common": ece_of(width_bins(said.confidence, hit)),
        "calibration.rms": rms_of(equal),
        "calibration.rms_paper": rms_of(equal, last=False),
        "calibration.nll": -(p * log_q).sum(1).mean().item(),
        "calibration.brier": (1 - 2 * (p * log_q.exp()).sum(1) + log_q.exp().pow(2).sum(1))
        .mean()
        .item(),
        "selective.aurra": curve.mean().item(),
    }


def _check(truth: dict[str, float], found: list[dict]) -> None:
    """Refuse counts that a coverage of 93 to 97 % would give less than once in a thousand."""
    n = len(found)
    fewest, most = binom.ppf(0.001, n, 0.93), binom.ppf(0.999, n, 0.97)
    held = {
        key: sum(row[key].low - 1e-9 <= value <= row[key].high + 1e-9 for row in found)
        for key, value in truth.items()
    }
    assert all(fewest <= count <= most for count in held.values()), (n, held)


def _classification(factor: float, repeats: int, n: int) -> None:
    rng = np.random.default_rng(3)
    truth = _truth(_logits(rng, MANY), factor, n)
    found = []
    for repeat in range(repeats):
        u = _logits(rng, n)
        found.append(classification_numbers(u * factor, _labels(rng, u), seed=repeat))
    _check(truth, found)


def _ood(repeats: int) -> None:
    rng = np.random.default_rng(4)
    a, b = (answers(_logits(rng, MANY, s)) for s in (SPREAD, SPREAD / 2))
    truth = {
        "ood.far.auroc": auroc(a.score, b.score),
        "ood.far.aupr": aupr(a.score, b.score, ratio=0.5),
        "ood.far.fpr95": fpr95(a.score, b.score),
        "ood.far.mmc": b.confidence.mean().item(),
    }
    found = [
        ood_numbers(_logits(rng, 300), _logits(rng, 150, SPREAD / 2), name="far", seed=repeat)
        for repeat in range(repeats)
    ]
    _check(truth, found)


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_classification_intervals_hold_the_truth(factor):
    _classification(factor, repeats=50, n=200)


def test_ood_intervals_hold_the_truth():
    _ood(repeats=60)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.0, 1.1, 1.5])
@pytest.mark.parametrize("n", [300, 1000])
def test_classification_intervals_hold_the_truth_at_length(factor, n):
    _classification(factor, repeats=600, n=n)


@pytest.mark.slow
def test_ood_intervals_hold_the_truth_at_length():
    _ood(repeats=1000)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ece", "nll"])
def test_temperature_intervals_hold_the_truth(method):
    rng = np.random.default_rng(5)
    found = []
    for repeat in range(300):
        u = _logits(rng, 800)
        y = _labels(rng, u)
        number = temperature_number(1.5 * u, y, source="these", method=method, seed=repeat)
        found.append({"calibration.temperature": number})
    _check({"calibration.temperature": 1.5}, found)


def test_a_plain_bootstrap_of_ece_would_not_pass():
    """Why the calibration intervals are not plain: resampling noise adds noise to noise."""
    rng = np.random.default_rng(6)
    held = 0
    for _ in range(15):
        u = _logits(rng, 300)
        said = answers(u)
        right = said.answer == _labels(rng, u)
        values = []
        for _ in range(60):
            rows = torch.from_numpy(rng.integers(0, 300, 300))
            values.append(ece_of(width_bins(said.confidence[rows], right[rows], start=1 / K)))
        held += np.quantile(values, 0.025) <= 0.0
    assert held < 8
