"""Worst-case OOD detection of an audit: the confidence raised around unknown images.

Paper: Augustin et al. 2020 (ratio2020), sections 4.1, 4.2.
Differs: the worst-case AUROC raises log-confidence and lead over the second class, 5 restarts
       each, and keeps the worse; an upper bound all the same, and said to be one.
"""

from dataclasses import replace

import numpy as np
import torch

from counterlens import metrics
from counterlens.classifier import Classifier
from counterlens.images import ImageSet
from counterlens.runs import Run, key_part
from counterlens.search import Flag, weigh, worst_confidence
from counterlens.search.ensemble.trust import spread
from counterlens.types import Logits
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
from counterlens.workflows.audit.protocol import Inside, judged_model
from counterlens.workflows.audit.settings import Settings

STEPS, RESTARTS, QUERIES = 100, 5, 1000
_PROBED = 32  # points on which a twice as long search asks whether the worst case was met


def worst_ood(
    run: Run,
    classifier: Classifier,
    other: ImageSet,
    inside: Inside,
    ball_text: str,
    options: Settings,
    *,
    quiet: bool = False,
) -> None:
    """Raise the confidence around unknown images and ask again whether they are distinguished."""
    ball = parse_attack(ball_text)
    rows, which = attacked_rows(other.labels, options)
    x = pixels(other, rows, classifier)
    protocol, in_logits, temperature = inside.protocol, inside.logits, inside.temperature
    model = judged_model(classifier, protocol)
    settings = search_settings(run, f"worst-{key_part(other.name)}", options, quiet)
    result = worst_confidence(
        model, x, ball, steps=STEPS, restarts=RESTARTS, queries=QUERIES, settings=settings
    )
    end_progress()
    logits = model_logits(model, result.points, classifier)
    flags = list(result.trust.flags)
    if result.complete:
        again = replace(settings, state=None, seed=options.seed + 1, progress=None, trust=False)
        some = torch.from_numpy(spread(np.arange(len(x)), _PROBED))
        longer = worst_confidence(
            model, x[some], ball, steps=2 * STEPS, restarts=RESTARTS, queries=0, settings=again
        )
        better = model_logits(model, longer.points, classifier)
        move = _move(in_logits, logits[some], better, temperature)
        flags.append(_more_steps(move, len(some), longer.complete))
    trust = weigh(flags).to_json()
    text = (
        f"{protocol.text}; {which} {len(other)} unknown; worst case within {ball_text}, "
        f"APGD {STEPS} × {RESTARTS} at temperature 1, then Square of {QUERIES} queries, upper "
        "bound; scored after temperature"
    )
    numbers = metrics.ood_numbers(
        in_logits, logits, name=other.name, temperature=temperature, protocol=text,
        seed=options.seed,
    )  # fmt: skip
    part = f"ood.{key_part(other.name)}"
    auroc, mmc = (replace(numbers[f"{part}.{metric}"], trust=trust) for metric in ("auroc", "mmc"))
    if not result.complete:
        why = budget_ended(result.settled, len(x))
        auroc = replace(auroc, low=0.0, bound="upper", reason=why)
        mmc = replace(mmc, high=1.0, bound="lower", reason=why)
    run.add_numbers({f"{part}.worst_auroc": auroc, f"{part}.worst_mmc": mmc})
    write_trust(run, f"worst-case OOD {other.name}", trust)
    with table_file(run, f"worst-{key_part(other.name)}.npz") as file:
        np.savez_compressed(
            file, logits=logits.numpy(), ids=np.array([other.ids[int(i)] for i in rows])
        )


def _move(inside: Logits, worst: Logits, better: Logits, temperature: float) -> float:
    """By how much the AUROC falls where the better of two searches counts."""
    known, one, two = (
        metrics.answers(part, temperature=temperature).score for part in (inside, worst, better)
    )
    return metrics.auroc(known, one) - metrics.auroc(known, torch.maximum(one, two))


def _more_steps(move: float, points: int, complete: bool) -> Flag:
    """Whether twice the steps move the AUROC of the probed points."""
    if not complete:
        detail = "the budget ended before the probe of twice the steps did"
        return Flag("more-steps", "weak", move, detail)
    detail = f"twice the steps and other restarts lower the AUROC of {points} points by {move:.4f}"
    return Flag("more-steps", "ok" if move <= 0.005 else "weak", move, detail)
