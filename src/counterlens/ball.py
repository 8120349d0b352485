"""Ball: the points of [0, 1] pixel space within a distance of an image.

Paper: Madry et al. 2018 (section 2.1) for the l2 and l∞ steps; Tramèr and Boneh 2019 for the
       sparse l1 step; Croce and Hein 2021 for projecting on l1 ball and box at once.
Differs: l1 and l1.5 projections find their multiplier by bisection instead of sorting, so both
       norms share eight lines. Random numbers come from a hash of (row seed, position), so a
       row draws the same numbers whatever the batch around it or the device.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterlens.errors import InputError
from counterlens.notation import EXPONENTS
from counterlens.types import Images, Scores

Norm = Literal["l1", "l1.5", "l2", "linf"]
NORMS: tuple[Norm, ...] = ("l1", "l1.5", "l2", "linf")
Seeds = Int[Tensor, "b"]

SPARSITY = 0.01  # share of coordinates an l1 step moves
BISECTIONS = 50


@dataclass(frozen=True)
class Ball:
    """An Lp ball cut with the pixel box.

    Args:
        norm: which distance.
        radius: how far; one number, or one per row. 0 leaves only the centre.
    """

    norm: Norm
    radius: float | Float[Tensor, "b"]

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise InputError(f"norm is {self.norm!r}, expected one of {', '.join(NORMS)}.")
        radius = torch.as_tensor(self.radius)
        if not bool(torch.isfinite(radius).all() and (radius >= 0).all()):
            raise InputError(
                f"radius is {self.radius}, expected a finite number ≥ 0 such as 0.5 (l2) or "
                "8/255 (linf)."
            )

    def rows(self, index: Tensor) -> "Ball":
        """The ball of a selection of rows."""
        return Ball(self.norm, self.radius[index]) if isinstance(self.radius, Tensor) else self

    def reach(self, like: Images) -> Tensor:
        """The radius, shaped to multiply a batch of images."""
        if isinstance(self.radius, Tensor):
            return self.radius.to(like).view(-1, 1, 1, 1)
        return torch.full((), self.radius, dtype=like.dtype, device=like.device)

    def project(self, x: Images, center: Images) -> Images:
        """The nearest point of the ball, then of the box.

        Equation: autoattack2020 §3   P(x) = clip(c + (x − c) · min(1, r/‖x − c‖₂), 0, 1)

        Since the centre lies in the box, clipping only shortens the distance to it: the result
        obeys both. For l1 and l1.5 ball and box are satisfied at once, for l∞ they are one box.
        """
        radius = self.reach(x)
        delta = x - center
        if self.norm == "linf":
            return torch.clamp(center + torch.clamp(delta, -radius, radius), 0, 1)
        if self.norm == "l2":
            size = _size(delta, 2.0)
            return torch.clamp(center + delta * (radius / size.clamp_min(1e-30)).clamp_max(1), 0, 1)
        room = torch.where(delta > 0, 1 - center, center)  # to the wall of the box
        return torch.clamp(center + delta.sign() * _shrink(delta, room, radius, self.norm), 0, 1)

    def steepest(self, grad: Images) -> Images:
        """The step of unit length along which a linear score grows most; 0 where grad is 0.

        Equation: madry2018 §2.1   argmax_{‖d‖ ≤ 1} ⟨d, ∇⟩
        """
        if self.norm == "linf":
            return grad.sign()
        if self.norm == "l2":
            return grad / _size(grad, 2.0).clamp_min(1e-30)
        if self.norm == "l1.5":  # the dual exponent is 3, so d ∝ sign(∇) |∇|²
            scaled = grad / grad.flatten(1).abs().amax(1).view(-1, 1, 1, 1).clamp_min(1e-30)
            step = scaled.sign() * scaled.square()
            return step / _size(step, 1.5).clamp_min(1e-30)
        flat = grad.flatten(1)
        top = flat.abs().topk(max(1, round(SPARSITY * flat.shape[1])), dim=1)
        step = torch.zeros_like(flat).scatter(1, top.indices, flat.gather(1, top.indices).sign())
        step = step / step.abs().sum(1, keepdim=True).clamp_min(1)
        return step.view_as(grad)

    def random_point(
        self, center: Images, seeds: Seeds, *, where: Literal["sphere", "inside"] = "sphere"
    ) -> Images:
        """A random point of the ball around each row, clipped to the box.

        On the sphere it lies at the full radius before clipping; inside, it is uniform in the
        ball. (For l1.5 the direction is a normalised Gaussian: close to uniform, not exact.)
        """
        shape = center.shape[1:]
        if self.norm == "linf":
            step = 2 * uniform(seeds, shape, like=center) - 1
            if where == "sphere":
                step = step / _size(step, float("inf")).clamp_min(1e-30)
        else:
            step = normal(seeds, shape, like=center)
            if self.norm == "l1":
                size = -uniform(seeds, shape, like=center, stream=2).log()
                step = step.sign() * size  # Laplace noise is uniform on the l1 sphere
            step = step / _size(step, EXPONENTS[self.norm]).clamp_min(1e-30)
            if where == "inside":
                inner = uniform(seeds, (1, 1, 1), like=center, stream=3)
                step = step * inner ** (1 / shape.numel())
        return torch.clamp(center + self.reach(center) * step, 0, 1)

    def distance(self, x: Images, center: Images) -> Scores:
        """How far each row of x is from its centre."""
        return _size(x - center, EXPONENTS[self.norm]).flatten()

    def contains(self, x: Images, center: Images) -> Tensor:
        """Which rows lie in ball and box, up to rounding."""
        slack = 1e-5 if x.dtype == torch.float32 else 1e-9
        near = self.distance(x, center) <= self.reach(x).flatten() * (1 + slack) + slack * 1e-2
        flat = x.flatten(1)
        return near & (flat.amin(1) >= 0) & (flat.amax(1) <= 1)


def show_radius(norm: str, radius: float) -> str:
    """A budget as people write it: 8/255 for l∞, 1.5 else.

    >>> show_radius("linf", 8 / 255), show_radius("l2", 1.5)
    ('8/255', '1.5')
    """
    levels = radius * 255
    if norm == "linf" and math.isclose(levels, round(levels), rel_tol=1e-9):
        return f"{round(levels)}/255"
    return f"{radius:.4g}"


def _size(delta: Images, p: float) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(delta, p, dim=(1, 2, 3), keepdim=True)
    return norm


def _shrink(delta: Images, room: Images, radius: Tensor, norm: Norm) -> Images:
    """Sizes of the projection on an l1 or l1.5 ball and the box: least squares with one multiplier.

    Stationarity for l1: s = |δ| − λ. For l1.5: s + (3/2) λ √s = |δ|, a square in √s.
    """
    size = delta.abs()

    def sizes(multiplier: Tensor) -> Tensor:
        if norm == "l1":
            free = (size - multiplier).clamp_min(0)
        else:
            half = 0.75 * multiplier
            free = (size / (half + (half.square() + size).sqrt()).clamp_min(1e-30)).square()
        return torch.minimum(free, room)

    exponent = EXPONENTS[norm]
    low = torch.zeros_like(size[:, :1, :1, :1])
    top = size.flatten(1).amax(1).view_as(low)
    high = top if norm == "l1" else top.new_full((), 1e6) * (top + 1)
    outside = _size(sizes(low), exponent) > radius
    for _ in range(BISECTIONS if norm == "l1" else 2 * BISECTIONS):
        middle = (low + high) / 2
        too_long = _size(sizes(middle), exponent) > radius
        low = torch.where(too_long, middle, low)
        high = torch.where(too_long, high, middle)
    solution = torch.where(outside, high, torch.zeros_like(high))
    return torch.where(radius > 0, sizes(solution), torch.zeros_like(size))


def row_seeds(
    rows: int, generator: torch.Generator | int | None, *, device: object = None
) -> Seeds:
    """One seed per row, drawn in order: row i gets the same seed whatever `rows` is."""
    if generator is None or isinstance(generator, int):
        generator = torch.Generator().manual_seed(generator or 0)
    drawn = torch.randint(2**62, (rows,), generator=generator, device=generator.device)
    return drawn.to(device)  # type: ignore[call-overload,no-any-return]


_GOLDEN = -7046029254386353131  # the odd constants of splitmix64, as signed 64-bit numbers
_MIX_1 = -4658895280553007687
_MIX_2 = -7723592293110705685


def mix(seeds: Int[Tensor, "..."], salt: int | Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """A well-mixed new seed from a seed and a number (one round of splitmix64)."""
    if isinstance(salt, int):
        shift = ((salt + 1) * _GOLDEN + 2**63) % 2**64 - 2**63  # wraps as a 64-bit product does
        bits = seeds + shift
    else:
        bits = seeds + (salt + 1) * _GOLDEN
    bits = (bits ^ ((bits >> 30) & 0x3FFFFFFFF)) * _MIX_1
    bits = (bits ^ ((bits >> 27) & 0x1FFFFFFFFF)) * _MIX_2
    return bits ^ ((bits >> 31) & 0x1FFFFFFFF)


def uniform(
    seeds: Seeds, shape: tuple[int, ...], *, like: Tensor, stream: int = 0
) -> Float[Tensor, "b ..."]:
    """Uniform numbers in (0, 1), a function of each row's seed and the position alone."""
    position = torch.arange(torch.Size(shape).numel(), device=like.device)
    key = mix(seeds.to(like.device), stream)[:, None]
    return unit(mix(key, position), like).view(-1, *shape)


def unit(bits: Int[Tensor, "*any"], like: Tensor) -> Float[Tensor, "*any"]:
    """Well-mixed 64-bit numbers as numbers in (0, 1)."""
    digits = (
        52 if like.dtype == torch.float64 else 23
    )  # so that + 0.5 is exact, 0 and 1 never drawn
    top_bits = (bits >> (64 - digits)) & ((1 << digits) - 1)
    return (top_bits.to(like.dtype) + 0.5) * 2.0**-digits


def normal(
    seeds: Seeds, shape: tuple[int, ...], *, like: Tensor, stream: int = 0
) -> Float[Tensor, "b ..."]:
    """Standard normal numbers, a function of each row's seed and the position alone."""
    first = uniform(seeds, shape, like=like, stream=2 * stream + 101)
    second = uniform(seeds, shape, like=like, stream=2 * stream + 102)
    return (-2 * first.log()).sqrt() * (2 * torch.pi * second).cos()  # Box and Muller


__all__ = [
    *("NORMS", "Ball", "Norm", "Seeds", "check_radius", "mix", "normal", "row_seeds", "uniform"),
    "unit",
]
