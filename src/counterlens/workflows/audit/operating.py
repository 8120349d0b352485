"""Operating points of an audit: thresholds chosen on calibration images, evaluated on the others.

The calibration images are those of the temperature: `calibrate`, or the fifth set apart by id.
Thresholds are on the softmax at temperature 1, since a temperature is fitted on the same images.
"""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterlens import metrics
from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.images import ImageSet
from counterlens.metrics import groups as by_group
from counterlens.metrics import operating
from counterlens.metrics.intervals.closed_form import BoolArray, Z, mean_interval
from counterlens.metrics.operating import Point, ScoreArray, Target
from counterlens.runs import Number, Run, key_part
from counterlens.workflows.audit.groups import GroupColumns
from counterlens.workflows.audit.protocol import Inside, Protocol, choose
from counterlens.workflows.audit.settings import Settings
from counterlens.workflows.audit.temperature import set_apart

_KINDS = {"coverage": "threshold coverage risk", "risk": "threshold coverage risk"}
_CLASS_KIND = "threshold recall precision fpr"


def check_operating(settings: Settings) -> None:
    """Refuse thresholds that cannot be read, and files of costs that are not there."""
    targets = [operating.parse_target(text) for text in settings.threshold]
    if len({target.text for target in targets}) < len(targets):
        raise InputError(f"threshold is given twice: {', '.join(settings.threshold)}.")
    if settings.costs is not None and not Path(settings.costs).is_file():
        raise InputError(
            f"costs: {settings.costs} is no file, expected a .csv: a row per true class, a column "
            "per decision."
        )


def operating_keys(settings: Settings) -> list[str]:
    """Numbers that an audit with these settings measures at its operating points."""
    keys = [] if settings.costs is None else ["operating.costs.mean", "operating.costs.saved"]
    for text in settings.threshold:
        kind = operating.parse_target(text).kind
        names = _KINDS.get(kind, _CLASS_KIND).split()
        keys += [f"operating.{key_part(text)}.{name}" for name in names]
    return keys


def check_classes(settings: Settings, classes: tuple[str, ...]) -> None:
    """Refuse thresholds on classes, and costs of classes, that the protocol does not have."""
    for text in settings.threshold:
        target = operating.parse_target(text)
        if target.name:
            operating.class_number(target, classes)
    if settings.costs is not None:
        read_costs(Path(settings.costs), classes)


