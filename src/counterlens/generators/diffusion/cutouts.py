"""Cut-outs: a classifier evaluates many crops of an image, so noise cannot fool it.

Paper: Augustin et al. 2024 (digin2024), appendix A and Figure 13; sizes from its code: crops are
       biased to large ones (power 0.3), pooled to the classifier's side, with Gaussian noise.
Differs: the paper's images are much larger than what its classifiers see. Where they are not (side
       below 4/3 of the classifier's), its rule would give the same crop sixteen times: there crops
       span 0.6 to 1 of the side and are shifted by up to a tenth of it, edges repeated. A crop
       that has to grow is interpolated linearly.
"""

from jaxtyping import Float
from torch import Tensor, arange
from torch.nn.functional import interpolate

from counterlens.ball import Seeds, mix, normal, uniform
from counterlens.types import Images

POWER = 0.3
WIDE = 4 / 3
SMALLEST = 0.6
SHIFT = 0.1


def cutouts(
    x: Images, side: int, *, count: int, sigma: float, seeds: Seeds
) -> Float[Tensor, "b m c s s"]:
    """Random crops of each image at the classifier's side, with noise; not clamped.

    Equation: digin2024 §A   side = ⌊u^0.3 (S − s) + s⌋,  crop pooled to s × s,  + N(0, σ²)

    Args:
        side: the classifier's, s.
        count: crops per image.
        sigma: standard deviation of the noise.
        seeds: one per image; an image gets the same crops in any company.
    """
    whole = x.shape[-1]
    draw = uniform(seeds, (count, 3), like=x)
    if whole >= WIDE * side:
        size = (draw[..., 0] ** POWER * (whole - side) + side).floor()
        start = (draw[..., 1:] * (whole - size + 1)[..., None]).floor()
    else:
        low = SMALLEST * whole
        size = (draw[..., 0] ** POWER * (whole - low) + low).floor()
        reach = SHIFT * whole
        room = (whole - size)[..., None]
        start = (draw[..., 1:] * (room + 2 * reach) - reach).round()
    down = window(start[..., 0], size, whole, side)
    across = window(start[..., 1], size, whole, side)
    crops: Tensor = down @ x[:, None] @ across.transpose(-1, -2)
    noise = normal(mix(seeds, 7), tuple(crops.shape[1:]), like=x)
    return crops + sigma * noise


def window(
    start: Float[Tensor, "b m"], size: Float[Tensor, "b m"], whole: int, side: int
) -> Float[Tensor, "b m 1 s w"]:
    """The matrix that cuts `size` places out of `whole` from `start` and brings them to `side`.

    A crop that shrinks is averaged over bins, one that grows is interpolated linearly; places
    beyond the border repeat the edge.
    """
    place = arange(2 * whole, device=start.device).to(start) - whole // 2
    i = arange(side, device=start.device).to(start).view(1, 1, -1, 1)
    start, size = start[..., None, None], size[..., None, None]
    low = start + (i * size / side + 1e-4).floor()
    high = start + ((i + 1) * size / side - 1e-4).ceil()
    bins = ((place >= low) & (place < high)).to(start)
    last = start + size - 1
    middle = (start + (i + 0.5) * size / side - 0.5).clamp(min=start).minimum(last)
    line = (1 - (place - middle).abs()).clamp(min=0)
    weight = bins / bins.sum(-1, keepdim=True) * (size >= side) + line * (size < side)
    inside = weight[..., whole // 2 : whole // 2 + whole].clone()
    inside[..., 0] += weight[..., : whole // 2].sum(-1)
    inside[..., -1] += weight[..., whole // 2 + whole :].sum(-1)
    return inside[:, :, None]


def seen(x: Images, side: int) -> Images:
    """The whole image at the classifier's side: what results are judged on."""
    if x.shape[-1] == side and x.shape[-2] == side:
        return x
    return interpolate(x, (side, side), mode="bilinear", antialias=True, align_corners=False)
