"""Scene fickleness: does the answer change when the frame moves a little?

Paper: Hendrycks et al. 2021, Natural Adversarial Examples, arXiv:1907.07174 (section 3, Figure 7):
       neighbouring frames of one swimming alligator get unrelated answers.
Differs: the frames are cut from one image by small shifts, crops and scales, resampled
       bilinearly; what comes in at the border mirrors the image.
"""

from collections.abc import Iterable
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from counterlens.errors import InputError
from counterlens.explanations.edits.variants import EditVariant
from counterlens.types import Images


def shift(x: Images, right: float, down: float) -> Images:
    """Move the picture by shares of its width and height; the border mirrors."""
    return resample(x, 1.0, -2 * right, -2 * down)


def zoom(x: Images, factor: float, *, towards: tuple[float, float] = (0, 0)) -> Images:
    """Magnify about a point: (0, 0) the centre, (−1, −1) the upper left corner.

    A factor above 1 is a crop resized to the full size, below 1 shows more than there is.
    """
    if factor <= 0:
        raise InputError(f"got a zoom of {factor}, expected above 0, e.g. 1.1.")
    size = 1 / factor
    return resample(x, size, towards[0] * (1 - size), towards[1] * (1 - size))


def frame_variants(
    *,
    shifts: Iterable[float] = (1 / 32, 1 / 16),
    scales: Iterable[float] = (0.9, 1.1),
    crop: float = 0.9,
) -> tuple[EditVariant, ...]:
    """The sweep: shifts along both axes, scales about the centre, crops at the four corners.

    >>> [v.name for v in frame_variants(shifts=[1 / 16], scales=[1.1])]  # doctest: +ELLIPSIS
    ['right 6.2 %', 'left 6.2 %', 'down 6.2 %', 'up 6.2 %', 'scale × 1.1', 'crop upper left', ...]
    """
    if not 0 < crop <= 1:
        raise InputError(f"got a crop of {crop}, expected the share to keep, e.g. 0.9.")
    sweep = []
    for s in shifts:
        for name, right, down in (("right", s, 0), ("left", -s, 0), ("down", 0, s), ("up", 0, -s)):
            sweep.append(
                EditVariant(
                    "shift", f"{name} {100 * s:.1f} %", partial(shift, right=right, down=down)
                )
            )
    sweep += [EditVariant("scale", f"scale × {f:g}", partial(zoom, factor=f)) for f in scales]
    for (down, vertical), (right, side) in product(
        ((-1, "upper"), (1, "lower")), ((-1, "left"), (1, "right"))
    ):
        corner = (float(right), float(down))
        sweep.append(
            EditVariant(
                "crop", f"crop {vertical} {side}", partial(zoom, factor=1 / crop, towards=corner)
            )
        )
    return tuple(sweep)


def resample(
    x: Images, size: float | Tensor, right: float | Tensor, down: float | Tensor
) -> Images:
    """Read output place (u, v) at (size · u + right, size · v + down), places in [−1, 1].

    Numbers hold for all images, tensors of one number per image for each; differentiable in x.
    """
    theta = x.new_zeros(len(x), 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = size
    theta[:, 0, 2], theta[:, 1, 2] = right, down
    grid = affine_grid(theta, list(x.shape), align_corners=False)
    seen = grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    return torch.clamp(seen, 0, 1)  # the weights sum to one only up to rounding
