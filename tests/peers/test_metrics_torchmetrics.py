"""The same numbers as torchmetrics to 1e-6, and the one difference there is, pinned."""

import pytest
import torch

import metric_references as literal

torchmetrics = pytest.importorskip("torchmetrics.functional.classification")

from counterlens.metrics import accuracy, aupr, auroc, ece  # noqa: E402

CASES = literal.edge_cases()


@pytest.mark.parametrize("case", ["random", "one class missing", "two classes", "one image, right"])
def test_ece_in_common_bins_is_theirs(case):
    logits, labels = CASES[case]
    probs = logits.softmax(1)
    theirs = torchmetrics.multiclass_calibration_error(
        probs, labels, num_classes=logits.shape[1], n_bins=15, norm="l1"
    )
    assert ece(probs, labels, span="common") == pytest.approx(theirs.item(), abs=1e-6)


def test_at_confidence_one_they_open_a_bin_of_its_own():
    """0.96 right and 1.0 wrong: one bin of mean gap 0.48 here, gaps 0.04 and 1 apart there."""
    probs = torch.tensor([[0.96, 0.04], [1.0, 0.0]], dtype=torch.float64)
    labels = torch.tensor([0, 1])
    theirs = torchmetrics.multiclass_calibration_error(probs, labels, num_classes=2, n_bins=10)
    assert theirs.item() == pytest.approx((0.04 + 1) / 2, abs=1e-6)
    assert ece(probs, labels, bins=10, span="common") == pytest.approx(0.96 / 2, abs=1e-12)


@pytest.mark.parametrize("k", [1, 5])
def test_top_k_accuracy_is_theirs(k):
    logits, labels = CASES["random"]
    theirs = torchmetrics.multiclass_accuracy(
        logits, labels, num_classes=7, top_k=k, average="micro"
    )
    assert accuracy(logits, labels, k=k) == pytest.approx(theirs.item(), abs=1e-6)


@pytest.mark.parametrize("digits", [6, 1])
def test_auroc_and_average_precision_are_theirs(rng, digits):
    inside = torch.rand(300, generator=rng, dtype=torch.float64).round(decimals=digits)
    outside = (torch.rand(200, generator=rng, dtype=torch.float64) ** 2).round(decimals=digits)
    scores = torch.cat([inside, outside])
    known = torch.cat([torch.ones(300), torch.zeros(200)]).long()
    theirs = torchmetrics.binary_auroc(scores, known)
    assert auroc(inside, outside) == pytest.approx(theirs.item(), abs=1e-6)
    theirs = torchmetrics.binary_average_precision(1 - scores, 1 - known)
    assert aupr(inside, outside) == pytest.approx(theirs.item(), abs=1e-6)
