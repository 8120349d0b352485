"""What the classifier looks at: shape or texture, object or background.

Paper: Geirhos et al. 2019, arXiv:1811.12231 (cue conflict); Xiao et al. 2021, arXiv:2006.09994
    (ImageNet-9); as used by Sauer & Geiger 2021, arXiv:2101.06046.
Differs: accuracies divide by the true number of images. The reproducibility study of CGN calls
    the share of *all* images answered by shape a shape bias; here, as in the original, images
    answered neither by shape nor by texture do not count.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Bool, Int
from torch import Tensor

from counterlens.errors import InputError
from counterlens.metrics.label_map import coarse_answers, group_means
from counterlens.types import Flags, Logits

AnyLabels = Int[Tensor, "_"]
"""Labels whose number the function checks itself, so that the message names what does not fit."""


@dataclass(frozen=True)
class CueVotes:
    """Cue-conflict images counted by what the answer followed."""

    shape: int
    texture: int
    neither: int

    @property
    def bias(self) -> float | None:
        """Shape bias; None when no image was answered by either cue.

        Equation: geirhos2019 §2   bias = shape hits / (shape hits + texture hits)
        """
        decided = self.shape + self.texture
        return self.shape / decided if decided else None


def cue_votes(
    logits: Logits, shape: AnyLabels, texture: AnyLabels, groups: Sequence[Sequence[int]]
) -> CueVotes:
    """Count answers by shape and by texture over images whose cues disagree.

    Args:
        logits: over all classes of the model.
        shape, texture: group of each cue; images where both agree are dropped.
        groups: classes of the model that make up each group (16 for ImageNet models).

    >>> import torch
    >>> z = torch.tensor([[5.0, 0.0], [5.0, 0.0], [5.0, 0.0]])
    >>> votes = cue_votes(z, torch.tensor([0, 1, 0]), torch.tensor([1, 0, 0]), [[0], [1]])
    >>> votes, votes.bias
    (CueVotes(shape=1, texture=1, neither=0), 0.5)
    """
    if not len(logits) == len(shape) == len(texture):
        raise InputError(
            f"{len(logits)} rows of logits, {len(shape)} shapes, {len(texture)} textures: "
            "expected one of each per image."
        )
    answer = group_means(logits.double().softmax(1), groups).argmax(1).cpu()
    apart = (shape != texture).cpu()
    by_shape = int(((answer == shape.cpu()) & apart).sum())
    by_texture = int(((answer == texture.cpu()) & apart).sum())
    return CueVotes(by_shape, by_texture, int(apart.sum()) - by_shape - by_texture)


def coarse_right(logits: Logits, labels: AnyLabels, mapping: Sequence[int]) -> Flags:
    """Whether the arg-max class belongs to the true group; an unmapped class is wrong.

    Equation: xiao2021 §3   1000-way arg-max, mapped to 9 groups, 630 classes to none

    >>> import torch
    >>> z = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    >>> coarse_right(z, torch.tensor([0, 0]), [0, 0, -1]).tolist()
    [True, False]
    """
    if len(logits) != len(labels):
        raise InputError(f"{len(logits)} rows of logits for {len(labels)} labels.")
    return coarse_answers(logits.argmax(1), mapping) == labels.cpu()


def background_gap(same: Flags, random: Bool[Tensor, "o"]) -> float:
    """Accuracy lost when the background comes from another class.

    Equation: xiao2021 §3   BG-gap = acc(Mixed-Same) − acc(Mixed-Rand)

    >>> import torch
    >>> background_gap(torch.tensor([True, True]), torch.tensor([True, False]))
    0.5
    """
    if not len(same) or not len(random):
        raise InputError("the background gap needs images on both sides.")
    return same.double().mean().item() - random.double().mean().item()
