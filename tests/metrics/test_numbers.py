"""The numbers of an audit: keys, protocols, intervals; values are those of the pure functions."""

import pytest

import metric_references as literal
from counterlens.metrics import (
    answers,
    aupr,
    auroc,
    aurra,
    brier,
    classification_numbers,
    ece,
    fpr95,
    judge,
    mmc,
    nll,
    ood_numbers,
    rms,
    temperature_number,
)

CASES = literal.edge_cases()
KEYS = {
    "accuracy.top1",
    "accuracy.top1_all",
    "calibration.brier",
    "calibration.ece",
    "calibration.ece_common",
    "calibration.nll",
    "calibration.rms",
    "calibration.rms_paper",
    "selective.aurra",
}
SCALED = {
    "calibration.ece_common_scaled",
    "calibration.ece_scaled",
    "calibration.nll_scaled",
    "calibration.rms_scaled",
}


def _walk(numbers):
    for key, number in numbers.items():
        assert number.low <= number.value <= number.high, key
        assert number.n >= 1, key
        assert len(number.protocol) > 20, key


@pytest.mark.parametrize("case", CASES)
def test_every_number_has_an_interval_an_n_and_a_protocol(case):
    logits, labels = CASES[case]
    numbers = classification_numbers(logits, labels, temperature=1.5, protocol="seven things")
    top5 = {"accuracy.top5"} if logits.shape[1] > 5 else set()
    one_bin = {"calibration.rms_paper"} if len(logits) < 200 else set()  # of 100: none is left
    assert set(numbers) == (KEYS | SCALED | top5) - one_bin
    _walk(numbers)
    assert all("seven things" in number.protocol for number in numbers.values())
    _walk(ood_numbers(logits, logits * 0.5, name="soft"))


def test_values_are_those_of_the_pure_functions():
    logits, labels = CASES["random"]
    probs, hot = logits.softmax(1), (logits / 2.5).softmax(1)
    judged = judge(logits, labels)
    numbers = classification_numbers(logits, labels, temperature=2.5)
    expected = {
        "accuracy.top1": judged.right.double().mean().item(),
        "calibration.ece": ece(probs, labels),
        "calibration.ece_common": ece(probs, labels, span="common"),
        "calibration.ece_scaled": ece(hot, labels),
        "calibration.rms": rms(probs, labels),
        "calibration.rms_paper": rms(probs, labels, last=False),
        "calibration.nll": nll(probs, labels),
        "calibration.nll_scaled": nll(hot, labels),
        "calibration.brier": brier(probs, labels),
        "selective.aurra": aurra(judged.score, judged.right),
    }
    assert {k: numbers[k].value for k in expected} == pytest.approx(expected, abs=1e-9)
    assert all(numbers[key].n == 257 for key in expected)


def test_the_number_over_all_classes_stands_beside_the_protocol():
    logits, labels = CASES["one class missing"]
    numbers = classification_numbers(
        logits[:, :6], labels, protocol="6 of 7 classes", everything=(logits, labels)
    )
    assert numbers["accuracy.top1"].value > numbers["accuracy.top1_all"].value
    assert "all 7 classes" in numbers["accuracy.top1_all"].protocol


def test_ood_numbers_follow_the_temperature_and_name_the_positive_class():
    logits, _ = CASES["random"]
    known, unknown = logits[:150], logits[150:] * 0.7
    numbers = ood_numbers(known, unknown, name="street view", temperature=3.0)
    a, b = answers(known, temperature=3.0), answers(unknown, temperature=3.0)
    expected = {
        "ood.street_view.auroc": auroc(a.score, b.score),
        "ood.street_view.aupr": aupr(a.score, b.score),
        "ood.street_view.fpr95": fpr95(a.score, b.score),
        "ood.street_view.mmc": mmc(b.confidence),
    }
    assert {k: n.value for k, n in numbers.items()} == pytest.approx(expected, abs=1e-12)
    assert "known positive" in numbers["ood.street_view.auroc"].protocol
    assert "unknown positive" in numbers["ood.street_view.aupr"].protocol
    assert "107 unknown to 150 known" in numbers["ood.street_view.aupr"].protocol


@pytest.mark.parametrize("method", ["ece", "nll"])
def test_a_temperature_says_where_it_was_fitted(method):
    logits, labels = CASES["random"]
    number = temperature_number(logits, labels, source="20 % held out by id", method=method)
    assert "fitted on 20 % held out by id" in number.protocol
    assert number.low <= number.value <= number.high
    assert number.n == 257
