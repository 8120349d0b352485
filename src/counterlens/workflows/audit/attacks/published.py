"""What others measured of a known checkpoint under the same attack: a fact beside our number.

Paper: Croce et al. 2021 (robustbench2021): its README of 2020 lists clean and robust accuracy (in
       per cent, AutoAttack, the 10,000 test images of CIFAR-10) of the entries below.
Differs: for weights that are shipped here, the audit on their card takes the leaderboard's place.
"""

from collections.abc import Mapping
from typing import Any

from counterlens.classifier import Classifier
from counterlens.label_spaces import CIFAR10
from counterlens.metrics.intervals.closed_form import wilson
from counterlens.runs import Number, Run, key_part

LINF: Mapping[str, tuple[float, float]] = {
    "Carmon2019Unlabeled": (89.69, 59.53),
    "Ding2020MMA": (84.36, 41.44),
    "Engstrom2019Robustness": (87.03, 49.25),
    "Hendrycks2019Using": (87.11, 54.92),
    "Huang2020Self": (83.48, 53.34),
    "Pang2020Boosting": (85.14, 53.74),
    "Rice2020Overfitting": (85.34, 53.42),
    "Sehwag2020Hydra": (88.98, 57.14),
    "Standard": (94.78, 0.00),
    "Wang2020Improving": (87.50, 56.29),
    "Wong2020Fast": (83.34, 43.21),
    "Wu2020Adversarial": (85.36, 56.17),
    "Wu2020Adversarial_extra": (88.25, 60.04),
    "Zhang2019Theoretically": (84.92, 53.08),
    "Zhang2019You": (87.20, 44.83),
    "Zhang2020Attacks": (84.52, 53.51),
}
L2: Mapping[str, tuple[float, float]] = {
    "Augustin2020Adversarial": (91.08, 72.91),
    "Ding2020MMA": (88.02, 66.09),
    "Engstrom2019Robustness": (90.83, 69.24),
    "Rice2020Overfitting": (88.67, 67.68),
    "Rony2019Decoupling": (89.05, 66.44),
    "Standard": (94.78, 0.00),
    "Wu2020Adversarial": (88.51, 73.66),
}
LEADERBOARD = {"linf-8_255": LINF, "l2-0.5": L2}
IMAGES = 10_000


def write_published(run: Run, classifier: Classifier, attack: str, ours: Number) -> None:
    """The table `published`: values of the leaderboard or of the model's card under this attack."""
    table = [row for row in run.table("published") if row["attack"] != attack]
    rows = [*_leaderboard(classifier, attack), *_card(classifier, attack)]
    beside = {"ours": ours.value, "ours_low": ours.low, "ours_high": ours.high, "ours_n": ours.n}
    run.write_table("published", table + [{"attack": attack, **row, **beside} for row in rows])


def _leaderboard(classifier: Classifier, attack: str) -> list[dict[str, Any]]:
    if classifier.card.get("source") != "robustbench" or classifier.classes != CIFAR10:
        return []
    entry = LEADERBOARD.get(key_part(attack), {}).get(classifier.name)
    if entry is None:
        return []
    clean, robust = entry[0] / 100, entry[1] / 100
    low, high = wilson(round(robust * IMAGES), IMAGES)
    source = f"RobustBench, entry {classifier.name}, CIFAR-10 test set, AutoAttack"
    return [
        {"source": source, "clean": clean, "robust": robust, "low": low, "high": high, "n": IMAGES}
    ]


def _card(classifier: Classifier, attack: str) -> list[dict[str, Any]]:
    """The audit of the same weights on their card."""
    numbers = classifier.card.get("numbers") or {}
    robust = numbers.get(f"robust.{key_part(attack)}.accuracy")
    if not robust or robust.get("value") is None:
        return []
    data = (classifier.card.get("audit") or {}).get("data", "")
    clean = (numbers.get("accuracy.top1") or {}).get("value")
    source = f"card of {classifier.name}" + (f", {data}" if data else "")
    ends = {key: robust.get(key) for key in ("low", "high", "n")}
    return [{"source": source, "clean": clean, "robust": robust["value"], **ends}]
