"""Worst-case OOD detection by a score: unknown images changed until the score takes them for known.

Paper: Augustin et al. 2020 (ratio2020), section 4.1, for the worst case of the confidence.
Differs: the score itself is raised, so each score has the attack made for it. ODIN, whose own step
       would have to be differentiated, is left out.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from counterlens import metrics
from counterlens.classifier import Classifier
from counterlens.images import ImageSet
from counterlens.metrics.ood_scores import FEATURE_SCORES, FittedScore
from counterlens.models.parts import FeatureNet
from counterlens.runs import Run, key_part
from counterlens.search.ensemble.extremes import BLIND_QUERIES, RESTARTS, STEPS, highest_output
from counterlens.types import Images
from counterlens.workflows.audit.attacks.search import (
    attacked_rows,
    budget_ended,
    model_logits,
    pixels,
    search_settings,
    write_trust,
)
from counterlens.workflows.audit.attacks.spec import parse_attack
from counterlens.workflows.audit.ood.tables import Scored
from counterlens.workflows.audit.settings import Settings

ClassColumns = tuple[int, ...] | None
"""Outputs that scores look at; None for all of them."""
KEEP = 0.05  # share of the known images that the threshold refuses


class ScoreModel(nn.Module):
    """A score as a model of two outputs: the score less a threshold, scaled, and 0."""

    def __init__(
        self,
        classifier: Classifier,
        fitted: FittedScore,
        columns: ClassColumns,
        threshold: float,
        scale: float,
    ) -> None:
        super().__init__()
        self.net = FeatureNet(classifier) if fitted.name in FEATURE_SCORES else classifier
        self.fitted, self.threshold, self.scale = fitted, threshold, scale
        self.columns = None if fitted.name in FEATURE_SCORES else columns

    def forward(self, x: Images) -> Tensor:
        """Above 0 in the first output: taken for known."""
        values = self.net(x)
        if self.columns is not None:
            values = values[:, list(self.columns)]
        score = (self.fitted.score(values) - self.threshold) / self.scale
        return torch.stack([score, torch.zeros_like(score)], 1).to(x.dtype)


def attack_scores(
    run: Run,
    classifier: Classifier,
    settings: Settings,
    other: ImageSet,
    scored: Mapping[str, Scored],
    fits: Mapping[str, FittedScore],
    columns: ClassColumns,
) -> None:
    """Raise each differentiable score around unknown images and ask again who is distinguished.

    Args:
        fits: the scores with their constants on the device of the classifier.
    """
    assert settings.ood_attack is not None
    ball = parse_attack(settings.ood_attack)
    rows, which = attacked_rows(other.labels, settings)
    x = pixels(other, rows, classifier)
    for name, one in scored.items():
        if name == "odin":
            continue
        known = one.inside.double()
        threshold = float(torch.quantile(known, KEEP))
        scale = float(known.std().clamp_min(1e-9))
        model = ScoreModel(classifier, fits[name], columns, threshold, scale).eval()
        part = f"worst-{name}-{key_part(other.name)}"
        result = highest_output(
            model, x, ball, settings=search_settings(run, part, settings, settings.quiet)
        )
        reached = model_logits(model, result.points, classifier)[:, 0].double()
        start = (one.outside[torch.from_numpy(rows)].double() - threshold) / scale
        scores = torch.maximum(reached, start)
        text = (
            f"score = {one.fitted.text}, raised around {which} {len(other)} unknown within "
            f"{settings.ood_attack}: APGD {STEPS} × {RESTARTS}, then Square of {BLIND_QUERIES} "
            "queries, upper bound"
        )
        number = metrics.detection_numbers(
            (known - threshold) / scale, scores, text, seed=settings.seed
        )["auroc"]
        trust = result.trust.to_json()
        number = replace(number, trust=trust)
        if not result.complete:
            ended = budget_ended(result.settled, len(x))
            number = replace(number, low=0.0, bound="upper", reason=ended)
        run.add_numbers({f"ood_score.{key_part(other.name)}.{name}_worst_auroc": number})
        write_trust(run, f"worst-case {name} {other.name}", trust)
