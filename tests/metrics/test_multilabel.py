"""Numbers of multi-label models against scikit-learn and laws."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, recall_score, roc_auc_score

from counterlens.errors import InputError
from counterlens.metrics.multilabel import METRICS, multilabel_numbers

LABELS = ("effusion", "mass", "no finding")


def drawn(seed: int, n: int = 60) -> tuple[torch.Tensor, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = (rng.random((n, 3)) < (0.5, 0.2, 0.3)).astype(np.int8)
    logits = torch.from_numpy(2 * truth - 1 + rng.normal(0, 1.5, (n, 3))).float()
    truth[rng.random((n, 3)) < 0.1] = -1
    return logits, truth


@given(st.integers(0, 10_000))
def test_each_label_is_what_scikit_learn_finds(seed: int) -> None:
    logits, truth = drawn(seed)
    numbers = multilabel_numbers(logits, truth, LABELS)
    for k, label in enumerate(("effusion", "mass", "no_finding")):
        known = truth[:, k] >= 0
        y, z = truth[known, k], logits[known, k].double().numpy()
        if len(set(y.tolist())) < 2:
            continue
        expected = {
            "auroc": roc_auc_score(y, z),
            "accuracy": accuracy_score(y, z > 0),
            "sensitivity": recall_score(y, z > 0),
            "specificity": recall_score(1 - y, z <= 0),
            "prevalence": y.mean(),
        }
        for metric, value in expected.items():
            number = numbers[f"label.{label}.{metric}"]
            assert number.value == pytest.approx(value, abs=1e-9), metric
            assert number.low <= number.value <= number.high
        assert numbers[f"label.{label}.accuracy"].n == known.sum()
    whole = (truth >= 0).all(1)
    right = ((logits.numpy() > 0) == (truth == 1)).all(1)[whole]
    assert numbers["multilabel.exact_match"].value == pytest.approx(right.mean())


def test_calibration_of_a_label_is_a_literal_sum() -> None:
    logits, truth = drawn(1)
    number = multilabel_numbers(logits, truth, LABELS)["label.effusion.ece"]
    known = truth[:, 0] >= 0
    p, y = logits[known, 0].double().sigmoid().numpy(), truth[known, 0]
    total = 0.0
    for k in range(15):
        inside = (p > k / 15) & (p <= (k + 1) / 15) | ((k == 0) & (p == 0))
        if inside.any():
            total += inside.sum() / len(p) * abs(p[inside].mean() - y[inside].mean())
    assert number.value == pytest.approx(total, abs=1e-9)


def test_what_no_image_shows_says_why() -> None:
    logits, truth = drawn(2)
    truth[:, 1] = np.where(truth[:, 1] == 1, 0, truth[:, 1])
    truth[:, 2] = -1
    numbers = multilabel_numbers(logits, truth, LABELS)
    assert "no image with mass" in (numbers["label.mass.auroc"].reason or "")
    assert all(numbers[f"label.no_finding.{metric}"].value is None for metric in METRICS)
    means = [numbers["label.effusion.ece"].value, numbers["label.mass.ece"].value]
    assert numbers["multilabel.ece"].value == pytest.approx(np.mean(means))
    assert "1 labels without it left out" in numbers["multilabel.ece"].protocol
    assert "multilabel.exact_match" not in numbers


def test_shapes_that_do_not_fit_are_refused() -> None:
    logits, truth = drawn(3)
    with pytest.raises(InputError, match="a column of both per label"):
        multilabel_numbers(logits, truth[:, :2], LABELS)
