"""Pairs of a picture and its changed version: what people see in the changed one.

Paper: Bender et al. 2023 (cfkd2023), where a person's answer on a counterfactual is its label.
Differs: nothing is trained on that people do not agree on.
"""

from collections.abc import Sequence
from typing import Literal

from counterlens.review.agreement import decisions
from counterlens.review.store import Verdict

PAIR_TABLES = ("counterfactuals", "uvce", "quality", "pairs")
"""Tables of runs with a picture, its changed version, the class of the one and the target."""
SAME_CLASS = "same class"
"""Tag of a rejected picture that still shows the class of its original: only the model erred."""


def seen(
    items: Sequence[str], latest: Sequence[Verdict]
) -> dict[str, Literal["target", "original"]]:
    """Which class each changed picture shows, where that is settled; the others are left out.

    Accepted, it is the target; rejected, that of the original, if all who rejected it say so.
    """
    rejected: dict[str, list[tuple[str, ...]]] = {}
    for verdict in latest:
        if verdict.verdict == "reject":
            rejected.setdefault(verdict.item, []).append(verdict.tags)
    out: dict[str, Literal["target", "original"]] = {}
    for item, decided in decisions(items, latest).items():
        if decided.outcome == "accept":
            out[item] = "target"
        elif decided.outcome == "reject" and all(SAME_CLASS in tags for tags in rejected[item]):
            out[item] = "original"
    return out
