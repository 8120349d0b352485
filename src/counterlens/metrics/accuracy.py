"""How often the answer is right: overall, among the k best, class by class.

Differs: an image whose true class ties with others counts by class index, lowest first, as
    arg-max does; so top-1 of `top_k` and the arg-max agree on every input.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from counterlens.checks import check_labels
from counterlens.errors import InputError
from counterlens.metrics.answers import Judged
from counterlens.metrics.intervals.closed_form import wilson
from counterlens.types import Flags, Labels, Logits

_Row = dict[str, object]


def top_k(logits: Logits, labels: Labels, *, k: int = 1) -> Flags:
    """Whether the true class is among the k highest logits.

    >>> top_k(torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), torch.tensor([1, 2]), k=2).tolist()
    [True, False]
    """
    check_labels(labels, classes=logits.shape[1], rows=len(logits))
    if not 1 <= k <= logits.shape[1]:
        raise InputError(f"k is {k}, expected 1 … {logits.shape[1]}, the number of classes.")
    y = labels.to(logits.device, torch.int64)[:, None]
    own = logits.gather(1, y)
    before = torch.arange(logits.shape[1], device=logits.device) < y
    rank = ((logits > own) | ((logits == own) & before)).sum(1)
    return (rank < k).cpu()


def accuracy(logits: Logits, labels: Labels, *, k: int = 1) -> float:
    """Share of images whose true class is among the k highest logits."""
    return top_k(logits, labels, k=k).double().mean().item()


def per_class(judged: Judged, labels: Labels, classes: Sequence[str]) -> list[_Row]:
    """One row per class that occurs: n, accuracy with its Wilson interval, its main confusion."""
    table = _counts(judged.answer, labels, len(classes))
    seen = table.sum(1)
    confidence = torch.zeros(len(classes), dtype=torch.float64)
    confidence.index_add_(0, labels.cpu().long(), judged.confidence)
    rows: list[_Row] = []
    for c in seen.nonzero()[:, 0].tolist():
        n, hits = int(seen[c]), int(table[c, c])
        low, high = wilson(hits, n)
        wrong = table[c].clone()
        wrong[c] = 0
        other = int(wrong.argmax())
        missed = bool(wrong[other])
        rows.append(
            {
                "class": classes[c],
                "n": n,
                "accuracy": hits / n,
                "low": low,
                "high": high,
                "confidence": confidence[c].item() / n,
                "confused_with": classes[other] if missed else None,
                "confused_share": int(wrong[other]) / n,
            }
        )
    return rows


def confusions(
    answer: Labels, labels: Labels, classes: Sequence[str], *, limit: int = 100
) -> list[_Row]:
    """The mistakes, most frequent pair first; share is of the images of the true class.

    >>> confusions(torch.tensor([1, 1, 0]), torch.tensor([0, 0, 0]), ["cat", "dog"])
    [{'true': 'cat', 'predicted': 'dog', 'count': 2, 'share': 0.6666666666666666}]
    """
    table = _counts(answer, labels, len(classes))
    seen = table.sum(1)
    wrong = table.clone().fill_diagonal_(0)
    pairs = wrong.nonzero()
    counts = wrong[pairs[:, 0], pairs[:, 1]]
    first = counts.argsort(descending=True, stable=True)[:limit]
    return [
        {"true": classes[t], "predicted": classes[p], "count": c, "share": c / int(seen[t])}
        for (t, p), c in zip(pairs[first].tolist(), counts[first].tolist(), strict=True)
    ]


def _counts(answer: Tensor, labels: Tensor, k: int) -> Tensor:
    check_labels(labels, classes=k, rows=len(answer))
    cell = labels.cpu().long() * k + answer.cpu().long()
    return torch.bincount(cell, minlength=k * k).view(k, k)
