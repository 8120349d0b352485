"""What can be asked of a model: predictions, attacks, explanations, features."""

from collections.abc import Callable

import torch

from counterlens.classifier import Classifier
from counterlens.diagnosis.finding import Finding
from counterlens.errors import InputError
from counterlens.models.parts import cam_layer, features
from counterlens.types import Images

NAME = "uses"


def uses(classifier: Classifier, x: Images, *, gradients: bool) -> Finding:
    """Which questions this model can answer; never a failure.

    Args:
        classifier: the model.
        x: a few of its inputs.
        gradients: whether its gradients reach the pixels.
    """
    by = "by gradients" if gradients else "without gradients only, not to be quoted"
    able = {
        "predictions, calibration, unknown images": "yes",
        "attacks": by,
        "counterfactuals in pixels": "yes" if gradients else "no, they follow gradients",
        "features, neurons, last-layer repair": _try(lambda: features(classifier, x[:1])),
        "CAM": _try(lambda: cam_layer(classifier)) if gradients else "no, it follows gradients",
    }
    if classifier.multilabel:
        able = {
            "predictions and calibration per label": "yes",
            "attacks, counterfactuals, unknown images": "of one label at a time, by one_label",
        }
    return Finding(NAME, "ok", "; ".join(f"{what}: {how}" for what, how in able.items()) + ".")


def _try(work: Callable[[], object]) -> str:
    """ "yes", or "no" where the work is refused or fails."""
    try:
        with torch.enable_grad():
            work()
    except (InputError, RuntimeError, NotImplementedError, ValueError, TypeError):
        return "no, its layers cannot be looked into"
    return "yes"
