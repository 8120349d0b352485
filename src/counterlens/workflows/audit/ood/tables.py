"""Numbers and tables of several OOD scores: per set, per group, and the best against the others.

Paper: Zhang et al. 2023 (openood2023) for near and far groups and their mean AUROC.
Differs: a mean has an interval, and the best score is named with its differences from all others,
       which hold together. In FPR95 the known images are positive, as in the papers (OpenOOD 1.5:
       the unknown ones).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from counterlens import metrics
from counterlens.metrics.intervals.closed_form import delong, percentile
from counterlens.metrics.ood_scores import (
    FEATURE_SCORES,
    FittedScore,
    auroc_replicates,
    differences,
    mean_auroc,
)
from counterlens.runs import Number, Run, key_part
from counterlens.types import Scores


@dataclass(frozen=True)
class Scored:
    """One score of the known and of the unknown images of one set."""

    fitted: FittedScore
    inside: Scores
    outside: Scores


def set_numbers(
    set_name: str, scored: Mapping[str, Scored], source: str, seed: int
) -> dict[str, Number]:
    out: dict[str, Number] = {}
    for name, one in scored.items():
        text = one.fitted.text + (f", fitted on {source}" if name in FEATURE_SCORES else "")
        numbers = metrics.detection_numbers(
            one.inside, one.outside, f"score = {text}", both=True, seed=seed
        )
        out |= {f"ood_score.{key_part(set_name)}.{name}_{key}": n for key, n in numbers.items()}
    return out


def write_tables(
    run: Run, scored: Mapping[str, Mapping[str, Scored]], near: Sequence[str], seed: int
) -> None:
    """Means over groups of sets, and the best score of each group less the others."""
    rows: list[dict[str, object]] = [
        _row(name, score, run.numbers, one.fitted.text)
        for name, scores in scored.items()
        for score, one in scores.items()
    ]
    pairs: list[dict[str, object]] = []
    for group, names in groups(near, scored).items():
        chosen = {
            score: (
                scored[names[0]][score].inside.double().numpy(),
                *(scored[n][score].outside.double().numpy() for n in names),
            )
            for score in scored[names[0]]
        }
        means = {score: _mean_number(parts, names, seed) for score, parts in chosen.items()}
        run.add_numbers({f"ood_score.{group}.{score}_auroc": n for score, n in means.items()})
        rows += [{**_row(group, score, run.numbers, ""), "sets": len(names)} for score in means]
        pairs += _against_best(group, chosen, means, seed)
    run.write_table("ood_scores", rows)
    run.write_table("ood_score_pairs", pairs)


def groups(near: Sequence[str], scored: Mapping[str, Mapping[str, Scored]]) -> dict[str, list[str]]:
    """Near, far and all unknown sets, of those compared with the most known images."""
    sizes = {name: len(next(iter(scores.values())).inside) for name, scores in scored.items()}
    names = [name for name, size in sizes.items() if size == max(sizes.values())]
    parts = {
        "near": [name for name in names if name in near],
        "far": [name for name in names if name not in near],
    }
    by_distance = parts if near else {}
    return {group: some for group, some in {**by_distance, "all": names}.items() if some}


def _row(
    subject: str, score: str, numbers: Mapping[str, Number], formula: str
) -> dict[str, object]:
    row: dict[str, object] = {"set": subject, "score": score, "formula": formula}
    for metric in ("auroc", "aupr", "aupr_in", "fpr95"):
        number = numbers.get(f"ood_score.{key_part(subject)}.{score}_{metric}")
        if number is not None:
            ends = {f"{metric}_low": number.low, f"{metric}_high": number.high, "n": number.n}
            row |= {metric: number.value, **ends}
    return row


def _mean_number(parts: Sequence[np.ndarray], names: Sequence[str], seed: int) -> Number:
    inside, *outside = parts
    value = mean_auroc(inside, *outside)
    low, high = percentile(value, auroc_replicates(inside, *outside, seed=seed), (0.0, 1.0))
    below, above = _unseen(inside, outside)
    low, high = max(0.0, low - below), min(1.0, high + above)
    text = (
        f"mean of the AUROCs on {', '.join(names)}; {len(inside)} known; percentile bootstrap over "
        "images, each set resampled, wider by Wilson where a set is separated perfectly"
    )
    return Number(value, sum(len(one) for one in outside), low, high, text)


def _unseen(inside: np.ndarray, outside: Sequence[np.ndarray]) -> tuple[float, float]:
    """What resampling cannot show: sets distinguished without an error, by their own intervals."""
    below = above = 0.0
    for scores in outside:
        area = mean_auroc(inside, scores)
        if area in (0.0, 1.0):
            low, high = delong(inside, scores)
            below, above = below + (area - low), above + (high - area)
    return below / len(outside), above / len(outside)


def _against_best(
    group: str, parts: Mapping[str, Sequence[np.ndarray]], means: Mapping[str, Number], seed: int
) -> list[dict[str, object]]:
    """The best score less each other one; the intervals hold for all pairs at once."""
    best = max(means, key=lambda name: means[name].value or 0.0)
    rows: list[dict[str, object]] = []
    for d in differences(parts, seed=seed):
        if best not in (d.first, d.second):
            continue
        sign = 1 if d.first == best else -1
        low, high = sorted((sign * d.low, sign * d.high))
        other = d.second if sign > 0 else d.first
        rows.append(
            {
                "set": group,
                "best": best,
                "other": other,
                "difference": sign * d.value,
                "low": low,
                "high": high,
                "clear": low > 0,
            }
        )
    return rows
