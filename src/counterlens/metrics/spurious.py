"""Where features live: the share of their maps outside the object, and whether that is chance.

Paper: Augustin et al. 2024 (digin2024, Table 2).
Differs: the paper gives the share alone. A small object leaves most of any map outside, so each
       share is also compared, image by image, with that of a map without preference, the area of
       the background. A feature lives on the background if its share is surely larger, at 5 % over
       all features of a table jointly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from counterlens.errors import InputError
from counterlens.metrics.intervals.closed_form import LEVEL, Vector, mean_interval

UNIT, SIGNED = (0.0, 1.0), (-1.0, 1.0)


@dataclass(frozen=True)
class Place:
    """Where one feature's maps lie.

    Args:
        outside, low, high: mean share outside the object and its 95 % interval.
        n: images with a map.
        background: mean area outside the object, the share of a map without preference.
        excess, excess_low, excess_high: mean of outside − background, paired.
        chance: one-sided p-value of no excess.
    """

    outside: float
    low: float
    high: float
    n: int
    background: float
    excess: float
    excess_low: float
    excess_high: float
    chance: float


def placed(outside: Vector, background: Vector, *, seed: int = 0) -> Place | None:
    """Sum up one feature's shares; None where fewer than two images have a map.

    Equation: digin2024 Tab. 2   mean_x Σ_{p ∉ M(x)} saliency_p / Σ_p saliency_p

    Args:
        outside: share of the map outside the object per image, NaN for a map without mass.
        background: area outside the object per image.
    """
    if outside.shape != background.shape:
        raise InputError(
            f"got {len(outside)} shares and {len(background)} areas, expected as many of each."
        )
    there = np.isfinite(outside)
    share, area = outside[there], background[there]
    if len(share) < 2:
        return None
    gap = share - area
    low, high = mean_interval(share, UNIT, seed=seed)
    gap_low, gap_high = mean_interval(gap, SIGNED, seed=seed)
    return Place(
        float(share.mean()), low, high, len(share), float(area.mean()),
        float(gap.mean()), gap_low, gap_high, _chance(gap),
    )  # fmt: skip


def verdicts(places: Sequence[Place]) -> list[str]:
    """For each feature: background, object, or nothing where it could be chance.

    By Bonferroni: p · features < 5 %.
    """
    level = (1 - LEVEL) / max(1, len(places))
    return [
        "background" if p.chance < level else "object" if 1 - p.chance < level else ""
        for p in places
    ]


def ranked(places: Sequence[Place]) -> list[int]:
    """Features surely on the background first; within each group by the share outside."""
    sure = verdicts(places)
    return sorted(
        range(len(places)), key=lambda i: (sure[i] != "background", -places[i].outside, i)
    )


def _chance(gap: Vector) -> float:
    spread = float(gap.std(ddof=1))
    if spread == 0:
        return 0.5 if gap[0] == 0 else float(gap[0] < 0)
    return float(student.sf(gap.mean() / (spread / np.sqrt(len(gap))), len(gap) - 1))
