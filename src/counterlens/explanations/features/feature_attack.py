"""Feature attack: from a real image, raise one unit without a bound.

Paper: Singla and Feizi 2022, Salient ImageNet, arXiv:2110.04301 (salientimagenet2022, section 3);
       digin2024 (Figure 10) compares with it.
Differs: the step is that of 224-pixel images, shrunk with the side; the best image is returned.
"""

import math

from counterlens.ball import Ball
from counterlens.checks import check_images
from counterlens.classifier import Classifier
from counterlens.explanations.features.directions import Direction, unit_direction
from counterlens.explanations.features.neurons import NeuronPictures
from counterlens.search import frozen, pgd
from counterlens.types import Images

STEP_AT_224 = 10.0


def feature_attack(
    classifier: Classifier,
    x: Images,
    unit: int | Direction,
    *,
    steps: int = 100,
    step_size: float | None = None,
) -> NeuronPictures:
    """Make each image drive a penultimate unit, or a direction, further in the pixel box alone.

    Equation: salientimagenet2022 §3   z ← clip(z + η ∇φ_n / ‖∇φ_n‖₂, 0, 1)

    Args:
        step_size: l2 length η of a step; None: 10 at 224 pixels, in proportion at other sizes.
    """
    check_images(x)
    wanted = unit_direction(classifier, unit) if isinstance(unit, int) else unit
    if step_size is None:
        step_size = STEP_AT_224 * math.sqrt(x.shape[2] * x.shape[3]) / 224

    everywhere = Ball("l2", math.sqrt(x[0].numel()))  # as far as any two images are apart
    with frozen(classifier):
        start = x.to(classifier.mean.device)
        activation = wanted.objective(classifier, len(x))
        result = pgd(activation, start, everywhere, steps=steps, step_size=step_size)
    return NeuronPictures(result.points, result.scores, result.start)


__all__ = ["feature_attack"]
