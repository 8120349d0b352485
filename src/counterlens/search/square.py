"""Square attack: random search with square-shaped changes, no gradients.

Paper: Andriushchenko et al. 2020, Square Attack: a query-efficient black-box adversarial attack
       via random search, arXiv:1912.00049 (algorithms 1 to 3); Croce and Hein 2021,
       arXiv:2103.01208, for l1.
Differs: windows, signs and patch orientation are drawn per row, where the reference shares
       windows across the batch, so a row's fate does not depend on its neighbours. The schedule
       is not rescaled to the number of queries, as in AutoAttack.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from counterlens.ball import Ball, Seeds, mix, row_seeds, uniform, unit
from counterlens.errors import InputError
from counterlens.notation import EXPONENTS
from counterlens.search.fast.fusing import can_fuse
from counterlens.search.fast.prebuild import KernelVariant, kernel
from counterlens.search.pgd import keep
from counterlens.search.result import SearchResult
from counterlens.search.rule import Evaluation, RuleState, finite
from counterlens.types import Images, Objective

SQUARE_NORMS = ("l1", "l2", "linf")
HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
TILES = 5
ONE_PASS = 4096  # pixels of a picture that one program of a GPU can hold
_STRIDE = 0x1B873593CC9E2D51  # odd: apart from the steps inside a draw


@dataclass(frozen=True)
class Square:
    """The rule of the square attack; the score is usually the margin.

    Args:
        queries: proposals evaluated, the start included.
        share: share of the pixels that the first window covers.
    """

    queries: int = 5000
    share: float = 0.8
    strays: bool = field(default=False, init=False)

    @property
    def evaluations(self) -> int:
        """One per query."""
        return self.queries

    def start(self, x: Images, ball: Ball, seeds: Seeds) -> RuleState:
        """Random stripes (l∞) or a grid of bumps (l1, l2) at the full radius."""
        if ball.norm not in SQUARE_NORMS:
            raise InputError(f"square knows the norms l1, l2 and linf, not {ball.norm}.")
        rows = x.new_zeros(len(x))
        begin = _stripes if ball.norm == "linf" else _bumps
        return {
            "z": begin(x, ball, seeds),
            "best": x,
            "top": torch.full_like(rows, -torch.inf),
            "seed": seeds.to(x.device),
            "i": torch.zeros_like(rows, dtype=torch.int64),
        }

    def update(self, state: RuleState, x: Images, ball: Ball, evaluation: Evaluation) -> RuleState:
        """Accept what scores higher, then propose a new window."""
        score = finite(evaluation.score)
        top, best = keep(state["top"], state["best"], score, state["z"])
        i = state["i"] + 1
        propose = PROPOSALS[ball.norm]
        z = propose(x, best, ball, state["seed"], i, self.share)
        return {"z": z, "best": best, "top": top, "seed": state["seed"], "i": i}


def _draw(x: Images, seeds: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
    """The level of the schedule at query i, and the numbers drawn for it: 5, and one a channel."""
    level = torch.bucketize(i, _halvings(x.device))  # i = 10 belongs to the first window size
    channels = torch.arange(5 + x.shape[1], device=x.device)
    return level, unit(mix((seeds + i * _STRIDE)[:, None], channels), x)


@lru_cache
def _halvings(device: torch.device) -> Tensor:
    return torch.tensor(HALVINGS, device=device)


def window_sizes(norm: str, height: int, width: int, share: float = 0.8) -> list[int]:
    """The side of the window at each level of the schedule.

    >>> window_sizes("l2", 32, 32)[:8]
    [29, 21, 15, 11, 7, 5, 5, 3]
    """
    sides = []
    for level in range(len(HALVINGS) + 1):
        side = round((share / 2**level * height * width) ** 0.5)
        if norm != "linf":
            side = max(side, 3)
            side += 1 - side % 2
        sides.append(max(1, min(side, height, width)))
    return sides


@lru_cache
def _sizes(norm: str, height: int, width: int, share: float, device: torch.device) -> Tensor:
    return torch.tensor(window_sizes(norm, height, width, share), device=device)


def _windows(x: Images, drawn: Tensor, side: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Square windows at random places, two drawn numbers each: mask, and place of each pixel."""
    corner = _corners(x, drawn, side)
    down = torch.arange(x.shape[2], device=x.device) - corner[:, 0::2, None]
    right = torch.arange(x.shape[3], device=x.device) - corner[:, 1::2, None]
    side = side[:, None, None]
    rows = (down >= 0) & (down < side)
    columns = (right >= 0) & (right < side)
    return rows[:, :, :, None] & columns[:, :, None, :], down, right


