"""Robust accuracy of an audit: the number with its verdict, the curve over the radius, the points.

Paper: Croce and Hein 2020 (autoattack2020).
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int64

from counterlens.ball import Ball
from counterlens.classifier import Classifier
from counterlens.images import ImageSet
from counterlens.metrics.intervals.closed_form import wilson
from counterlens.objectives import Predict
from counterlens.progress import doing
from counterlens.runs import Number, Run, key_part
from counterlens.search import Robustness, robust
from counterlens.workflows.audit.attacks.classes import write_classes
from counterlens.workflows.audit.attacks.published import write_published
from counterlens.workflows.audit.attacks.search import (
    attacked_rows,
    budget_ended,
    end_progress,
    model_logits,
    pixels,
    search_settings,
    table_file,
    write_trust,
)
from counterlens.workflows.audit.attacks.spec import parse_attack
from counterlens.workflows.audit.protocol import Protocol, judged_model
from counterlens.workflows.audit.settings import Settings


def robustness(
    run: Run,
    classifier: Classifier,
    images: ImageSet,
    protocol: Protocol,
    rows: Int64[np.ndarray, "n"],
    attack: str,
    options: Settings,
    surrogates: Sequence[Predict] = (),
    earlier: Robustness | None = None,
) -> Robustness:
    """Attack some images, add the robust accuracy with its verdict and the curve over radius.

    Args:
        rows: the images whose accuracy is reported; `attack_points` of them are attacked.
        surrogates: models of the protocol's classes whose adversarial images are tried, too.
        earlier: what the same attack left in a smaller ball of the same norm.
    """
    ball, key = parse_attack(attack), key_part(attack)
    all_of = len(rows)
    some, which = attacked_rows(protocol.labels[rows], options)
    rows = rows[some]
    doing(f"attack-{key}: first search on {len(rows)} images")
    result = robust(
        judged_model(classifier, protocol),
        pixels(images, rows, classifier),
        torch.from_numpy(protocol.labels[rows]),
        ball,
        version=options.attack_version,  # type: ignore[arg-type]
        settings=search_settings(run, f"attack-{key}", options, options.quiet),
        surrogates=surrogates,
        earlier=earlier,
    )
    end_progress()
    number = _number(result, attack, f"{which} {all_of}")
    run.add_numbers({f"robust.{key}.accuracy": number})
    write_published(run, classifier, attack, number)
    write_trust(run, attack, result.trust.to_json())
    curve = [r for r in run.table("robust_curve") if r["attack"] != attack]
    run.write_table("robust_curve", [*curve, *_curve(result, ball, attack)])
    stages = [r for r in run.table("attack_stages") if r["attack"] != attack]
    run.write_table("attack_stages", [*stages, *({"attack": attack, **s} for s in result.stages)])
    _keep_points(run, key, result, [images.ids[int(i)] for i in rows])
    answers = model_logits(judged_model(classifier, protocol), result.points, classifier).argmax(1)
    write_classes(run, attack, result, protocol.labels[rows], answers.numpy(), protocol.classes)
    return result


def _number(result: Robustness, attack: str, which: str) -> Number:
    n = len(result.robust)
    clean = f"{which} reported images, {result.correct.double().mean():.4f} right before the attack"
    notes = "".join(f"; {note}" for note in result.notes)
    work = f"{result.counts['forwards']} forward, {result.counts['backwards']} backward"
    text = f"{result.protocol} ({attack}); {clean}; {work} passes{notes}"
    low, high = (round(bound * n) for bound in result.bounds)
    ends = (wilson(low, n)[0], wilson(high, n)[1])
    trust = result.trust.to_json()
    if result.complete:
        return Number(high / n, n, *ends, f"{text}; Wilson interval", trust=trust)
    text += f"; stopped early: between {low / n:.4f} and {high / n:.4f} of these points hold"
    text += "; Wilson bounds of both"
    return Number(high / n, n, *ends, text, budget_ended(result.settled, n), trust, "upper")


def _curve(result: Robustness, ball: Ball, attack: str) -> list[dict[str, object]]:
    """Robust accuracy over radius: attacked at the radius, bounded from above elsewhere."""
    n, rows = len(result.robust), []
    radius = float(ball.radius)
    for share in np.linspace(0, 1, 21):
        at = share * radius
        if share == 1:
            hits = int(result.robust.sum())
        else:
            hits = int((result.correct & (result.distances > at)).sum())
        low, high = wilson(hits, n)
        attacked = share == 0 or (share == 1 and result.complete)
        kind = "attacked" if attacked else "upper bound"
        rows.append(
            {
                "attack": attack,
                "norm": ball.norm,
                "radius": at,
                "accuracy": hits / n,
                "low": low,
                "high": high,
                "n": n,
                "kind": kind,
            }
        )
    return rows


def _keep_points(run: Run, key: str, result: Robustness, ids: list[str]) -> None:
    """Keep the adversarial pictures for reuse, compressed."""
    broken = torch.nonzero(result.correct & ~result.robust).flatten()
    with table_file(run, f"adversarial-{key}.npz") as file:
        np.savez_compressed(
            file,
            points=result.points[broken].cpu().numpy().astype(np.float32),
            ids=np.array([ids[i] for i in broken.tolist()]),
            robust=result.robust.cpu().numpy(),
            all_ids=np.array(ids),
        )
