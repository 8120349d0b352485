"""Robust accuracy class by class, and what broken images are taken for."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from counterlens.metrics.intervals.closed_form import wilson
from counterlens.runs import Run
from counterlens.search import Robustness

CONFUSIONS = 20


def write_classes(
    run: Run,
    attack: str,
    result: Robustness,
    labels: Int64[np.ndarray, "n"],
    answers: Int64[np.ndarray, "n"],
    classes: Sequence[str],
) -> None:
    """Tables `robust_classes` and `robust_confusions`, in place of those of an earlier try.

    Args:
        answers: of the model at the points that the attack left.
    """
    robust, correct = result.robust.numpy(), result.correct.numpy()
    bound = "" if result.complete else "upper bound"
    rows = [row for row in run.table("robust_classes") if row["attack"] != attack]
    for label in np.unique(labels).tolist():
        own = labels == label
        hits, n = int(robust[own].sum()), int(own.sum())
        low, high = wilson(hits, n)
        row = {"attack": attack, "class": classes[label], "n": n, "accuracy": hits / n}
        clean = float(correct[own].mean())
        rows.append({**row, "low": low, "high": high, "clean": clean, "bound": bound})
    run.write_table("robust_classes", rows)
    table = [row for row in run.table("robust_confusions") if row["attack"] != attack]
    run.write_table(
        "robust_confusions", table + _confusions(result, attack, labels, answers, classes)
    )


def _confusions(
    result: Robustness,
    attack: str,
    labels: Int64[np.ndarray, "n"],
    answers: Int64[np.ndarray, "n"],
    classes: Sequence[str],
) -> list[dict[str, object]]:
    """Classes of images that were right before the attack, and what they are taken for after."""
    broken = (result.correct & ~result.robust).numpy()
    pairs, counts = np.unique(
        np.stack([labels[broken], answers[broken]], axis=1), axis=0, return_counts=True
    )
    order = np.argsort(-counts, kind="stable")[:CONFUSIONS]
    return [
        {
            "attack": attack,
            "true": classes[int(pairs[k, 0])],
            "predicted": classes[int(pairs[k, 1])],
            "count": int(counts[k]),
            "share": float(counts[k] / (labels == pairs[k, 0]).sum()),
        }
        for k in order.tolist()
    ]
