"""How well a saliency map covers an object: functions of (saliency map, mask) alone.

Paper: Reproducibility study of CGN 2022 (cgnstudy2022) for the IoU of Grad-CAM maps; Augustin et
       al. 2024 (digin2024, Table 2) for the share of a map's mass outside the object.
Differs: the study calls the mean of the foreground's and the background's IoU simply "IoU"; here
       that is `mean_iou`, and `iou` is the foreground's alone. A large background makes the two
       differ by tens of points, so `trivial_scores` says what maps that know nothing score.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import interpolate

from counterlens.errors import InputError
from counterlens.types import Scores

SaliencyMap = Float[Tensor, "b h w"]
MaskBatch = Bool[Tensor, "b h w"]


def iou(saliency: SaliencyMap, mask: MaskBatch, *, threshold: float = 0.5) -> Scores:
    """Overlap of the hot region with the object: intersection over union, per image.

    Equation: cgnstudy2022 §3.4   IoU = |H ∩ M| / |H ∪ M|,  H = {saliency scaled to [0, 1] > ½}

    Where nothing is hot and the mask is empty there is nothing to miss: 1.

    >>> saliency = torch.tensor([[[1.0, 0.9, 0.0, 0.0]]])
    >>> iou(saliency, torch.tensor([[[True, False, False, False]]]))
    tensor([0.5000])
    """
    _check(saliency, mask)
    both, either = _overlap(_hot(saliency, threshold), mask)
    return torch.where(either > 0, both / either.clamp_min(1), torch.ones_like(both))


def mean_iou(saliency: SaliencyMap, mask: MaskBatch, *, threshold: float = 0.5) -> Scores:
    """Mean of the IoU of the object and the IoU of the background, per image.

    Equation: cgnstudy2022 §3.4   ½ (|H ∩ M| / |H ∪ M| + |Hᶜ ∩ Mᶜ| / |Hᶜ ∪ Mᶜ|)

    A class that is neither in the map nor in the mask is left out of the mean.

    >>> saliency = torch.tensor([[[1.0, 0.9, 0.0, 0.0]]])
    >>> mean_iou(saliency, torch.tensor([[[True, False, False, False]]]))
    tensor([0.5833])
    """
    _check(saliency, mask)
    hot = _hot(saliency, threshold)
    total = saliency.new_zeros(len(saliency))
    classes = saliency.new_zeros(len(saliency))
    for here, there in ((hot, mask), (~hot, ~mask)):
        both, either = _overlap(here, there)
        total += both / either.clamp_min(1)
        classes += either > 0
    return total / classes


def trivial_maps(height: int, width: int) -> dict[str, SaliencyMap]:
    """Maps that know nothing of the image: the baseline of every overlap with a mask.

    `corner` is one hot pixel; `centre` a Gaussian whose hot part is a disc with a radius of a
    fifth of the shorter side; `uniform` the same value everywhere, where nothing is hot.

    >>> {name: int(_hot(saliency, 0.5).sum()) for name, saliency in trivial_maps(32, 32).items()}
    {'corner': 1, 'centre': 124, 'uniform': 0}
    """
    corner = torch.zeros(1, height, width)
    corner[0, 0, 0] = 1
    y = torch.arange(height)[:, None] - (height - 1) / 2
    x = torch.arange(width)[None] - (width - 1) / 2
    radius = min(height, width) / 5
    centre = 0.5 ** ((y.square() + x.square()) / radius**2)
    return {"corner": corner, "centre": centre[None], "uniform": torch.ones(1, height, width)}


def trivial_scores(mask: MaskBatch, *, threshold: float = 0.5) -> dict[str, tuple[Scores, Scores]]:
    """`mean_iou` and `iou` of each of the `trivial_maps` on these masks."""
    return {
        name: (
            mean_iou(saliency.to(mask.device).expand(mask.shape), mask, threshold=threshold),
            iou(saliency.to(mask.device).expand(mask.shape), mask, threshold=threshold),
        )
        for name, saliency in trivial_maps(*mask.shape[1:]).items()
    }


def mass_outside(saliency: SaliencyMap, mask: MaskBatch) -> Scores:
    """Share of the map's mass that lies outside the object; NaN for a map without mass.

    Equation: digin2024 Tab. 2   Σ_{p ∉ M} saliency_p / Σ_p saliency_p

    >>> mass_outside(torch.tensor([[[3.0, 1.0]]]), torch.tensor([[[True, False]]]))
    tensor([0.2500])
    """
    _check(saliency, mask)
    if (saliency < 0).any():
        raise InputError(
            "the saliency map has negative values, expected mass ≥ 0. Pass saliency.relu()."
        )
    total = saliency.sum((1, 2))
    return torch.where(mask, 0, saliency).sum((1, 2)) / total


def shares_outside(
    maps: Float[Tensor, "b m rows columns"], mask: MaskBatch
) -> Float[Tensor, "b m"]:
    """`mass_outside` of many coarse maps of each image, as if enlarged to the mask's size.

    Enlarging (bilinear) is linear, so the mask is brought to the maps' grid instead, once for all
    of them; NaN for a map without mass.

    Equation: digin2024 Tab. 2   Σ_{p ∉ M} U(saliency)_p / Σ_p U(saliency)_p,  U: bilinear
    """
    if (maps < 0).any():
        raise InputError("the maps have negative values, expected mass ≥ 0. Pass maps.relu().")
    down = _enlarging(maps.shape[2], mask.shape[1], maps)
    across = _enlarging(maps.shape[3], mask.shape[2], maps)
    outside = torch.einsum("rh,bhw,cw->brc", down, (~mask).to(maps), across)
    everywhere = torch.einsum("rh,cw->rc", down, across)
    return (maps * outside[:, None]).sum((2, 3)) / (maps * everywhere).sum((2, 3))


def _enlarging(coarse: int, fine: int, like: Tensor) -> Float[Tensor, "coarse fine"]:
    """How much of each coarse place goes to each fine one in linear interpolation."""
    rows: Tensor = interpolate(
        torch.eye(coarse, dtype=like.dtype, device=like.device)[None],
        size=fine,
        mode="linear",
        align_corners=False,
    )
    return rows[0]


def unit(saliency: SaliencyMap) -> SaliencyMap:
    """Each map scaled so that its least value is 0 and its greatest 1; a constant map is all 0."""
    low = saliency.amin((1, 2), keepdim=True)
    span = saliency.amax((1, 2), keepdim=True) - low
    return torch.where(span > 0, (saliency - low) / torch.where(span > 0, span, 1), 0)


def _hot(saliency: SaliencyMap, threshold: float) -> MaskBatch:
    return unit(saliency) > threshold


def _overlap(first: MaskBatch, second: MaskBatch) -> tuple[Tensor, Tensor]:
    both = (first & second).sum((1, 2)).float()
    either = (first | second).sum((1, 2)).float()
    return both, either


def _check(saliency: SaliencyMap, mask: MaskBatch) -> None:
    if saliency.shape != mask.shape or saliency.ndim != 3:
        raise InputError(
            f"got a map of shape {tuple(saliency.shape)} and a mask of shape {tuple(mask.shape)}"
            ", expected both (batch, height, width)."
        )
    if mask.dtype != torch.bool:
        raise InputError(f"the mask is {mask.dtype}, expected bool. Pass mask > 0.5.")
    if not torch.isfinite(saliency).all():
        raise InputError("the saliency map holds NaN or infinite values, expected finite ones.")
