"""Extremes: the highest confidence or score reachable around an image, the lowest in its class.

Paper: Augustin et al. 2020 (ratio2020), section 4.1 and Figure 5.
Differs: confidence is raised as log-probability and as the lead over the second class, and the
       worse of both counts; a search without gradients follows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from counterlens.ball import Ball
from counterlens.errors import InputError
from counterlens.objectives import Predict
from counterlens.search.apgd_l1 import climbing
from counterlens.search.ensemble.autoattack import (
    AttackSettings,
    check_input,
    kernels,
    open_batched_engine,
    prepare,
)
from counterlens.search.ensemble.driver import drive
from counterlens.search.ensemble.protocols import QUERIES, SCORES
from counterlens.search.ensemble.stage import SearchStage
from counterlens.search.ensemble.trust import Trust, examine_extremes
from counterlens.search.square import SQUARE_NORMS, Square
from counterlens.types import Images, Labels, Scores

STEPS, RESTARTS, BLIND_QUERIES = 100, 5, 1000  # of the search for the highest confidence


@dataclass(frozen=True)
class Extreme:
    """The most extreme score around each image.

    Args:
        scores: log-confidences.
        points: the images with these scores.
        complete: False if the budget ended first.
        settled: points no search has anything left to do for.
        counts: images sent forward, backward and through verification.
        trust: whether what follows from the scores may be quoted, and why not.
    """

    scores: Scores
    points: Images
    complete: bool
    settled: int
    counts: dict[str, int]
    trust: Trust


def worst_confidence(
    classifier: Predict,
    x: Images,
    ball: Ball,
    *,
    steps: int = STEPS,
    restarts: int = RESTARTS,
    queries: int = BLIND_QUERIES,
    settings: AttackSettings = AttackSettings(),  # noqa: B008  frozen
) -> Extreme:
    """The highest log-confidence, in whatever class, around each image.

    Equation: ratio2020 §4.1   max_{‖z − x‖ ≤ r} max_k log p_k(z)

    An attack bounds the confidence from below, so what follows from it (worst-case AUROC)
    bounds the quality of the model from above. After the searches with gradients comes one
    without, for l2 and l∞: it should add next to nothing.

    Args:
        queries: of the search without gradients; 0 leaves it out.
    """
    raised = ("confidence", "lead")
    plan = _plan(raised, "confidence", ball, steps, restarts, queries)
    about = {"raised": raised, "judge": "confidence", "steps": steps, "restarts": restarts}
    if queries:
        about["queries"] = queries
    return _extreme(classifier, x, None, ball, plan, "confidence", about, settings)


def highest_output(
    model: Predict,
    x: Images,
    ball: Ball,
    *,
    steps: int = STEPS,
    restarts: int = RESTARTS,
    queries: int = BLIND_QUERIES,
    settings: AttackSettings = AttackSettings(),  # noqa: B008  frozen
) -> Extreme:
    """The highest first output of a model around each image, by the searches of `worst_confidence`.

    The model has two outputs: a score less a threshold, and 0. So its answer changes where the
    score passes the threshold, which is what the probes of its gradient look at.
    """
    plan = _plan(("first",), "first", ball, steps, restarts, queries)
    about = {"raised": ("first",), "steps": steps, "restarts": restarts, "queries": queries}
    return _extreme(model, x, None, ball, plan, "first", about, settings)


def lowest_confidence(
    classifier: Predict,
    x: Images,
    y: Labels,
    ball: Ball,
    *,
    steps: int = 100,
    restarts: int = 1,
    settings: AttackSettings = AttackSettings(),  # noqa: B008  frozen
) -> Extreme:
    """The lowest log-confidence in the true class around each image.

    Equation: ratio2020 Fig. 5   min_{‖z − x‖ ≤ r} log p_y(z)
    """
    raised = ("ce", "margin")
    plan = _plan(raised, "ce", ball, steps, restarts, 0)
    about = {"raised": raised, "judge": "ce", "steps": steps, "restarts": restarts}
    result = _extreme(classifier, x, y, ball, plan, "ce", about, settings)
    return replace(result, scores=-result.scores)


def _plan(
    raised: tuple[str, ...], judge: str, ball: Ball, steps: int, restarts: int, queries: int
) -> list[SearchStage]:
    """Gradient searches on several scores, then perhaps one without gradients on the judge's."""
    stages = [
        SearchStage(
            f"apgd-{name}", climbing(ball.norm, steps), SCORES[name], restarts, judge=SCORES[judge]
        )
        for name in raised
    ]
    if queries and ball.norm in SQUARE_NORMS:
        score = SCORES[judge]
        stages.append(SearchStage("square", Square(queries), score, slope=False, judge=score))
    return stages


def _extreme(
    classifier: Predict,
    x: Images,
    y: Labels | None,
    ball: Ball,
    stages: list[SearchStage],
    judge: str,
    about: dict[str, Any],
    settings: AttackSettings,
) -> Extreme:
    """Raise several scores; per point the image with the highest score of the judge counts."""
    check_input(classifier, x, y, ball)
    with open_batched_engine(classifier, x, settings, 1, kernels(stages, x, ball)) as (
        engine,
        batch,
    ):
        if not engine.differentiable:
            stages = [_climb_blindly(judge, ball)]
        attack, monitor = prepare(classifier, engine, x, y, ball, settings, batch, about)
        labels = attack.y.to(engine.device)
        clean = SCORES[judge](engine.verify(attack.x, batch=batch), labels, labels)
        attack.top[:] = clean.cpu().numpy()
        complete = drive(engine, stages, attack, monitor, batch=batch)
        trust = examine_extremes(
            engine, attack, lacking=_shorter(stages), complete=complete, probes=settings.trust
        )
    scores = torch.from_numpy(attack.top).float()
    settled = int(attack.finished.sum())
    return Extreme(scores, attack.points, complete, settled, engine.counts.as_dict(), trust)


def _shorter(stages: Sequence[SearchStage]) -> list[str]:
    """What these searches miss to be as strong as those of `worst_confidence` by default."""
    climbs = [stage for stage in stages if stage.slope]
    missing = []
    if any(stage.rule.evaluations < STEPS for stage in climbs):
        missing.append(f"fewer than {STEPS} steps")
    if any(stage.variants < RESTARTS for stage in climbs):
        missing.append(f"fewer than {RESTARTS} restarts")
    if len(climbs) == len(stages):
        missing.append("no attack without gradients")
    return missing


def _climb_blindly(judge: str, ball: Ball) -> SearchStage:
    """The search for an extreme score of a model without gradients."""
    if ball.norm not in SQUARE_NORMS:
        raise InputError(
            f"the model has no gradients, and no search without gradients knows {ball.norm}. "
            "Search in l1, l2 or linf."
        )
    score = SCORES[judge]
    return SearchStage(f"square-{judge}", Square(QUERIES), score, slope=False, judge=score)
