"""Confidence against radius: how sure a model can be made, the further an attacker may go.

Paper: Augustin et al. 2020 (ratio2020), Figure 5.
Differs: (a) lowers the confidence in the true class itself, by cross-entropy and by margin, where
       the paper raises the difference of logits; (b) takes any out-distribution set. A point of a
       smaller ball lies in the larger one too, so no curve turns back.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterlens import metrics
from counterlens.ball import Ball
from counterlens.classifier import Classifier
from counterlens.images import ImageSet
from counterlens.metrics.intervals.closed_form import mean_interval
from counterlens.runs import Run, key_part
from counterlens.search import Extreme, lowest_confidence, worst_confidence
from counterlens.types import Images, Scores
from counterlens.workflows.audit.attacks.search import (
    attacked_rows,
    model_logits,
    pixels,
    search_settings,
)
from counterlens.workflows.audit.attacks.spec import parse_attack
from counterlens.workflows.audit.protocol import Inside, judged_model
from counterlens.workflows.audit.settings import Settings

RADII = 8
POINTS = 200
STEPS = 100

Search = Callable[[Ball, str], Extreme]


def radius_curves(
    run: Run,
    classifier: Classifier,
    images: ImageSet,
    rows: np.ndarray,
    inside: Inside,
    outside: Sequence[tuple[ImageSet, Inside]],
    options: Settings,
    *,
    quiet: bool = False,
) -> None:
    """Mean confidence at eight radii: in the true class inside, in any class outside."""
    assert options.radius_curve is not None
    largest = parse_attack(options.radius_curve)
    settings = search_settings(run, "radius", options, quiet)

    def state(name: str, ball: Ball) -> Any:
        part = f"radius-{key_part(name)}-{ball.radius:.4g}"
        return replace(
            settings, state=run.path("state", part), trust=False
        )  # no verdict of a curve

    some = rows[attacked_rows(inside.protocol.labels[rows], options, POINTS)[0]]
    x, y = pixels(images, some, classifier), torch.from_numpy(inside.protocol.labels[some])
    model = judged_model(classifier, inside.protocol)

    def lower(ball: Ball, name: str) -> Extreme:
        return lowest_confidence(model, x, y, ball, steps=STEPS, settings=state(name, ball))

    def true_class(logits: Tensor) -> Scores:
        probs = (logits.double() / inside.temperature).softmax(1)
        return probs[torch.arange(len(y)), y]

    name = f"{images.name}, true class under attack"
    table = _curve(classifier, model, x, largest, name, lower, true_class, torch.minimum)
    for other, view in outside:
        at, _ = attacked_rows(other.labels, options, POINTS)
        table += _outside(classifier, other, at, view, largest, state)
    run.write_table("confidence_radius", table)


def _outside(
    classifier: Classifier,
    other: ImageSet,
    rows: np.ndarray,
    view: Inside,
    largest: Ball,
    state: Callable[[str, Ball], Any],
) -> list[dict[str, Any]]:
    x = pixels(other, rows, classifier)
    model = judged_model(classifier, view.protocol)

    def higher(ball: Ball, name: str) -> Extreme:
        return worst_confidence(
            model, x, ball, steps=STEPS, restarts=1, queries=0, settings=state(name, ball)
        )

    def any_class(logits: Tensor) -> Scores:
        return metrics.answers(logits, temperature=view.temperature).confidence.double()

    name = f"{other.name}, any class"
    return _curve(classifier, model, x, largest, name, higher, any_class, torch.maximum)


def _curve(
    classifier: Classifier,
    model: Callable[[Images], Tensor],
    x: Images,
    largest: Ball,
    name: str,
    search: Search,
    confidence: Callable[[Tensor], Scores],
    keep: Callable[[Tensor, Tensor], Tensor],
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    best = confidence(model_logits(model, x, classifier))
    for radius in np.linspace(0, float(largest.radius), RADII + 1).tolist():
        complete = True
        if radius > 0:
            result = search(Ball(largest.norm, radius), name)
            complete = result.complete
            best = keep(best, confidence(model_logits(model, result.points, classifier)))
        low, high = mean_interval(best.numpy(), (0.0, 1.0))
        rows.append(
            {
                "set": name,
                "norm": largest.norm,
                "radius": radius,
                "confidence": best.mean().item(),
                "low": low,
                "high": high,
                "n": len(x),
                "complete": complete,
            }
        )
    return rows
