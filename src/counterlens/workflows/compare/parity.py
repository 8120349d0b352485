"""Parity: whether a later model gives the logits of the first, as an export of it must.

Numbers for every pair with the same classes on the same images; the images whose logits differ most
are listed. Which fault makes them part is the doctor's question: `doctor --exported-from`.
"""

from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np
from jaxtyping import Float64

from counterlens.runs import LogitSet, Number, key_part
from counterlens.workflows.compare.pairs import Z, with_first

LISTED = 50
"""Images that are listed at most."""
_Rows = Float64[np.ndarray, "n k"]


def parity_results(
    logits: Mapping[str, Mapping[str, LogitSet]],
) -> tuple[dict[str, Number], list[dict[str, Any]]]:
    """Parity of each later model with the first, and a row per image on which they part most.

    The keys are parity.same_answer and so on for two models, parity.NAME.same_answer for more.
    """
    first = next(iter(logits))
    numbers: dict[str, Number] = {}
    rows: list[dict[str, Any]] = []
    for name, inside, one, two, (left, right) in with_first(logits):
        if not len(left) or one.logits.shape[1] != two.logits.shape[1]:
            continue
        a, b = (np.asarray(k.logits[i], dtype=np.float64) for k, i in ((one, left), (two, right)))
        where = f"{len(left):,} images of {inside} that both {first} and {name} saw"
        part = "parity" if len(logits) == 2 else f"parity.{key_part(name)}"
        numbers |= {f"{part}.{key}": number for key, number in parity(a, b, where).items()}
        gaps = np.abs(a - b).max(1)
        rows += [
            {
                "model": name,
                "image": one.ids[int(left[i])],
                "gap": float(gaps[i]),
                "same_answer": bool(a[i].argmax() == b[i].argmax()),
            }
            for i in np.argsort(-gaps, kind="stable")[:LISTED]
            if gaps[i] > 0
        ]
    return numbers, rows


def parity(a: _Rows, b: _Rows, where: str) -> dict[str, Number]:
    """Equal answers, and how far the logits are apart, in the first model's spread.

    >>> same = parity(np.eye(2), np.eye(2), "x")
    >>> same["same_answer"].value, same["logit_gap"].value
    (1.0, 0.0)
    """
    n = len(a)
    spread = float(a.std()) or 1.0
    gaps = np.abs(a - b) / spread
    largest, each = float(gaps.max()), gaps.mean(1)
    mean = float(each.mean())
    half = Z * float(each.std(ddof=1)) / sqrt(n) if n > 1 else 0.0
    text = f"difference of logits over the spread of the first model's, on {where}"
    return {
        "same_answer": Number.share(
            int((a.argmax(1) == b.argmax(1)).sum()), n, f"equal answers, of {where}"
        ),
        "logit_gap": Number(
            mean, n, max(mean - half, 0.0), mean + half, f"mean {text}; normal interval"
        ),
        "logit_gap_max": Number(largest, n, largest, largest, f"largest {text}; exact"),
    }
