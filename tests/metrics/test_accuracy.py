"""Accuracy against scikit-learn and hand-counted tables."""

import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, top_k_accuracy_score

import metric_references as literal
from counterlens.errors import InputError
from counterlens.metrics import accuracy, confusions, judge, per_class, top_k

CASES = literal.edge_cases()


@pytest.mark.parametrize("case", CASES)
def test_top_1_equals_scikit_learn(case):
    logits, labels = CASES[case]
    expected = accuracy_score(labels, logits.argmax(1))
    assert accuracy(logits, labels) == pytest.approx(expected, abs=1e-12)
    assert judge(logits, labels).right.double().mean() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, 5, 7])
def test_top_k_equals_scikit_learn_without_ties(k):
    logits, labels = CASES["one class missing"]
    expected = top_k_accuracy_score(labels, logits, k=k, labels=range(7)) if k < 7 else 1.0
    assert accuracy(logits, labels, k=k) == pytest.approx(expected, abs=1e-12)


def test_tied_classes_are_ranked_by_index():
    logits = torch.zeros(4, 4)
    assert top_k(logits, torch.arange(4), k=2).tolist() == [True, True, False, False]


@pytest.mark.parametrize("k", [0, 4])
def test_k_must_fit_the_classes(k):
    with pytest.raises(InputError, match=r"expected 1 … 3"):
        top_k(torch.zeros(2, 3), torch.tensor([0, 1]), k=k)


def test_tables_hold_the_confusion_matrix_of_scikit_learn():
    logits, labels = CASES["one class missing"]
    names = [f"c{i}" for i in range(7)]
    matrix = confusion_matrix(labels, logits.argmax(1), labels=range(7))
    rows = confusions(logits.argmax(1), labels, names, limit=1000)
    assert {(r["true"], r["predicted"]): r["count"] for r in rows} == {
        (names[t], names[p]): matrix[t, p]
        for t in range(7)
        for p in range(7)
        if t != p and matrix[t, p]
    }
    assert [r["count"] for r in rows] == sorted((r["count"] for r in rows), reverse=True)
    table = per_class(judge(logits, labels), labels, names)
    assert [r["class"] for r in table] == names[:6]  # the last class has no images
    for c, row in enumerate(table):
        assert row["n"] == matrix[c].sum()
        assert row["accuracy"] == pytest.approx(matrix[c, c] / matrix[c].sum())
        assert row["low"] <= row["accuracy"] <= row["high"]
        wrong = matrix[c].copy()
        wrong[c] = 0
        assert row["confused_share"] == pytest.approx(wrong.max() / matrix[c].sum())
        mine = judge(logits, labels).confidence[labels == c]
        assert row["confidence"] == pytest.approx(mine.mean().item())


def test_a_class_without_mistakes_is_confused_with_nothing():
    logits = torch.eye(2)
    rows = per_class(judge(logits, torch.arange(2)), torch.arange(2), ["cat", "dog"])
    assert [r["confused_with"] for r in rows] == [None, None]
    assert confusions(torch.arange(2), torch.arange(2), ["cat", "dog"]) == []


def test_labels_outside_the_classes_are_refused():
    with pytest.raises(InputError, match="expected 0 … 1"):
        judge(torch.zeros(2, 2), torch.tensor([0, -1]))
