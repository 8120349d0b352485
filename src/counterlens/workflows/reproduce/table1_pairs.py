"""Verdicts about pairs of models: whether ours stand in the order of the paper's.

The pairs are made by benchmarks/zoo_orderings.py and shipped as zoo/table1_pairs.json.
"""

from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS = ("clean", "l2 0.5", "l2 1.0", "l∞ 8/255", "AUC", "WC-AUC", "MMC")
"""Columns in which two models are compared image by image."""

REPRODUCED, REVERSED, OPEN = "reproduced", "reversed", "open"
TIE, ABSENT = "equal in the paper", "not measured"
VERDICTS = (REPRODUCED, REVERSED, OPEN, TIE, ABSENT)
TOTAL = "all"


def counts(pairs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Per column and in all: pairs by verdict, and how many stand beyond chance.

    Args:
        pairs: `column`, `verdict` and, where there is an interval, `beyond_chance`.
    """
    out = {}
    for column in (*COLUMNS, TOTAL):
        some = [row for row in pairs if column in (TOTAL, row["column"])]
        verdicts = {word: sum(row["verdict"] == word for row in some) for word in VERDICTS}
        for word in (REPRODUCED, REVERSED):
            verdicts[f"{word} beyond chance"] = sum(
                row["verdict"] == word and bool(row["beyond_chance"]) for row in some
            )
        out[column] = {"pairs": len(some), **verdicts}
    return out