def _corners(x: Images, drawn: Tensor, side: Tensor) -> Tensor:
    """The upper left pixel of each window: row and column in turn."""
    room = _extents(x, drawn.shape[1] // 2) - side[:, None] + 1
    return torch.minimum((drawn * room).long(), room - 1)


def _extents(x: Images, windows: int) -> Tensor:
    height, width = x.shape[2:]
    return _extent_table(height, width, windows, x.device)


@lru_cache
def _extent_table(height: int, width: int, windows: int, device: torch.device) -> Tensor:
    return torch.tensor([height, width] * windows, device=device)


def _stripes(x: Images, ball: Ball, seeds: Seeds) -> Images:
    signs = uniform(seeds, (x.shape[1], 1, x.shape[3]), like=x, stream=7) - 0.5
    return (x + ball.reach(x) * signs.sign()).clamp(0, 1)


def _propose_linf(
    x: Images, best: Images, ball: Ball, seeds: Tensor, i: Tensor, share: float
) -> Images:
    """One window gets a new colour: plus or minus the radius per channel."""
    level, drawn = _draw(x, seeds, i)
    side = _sizes("linf", x.shape[2], x.shape[3], share, x.device)[level]
    mask, _, _ = _windows(x, drawn[:, :2], side)
    signs = (drawn[:, 5:] - 0.5).sign()[:, :, None, None]
    return torch.where(mask, (x + ball.reach(x) * signs).clamp(0, 1), best)


def bump(height: int, width: int, norm: str = "l2") -> Tensor:
    """A pyramid of nested centred squares, the k-th weighing 1/k² (l1: 1/k⁴), of unit norm.

    Equation: square2020 (2)   η_{r,s} = Σ_k 1/(n + 1 − k)²
    """
    down = (torch.arange(height) - height // 2).abs()[:, None]
    right = (torch.arange(width) - width // 2).abs()[None]
    ring = torch.maximum(down, right)
    count = max(height // 2, width // 2) + 1
    weights = torch.arange(1, count + 1, dtype=torch.float64) ** (-2 if norm == "l2" else -4)
    covering = weights.flip(0).cumsum(0).flip(0)  # rings k … count cover a pixel of ring k
    stacked = covering[ring.clamp_max(count - 1)]
    size: Tensor = torch.linalg.vector_norm(stacked, EXPONENTS[norm])
    return stacked / size


def patch(side: int, norm: str = "l2") -> Tensor:
    """Two bumps of opposite sign, one above the other, of unit norm."""
    half = side // 2
    if half == 0:
        return torch.ones(1, 1, dtype=torch.float64)
    both = torch.cat([bump(half, side, norm), -bump(side - half, side, norm)])
    size: Tensor = torch.linalg.vector_norm(both, EXPONENTS[norm])
    return both / size


@lru_cache
def _patches(
    norm: str, height: int, width: int, share: float, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The patch of each level, upright and lying, in one padded table."""
    sides = window_sizes(norm, height, width, share)
    table = torch.zeros(2 * len(sides), max(sides), max(sides), dtype=dtype)
    for level, side in enumerate(sides):
        table[2 * level, :side, :side] = patch(side, norm)
        table[2 * level + 1, :side, :side] = patch(side, norm).T
    return table.to(device)


def _bumps(x: Images, ball: Ball, seeds: Seeds) -> Images:
    channels, height, width = x.shape[1:]
    side = max(min(height, width) // TILES, 1)
    down, across = min(TILES, height // side), min(TILES, width // side)
    tile = patch(side, ball.norm).to(x)
    signs = (uniform(seeds, (channels, down, across), like=x, stream=8) - 0.5).sign()
    grid = signs[:, :, :, None, :, None] * tile[:, None, :]
    grid = grid.reshape(len(x), channels, down * side, across * side)
    delta = torch.zeros_like(x)
    up, left = (height - down * side) // 2, (width - across * side) // 2
    delta[:, :, up : up + down * side, left : left + across * side] = grid
    if ball.norm == "l1":
        return _inside(ball).project(x + delta, x)
    return _to_radius(x, delta, ball)


def _inside(ball: Ball) -> Ball:
    """The ball less rounding."""
    return Ball(ball.norm, ball.radius * (1 - 1e-6))


def _to_radius(x: Images, delta: Images, ball: Ball) -> Images:
    size: Tensor = torch.linalg.vector_norm(delta, dim=(1, 2, 3), keepdim=True)
    return (x + delta * (ball.reach(x) / size.clamp_min(1e-12))).clamp(0, 1)


def _propose_l2(
    x: Images, best: Images, ball: Ball, seeds: Tensor, i: Tensor, share: float
) -> Images:
    """The l2 mass of two windows is moved into a new patch in the first of them."""
    channels, height, width = x.shape[1:]
    if x.dtype == torch.float32 and height * width <= ONE_PASS and _can_fuse(x.device):
        try:
            return _in_one_pass(x, best, ball, seeds, i, share)
        except Exception:  # a kernel that cannot be built is no reason to stop
            _without_kernel.add(x.device)
    mask, other, shape = _drawn_patch(x, ball.norm, seeds, i, share)
    delta = best - x
    inside = delta * mask
    old = inside / (_channel_norm(inside) + 1e-10)
    new = shape + old
    spare = (ball.reach(x).square() - delta.square().sum((1, 2, 3), keepdim=True)).clamp_min(0)
    mass = (spare / channels + _channel_norm(delta * (mask | other)).square()).sqrt()
    new = new * (mass / (_channel_norm(new) + 1e-10))
    moved = torch.where(mask, new, torch.where(other, torch.zeros_like(delta), delta))
    return _to_radius(x, moved, ball)


def _drawn_patch(
    x: Images, norm: str, seeds: Tensor, i: Tensor, share: float
) -> tuple[Tensor, Tensor, Images]:
    """Two windows, and a patch with a sign per channel in the first of them."""
    height, width = x.shape[2:]
    level, drawn = _draw(x, seeds, i)
    side = _sizes(norm, height, width, share, x.device)[level]
    table = _patches(norm, height, width, share, x.dtype, x.device)
    kind = 2 * level + (drawn[:, 4] < 0.5)
    masks, down, right = _windows(x, drawn[:, :4], side)
    mask, other = masks[:, :1], masks[:, 1:]
    last = table.shape[1] - 1
    place = down[:, 0, :, None].clamp(0, last), right[:, 0, None, :].clamp(0, last)
    shape = table[kind[:, None, None], place[0], place[1]][:, None] * mask
    return mask, other, shape * (drawn[:, 5:] - 0.5).sign()[:, :, None, None]


def _propose_l1(
    x: Images, best: Images, ball: Ball, seeds: Tensor, i: Tensor, share: float
) -> Images:
    """The l1 mass of two windows and what is left of the radius go into a patch, projected."""
    mask, other, shape = _drawn_patch(x, "l1", seeds, i, share)
    delta = best - x
    inside = delta * mask
    new = shape + inside / (_channel_norm(inside, 1) + 1e-12)
    spare = (ball.reach(x) - delta.abs().sum((1, 2, 3), keepdim=True)).clamp_min(0)
    mass = spare + x.shape[1] * _channel_norm(delta * (mask | other), 1)
    new = new * (mass / (_channel_norm(new, 1) + 1e-12))
    moved = torch.where(mask, new, torch.where(other, torch.zeros_like(delta), delta))
    return _inside(ball).project(x + moved, x)


_without_kernel: set[torch.device] = set()


def _can_fuse(device: torch.device) -> bool:
    return can_fuse(device) and device not in _without_kernel


def _in_one_pass(
    x: Images, best: Images, ball: Ball, seeds: Tensor, i: Tensor, share: float
) -> Images:
    """The same proposal by one kernel; written plainly it is some sixty."""
    x, best = x.contiguous(), best.contiguous()
    height, width = x.shape[2:]
    reach = ball.reach(x).contiguous()
    sides = _sizes("l2", height, width, share, x.device)
    table = _patches("l2", height, width, share, x.dtype, x.device)
    out = torch.empty_like(x)
    kernel("move_mass")[(len(x),)](
        *(x, best, out, seeds.contiguous(), i.contiguous(), _halvings(x.device), sides),
        *(reach, table, width, height * width, table.shape[1], int(reach.numel() > 1)),
        **dict(_constants(x.shape)),
    )
    return out


def _constants(shape: torch.Size) -> tuple[tuple[str, int], ...]:
    channels, pixels = shape[1], shape[2] * shape[3]
    rows, block = 1 << (channels - 1).bit_length(), 1 << (pixels - 1).bit_length()
    schedule = ("LEVELS", len(HALVINGS)), ("STRIDE", _STRIDE)
    return *schedule, ("CHANNELS", channels), ("ROWS", rows), ("BLOCK", block), ("num_warps", 8)


def orders(shape: torch.Size, norm: str, share: float) -> dict[str, list[KernelVariant]]:
    """The kernel that a search with one radius for all will need, for `prebuild.build`."""
    height, width = shape[2:]
    if norm != "l2" or height * width > ONE_PASS:
        return {}
    real, whole = torch.float32, torch.int64
    tensors = (real, real, real, whole, whole, whole, whole, real, real)
    numbers = width, height * width, max(window_sizes("l2", height, width, share)), 0
    return {"move_mass": [((*tensors, *numbers), _constants(shape))]}


def _channel_norm(delta: Images, order: float = 2) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(delta, order, dim=(2, 3), keepdim=True)
    return norm


PROPOSALS = {"l1": _propose_l1, "l2": _propose_l2, "linf": _propose_linf}


def square(
    objective: Objective,
    x: Images,
    ball: Ball,
    *,
    queries: int = 5000,
    generator: torch.Generator | Seeds | None = None,
) -> SearchResult:
    """Raise the objective inside an l1, l2 or l∞ ball by random search.

    Args:
        generator: a generator or one seed per row; None means the fixed seed 0.
    """
    x = x.detach()
    rule = Square(queries)
    seeds = generator if isinstance(generator, Tensor) else row_seeds(len(x), generator)
    with torch.no_grad():
        start = finite(objective(x).detach())
        state = rule.start(x, ball, seeds)
        for _ in range(rule.evaluations):
            score = objective(state["z"]).detach()
            state = rule.update(state, x, ball, Evaluation(score, score))
    best, points = keep(start, x, state["top"], state["best"])
    return SearchResult(points, best, start)