def read_costs(path: Path, classes: tuple[str, ...]) -> np.ndarray:
    """The matrix C[true, decided] of a .csv with class names in its first row and column."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    head, names = rows[0][1:] if rows else [], [row[0] for row in rows[1:]]
    for what, given in (("columns", head), ("rows", names)):
        if sorted(given) != sorted(classes):
            missing = [name for name in classes if name not in given] or [
                name for name in given if name not in classes
            ]
            raise InputError(
                f"{path}: its {what} are not the {len(classes)} classes of the audit "
                f"({', '.join(missing[:3])}), expected each once."
            )
    try:
        cells = [[float(cell) for cell in row[1:]] for row in rows[1:]]
        matrix = np.array(cells, dtype=np.float64)
        if matrix.shape != (len(classes), len(classes)) or not np.isfinite(matrix).all():
            raise ValueError
    except ValueError:
        raise InputError(f"{path}: expected one number in every cell below the names.") from None
    order = [names.index(name) for name in classes], [head.index(name) for name in classes]
    return matrix[np.ix_(*order)]


@dataclass(frozen=True)
class _Side:
    """Probabilities at temperature 1 and true classes of some images."""

    probabilities: np.ndarray
    labels: np.ndarray

    def scored(self, target: Target, classes: tuple[str, ...]) -> tuple[ScoreArray, BoolArray]:
        """What the threshold is put on, and which images are right or of the class."""
        if not target.name:
            return self.probabilities.max(1), self.probabilities.argmax(1) == self.labels
        k = operating.class_number(target, classes)
        return self.probabilities[:, k], self.labels == k


def _side(logits: Tensor, labels: np.ndarray) -> _Side:
    return _Side(logits.double().softmax(1).numpy(), labels)


_Outputs = Callable[[ImageSet, str], Tensor]
_Sources = tuple[_Outputs, Classifier, Protocol, ImageSet, ImageSet | None]
"""Outputs of the model, the model, its protocol, the images, and images to calibrate on."""


def write_operating(
    run: Run,
    sources: _Sources,
    inside: Inside,
    columns: GroupColumns,
    settings: Settings,
) -> None:
    """Choose each threshold, evaluate it on the reported images, also by group."""
    if not settings.threshold and settings.costs is None:
        return
    chosen_on = _side(*calibration_images(*sources))
    reported = _side(inside.logits, inside.labels.numpy())
    classes, rows, group_rows = inside.protocol.classes, [], []
    numbers: dict[str, Number] = {}
    for target in map(operating.parse_target, settings.threshold):
        point = (
            operating.choose(target, *chosen_on.scored(target, classes))
            if len(chosen_on.labels)
            else Point(None, 0, "", "no calibration images: give calibrate=SPEC (--calibrate)")
        )
        score, right = reported.scored(target, classes)
        results = operating.evaluate(target, point, score, right, z=Z)
        numbers |= _keyed(target, point, results)
        rows.append(_row(target, point, results))
        group_rows += _by_group(run, target, point, (score, right), columns, settings)
    if settings.costs is not None:
        costs = read_costs(Path(settings.costs), classes)
        numbers |= cost_numbers(inside, costs, settings.seed)
    run.add_numbers(numbers)
    run.write_table("operating", rows)
    run.write_table("operating_groups", group_rows)


def calibration_images(
    outputs_of: _Outputs,
    classifier: Classifier,
    protocol: Protocol,
    images: ImageSet,
    held: ImageSet | None,
) -> tuple[Tensor, np.ndarray]:
    """Logits and labels of the images that the temperature was fitted on, too."""
    if held is None:
        some = np.flatnonzero(set_apart(images.ids, protocol.known))
        logits = protocol.logits(outputs_of(images, "in"))
    else:
        protocol = choose(classifier, held)
        some = np.flatnonzero(protocol.known)
        logits = protocol.logits(outputs_of(held, "calibrate"))
    return logits[torch.from_numpy(some)], protocol.labels[some]


def _keyed(target: Target, point: Point, results: dict[str, Number]) -> dict[str, Number]:
    part, t = f"operating.{key_part(target.text)}", point.threshold
    text = f"{target.text} on softmax probability at temperature 1: {point.guarantee}"
    if t is None:
        threshold = Number.missing(point.reason, text, point.n)
    else:
        threshold = Number(t, point.n, t, t, text)
    return {f"{part}.threshold": threshold, **{f"{part}.{k}": n for k, n in results.items()}}


def _row(target: Target, point: Point, results: dict[str, Number]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "target": target.text, "threshold": point.threshold, "calibration": point.n,
        "guarantee": point.guarantee, "reason": point.reason,
    }  # fmt: skip
    for name, number in results.items():
        row |= {name: number.value, f"{name}_low": number.low, f"{name}_high": number.high}
    return row


def _by_group(
    run: Run,
    target: Target,
    point: Point,
    reported: tuple[ScoreArray, BoolArray],
    columns: GroupColumns,
    settings: Settings,
) -> list[dict[str, Any]]:
    """The same threshold in every judged group of a single column."""
    values = run.table("group_values")
    if not columns or point.threshold is None or not values:
        return []
    own = {name: [row[name] for row in values] for name in columns}
    groups = by_group.grouped(own, half=settings.group_width)
    score, right = reported
    rows = []
    for group in groups.judged:
        if len(group.column) > 1:
            continue
        inside = group.inside
        results = operating.evaluate(target, point, score[inside], right[inside], z=groups.z)
        rows.append({"group": group.name, "n": group.n, **_row(target, point, results)})
    return rows


def cost_numbers(inside: Inside, costs: np.ndarray, seed: int) -> dict[str, Number]:
    """Mean cost of the decisions that cost least, and what they save against arg-max."""
    probabilities = (inside.logits.double() / inside.temperature).softmax(1).numpy()
    labels = inside.labels.numpy()
    best = costs[labels, operating.decide(probabilities, costs)]
    plain = costs[labels, metrics.answers(inside.logits).answer.numpy()]
    how = f"least expected cost at temperature {inside.temperature:.4g}; BCa bootstrap"
    low, high = float(costs.min()), float(costs.max())
    span = high - low
    n = len(labels)
    ends = mean_interval(best, (low, high), seed=seed)
    saved = mean_interval(plain - best, (-span, span), seed=seed)
    return {
        "operating.costs.mean": Number(float(best.mean()), n, *ends, f"mean cost; {how}"),
        "operating.costs.saved": Number(
            float((plain - best).mean()), n, *saved, f"mean cost of arg-max less that; {how}"
        ),
    }
