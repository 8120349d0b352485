"""Points on an object, drawn where its word is attended to, and the mask a segmenter makes of them.

Paper: Augustin et al. 2024 (digin2024), appendix D: five points inside the attended region, shown
       to a segmenter; where it fails, attention itself.
Differs: points keep apart, as the paper's code means to have them: it computes a distribution that
       avoids places near earlier points, but draws from the one without. Here each later point
       is drawn in proportion to attention times the distance to the nearest earlier point.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from counterlens.ball import Seeds, uniform
from counterlens.explanations.counterfactuals.masks import SHOWN, SoftMask, blank, softened
from counterlens.models.segmenter import Points, Segment
from counterlens.types import Flags, Images

COUNT = 5


@dataclass(frozen=True)
class PointSegmenter:
    """A segmenter that is shown points, and the seeds of these, one per image."""

    segment: Segment
    seeds: Seeds | None = None


def draw_points(soft: SoftMask, seeds: Seeds, *, count: int = COUNT) -> Points:
    """Places where attention exceeds the threshold, apart from each other.

    Point k is drawn with p(u) ∝ v(u) · min over j < k of ‖u − u_j‖ where v(u) > 0.35.

    Args:
        soft: attention as a soft mask, see `soft_map`.
        seeds: one per image.
    """
    wide = soft.shape[-1]
    flat = soft.flatten(1).double()
    value = flat * (flat > SHOWN)
    none = value.sum(1, keepdim=True) == 0
    value = torch.where(none, (flat == flat.amax(1, keepdim=True)).double(), value)
    place = torch.arange(flat.shape[1], device=flat.device)
    at = torch.stack([place % wide, place // wide], -1)  # column, row
    draw = uniform(seeds, (count,), like=value)
    far = torch.ones_like(value)
    points: list[Tensor] = []
    for k in range(count):
        weight = value * far
        weight = torch.where(weight.sum(1, keepdim=True) > 0, weight, value)  # no place is left
        total = weight.cumsum(1)
        wanted = draw[:, k : k + 1] * total[:, -1:]
        index = torch.searchsorted(total, wanted, right=True).clamp(max=flat.shape[1] - 1)
        spot = at[index[:, 0]]
        away = (at[None] - spot[:, None]).double().norm(dim=-1)
        far = away if not points else torch.minimum(far, away)
        points.append(spot)
    return torch.stack(points, 1)


def from_points(
    segment: Segment, x: Images, soft: SoftMask, seeds: Seeds
) -> tuple[SoftMask, Points, Flags]:
    """The soft masks of what the points lie on, the points, and where the segmenter failed.

    It fails where it marks nothing or everything; there attention is the mask.
    """
    points = draw_points(soft, seeds)
    masks = segment(x, points.cpu()).to(soft)
    failed = blank(masks)
    return softened(torch.where(failed.view(-1, 1, 1, 1), soft, masks)), points, failed
