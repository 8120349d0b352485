"""Trust: whether a robust accuracy may be quoted, and the reasons why not.

Paper: Croce and Hein 2020 (autoattack2020) and Carlini et al. 2019 (carlini2019) for the signs
       of an evaluation that failed instead of the attack.
Differs: every sign is a record with its number, and together they give one verdict.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from counterlens.ball import EXPONENTS, Ball, mix
from counterlens.objectives import ce, full, margin, margin_of
from counterlens.search.apgd import Apgd
from counterlens.search.board import Board
from counterlens.search.engine import Engine
from counterlens.search.pgd import pgd, value_and_grad
from counterlens.search.protocols import SCORES
from counterlens.search.replay import Replay
from counterlens.search.rules import State
from counterlens.types import Images, Labels

Status = Literal["ok", "weak", "bad", "skipped"]
Verdict = Literal["trusted", "weak", "do not quote"]

PROBED = 48  # points looked at by the probes
LONGER = 200  # steps of the attack that asks whether more steps help
FAR_STEPS = 50


@dataclass(frozen=True)
class Flag:
    """One sign.

    Args:
        name: which.
        status: ok, weak, bad, or skipped.
        value: the number it rests on, if any.
        detail: one readable line.
    """

    name: str
    status: Status
    value: float | None
    detail: str


@dataclass(frozen=True)
class Trust:
    """All signs and what they add up to."""

    verdict: Verdict
    reasons: tuple[str, ...]
    flags: tuple[Flag, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a Number's `trust`."""
        return {
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "flags": [asdict(flag) for flag in self.flags],
        }


def weigh(flags: list[Flag]) -> Trust:
    """One bad sign forbids quoting, one weak sign weakens."""
    bad = [flag.detail for flag in flags if flag.status == "bad"]
    weak = [flag.detail for flag in flags if flag.status == "weak"]
    verdict: Verdict = "do not quote" if bad else "weak" if weak else "trusted"
    return Trust(verdict, tuple(bad + weak), tuple(flags))


def examine(
    made: Engine,
    board: Board,
    *,
    version: str,
    complete: bool,
    probes: bool,
) -> Trust:
    """Judge a finished evaluation by its own record and by a few probes."""
    flags = [_complete(complete, board), _finite(made, board), _switch(board), _transfer(board)]
    if made.differentiable:
        flags.append(_black_box(board))
    else:
        detail = "the model has no gradients: attacks that need them could not be run"
        flags.append(Flag("gradients", "bad", None, detail))
    if version == "fast":
        detail = "two searches alone, no FAB and no Square: an upper bound; quote version standard"
        flags.append(Flag("ensemble", "weak", None, detail))
    if not probes:
        if complete:  # else the bounds say so already
            flags.append(Flag("probes", "weak", None, "the probes that judge it were not run"))
        return weigh(flags)
    rows = np.flatnonzero([name != "clean" for name in board.broken_by])[:PROBED]
    holding = np.flatnonzero(board.robust)[:PROBED]
    flags.append(_randomness(made, board, version))
    if len(rows) and made.differentiable:
        x, y = board.take(rows, made.device)
        flags += [_flat(made, x, y), _honest(made, board.ball, x, y)]
        flags.append(_far(made, board.ball, x, y))
    if len(holding) and made.differentiable:
        flags.append(_longer(made, board, holding))
    return weigh(flags)


def _grade(value: float, weak: float, bad: float) -> Status:
    return "bad" if value > bad else "weak" if value > weak else "ok"


def _complete(complete: bool, board: Board) -> Flag:
    if complete:
        return Flag("complete", "ok", 1.0, "every stage ran to its end")
    share = float(board.finished.mean())
    detail = f"the budget ended first: {share:.0%} of the points are settled"
    return Flag("complete", "weak", share, detail)


def _finite(made: Engine, board: Board) -> Flag:
    """Whether logits and gradients were numbers; half precision alone may overflow."""
    odd = sum(tally["odd"] for tally in board.tallies)
    if made.counts.odd or (odd and made.precision == "float32"):
        detail = f"{odd + made.counts.odd} evaluations gave logits or gradients that are no numbers"
        return Flag("finite", "bad", float(odd + made.counts.odd), detail)
    if odd:
        detail = f"{odd} evaluations overflowed in {made.precision}: search in float32"
        return Flag("finite", "weak", float(odd), detail)
    return Flag("finite", "ok", 0.0, "all logits and gradients were numbers")


def _broken(board: Board, *stages: str) -> int:
    return sum(name in stages for name in board.broken_by)


def _switch(board: Board) -> Flag:
    """Whether another loss found much that cross-entropy missed."""
    ran = [tally["stage"] for tally in board.tallies]
    if "apgd-ce" not in ran or len(ran) < 2:
        return Flag("loss-switch", "skipped", None, "only one loss was tried")
    others = [name for name in ran if name.startswith("apgd") and name != "apgd-ce"]
    gain = _broken(board, *others) / len(board)
    count = _broken(board, *others)
    status: Status = "weak" if count > 3 and gain > 0.1 else "ok"
    detail = f"switching the loss broke {gain:.1%} of all points that cross-entropy did not"
    return Flag("loss-switch", status, gain, detail)


def _black_box(board: Board) -> Flag:
    """Whether a search without gradients beat those with them."""
    if not any(tally["stage"] == "square" for tally in board.tallies):
        return Flag("black-box", "skipped", None, "no attack without gradients was run")
    count = _broken(board, "square")
    gain = count / len(board)
    status = _grade(gain, 0.002, 0.02) if count > 2 else "weak" if gain > 0.03 else "ok"
    detail = f"the attack without gradients broke {count} points that held against gradients"
    return Flag("black-box", status, gain, detail)


def _transfer(board: Board) -> Flag:
    """Whether images made against other models broke what held against everything else."""
    ran = [t["stage"] for t in board.tallies if t["stage"].startswith("transfer-")]
    if not ran:
        return Flag("transfer", "skipped", None, "no other model was given to attack in its place")
    count = _broken(board, *ran)
    gain = count / len(board)
    status = _grade(gain, 0.002, 0.02) if count > 2 else "weak" if gain > 0.03 else "ok"
    detail = f"images made against {len(ran)} other models broke {count} points that held"
    if status != "ok":
        detail += ": its own gradients are masked"
    return Flag("transfer", status, gain, detail)


def _randomness(made: Engine, board: Board, version: str) -> Flag:
    """Whether the model answers the same question in the same way."""
    x, _ = board.take(np.arange(min(PROBED, len(board))), made.device)
    answers = [made.verify(x, batch=len(x)) for _ in range(3)]
    spread = (answers[0].amax(1) - answers[0].amin(1)).clamp_min(1e-12)
    change = max(((a - answers[0]).abs().amax(1) / spread).max().item() for a in answers[1:])
    if not change > 1e-4:
        return Flag("randomness", "ok", change, "the same image gets the same logits")
    detail = f"the same image gets logits that differ by {change:.1%} of their spread"
    if version == "rand":
        return Flag("randomness", "weak", change, detail + "; averaged over 20 evaluations")
    return Flag("randomness", "bad", change, detail + ": use version rand")


def _flat(made: Engine, x: Images, y: Labels) -> Flag:
    """How many points give cross-entropy no gradient at all."""
    _, grad = value_and_grad(lambda z: ce(made.model(z), y), x)
    share = (grad.flatten(1).abs().amax(1) == 0).float().mean().item()
    detail = f"the gradient of cross-entropy is exactly zero at {share:.0%} of the points"
    return Flag("zero-gradients", _grade(share, 0.02, 0.1), share, detail)


def _honest(made: Engine, ball: Ball, x: Images, y: Labels) -> Flag:
    """Whether the margin grows along its gradient as fast as the gradient says.

    Equation: carlini2019 §3.1   (f(x + h d) − f(x − h d)) / 2h = ⟨∇f, d⟩
    """
    _, grad = value_and_grad(margin(made.model, y), x)
    step = ball.steepest(grad)
    slope = (grad * step).flatten(1).sum(1)
    reach = 0.02 * float(ball.radius)
    if reach == 0 or not (slope > 0).any():
        status: Status = "skipped" if reach == 0 else "bad"
        return Flag("honest-gradient", status, None, "the margin has no gradient at any point")
    with torch.no_grad():
        up = margin_of(full(made.model(x + reach * step)), y)
        down = margin_of(full(made.model(x - reach * step)), y)
    kept = ((up - down) / (2 * reach * slope))[slope > 0]
    share = kept.nan_to_num(0, 0, 0).median().item()
    status = "bad" if share < 0.1 or share > 10 else "weak" if not 0.4 < share < 2.5 else "ok"
    detail = f"along its gradient the margin grows at {share:.0%} of the promised rate"
    return Flag("honest-gradient", status, share, detail)


def _far(made: Engine, ball: Ball, x: Images, y: Labels) -> Flag:
    """An attack with hardly any limit must break nearly everything."""
    pixels = x[0].numel()
    least = 0.25 if ball.norm == "linf" else 0.1 * pixels ** (1 / EXPONENTS[ball.norm])
    far = Ball(ball.norm, max(8 * float(ball.radius), least))
    found = pgd(margin(made.model, y), x, far, steps=FAR_STEPS, momentum=0.75)
    share = (found.scores <= 0).float().mean().item()
    detail = f"{share:.0%} of the points survive an attack of {ball.norm} {far.radius:.3g}"
    return Flag("far-attack", _grade(share, 0.1, 0.3), share, detail)


def _longer(made: Engine, board: Board, rows: NDArray[np.int64]) -> Flag:
    """Whether more steps from another start would break more."""
    x, y = board.take(rows, made.device)
    rule = Apgd(LONGER)
    seeds = mix(board.seeds[torch.from_numpy(rows)], 999).to(made.device)

    def step(state: State) -> State:
        told = made.slope(SCORES["margin"], state["z"], state["y"], state["y"])
        return state | rule.tell(state, state["x"], board.ball, told)

    start = {"x": x, "y": y} | rule.start(x, board.ball, seeds)
    end = Replay(made).run(step, start, rule.evaluations)
    count = _wrong(made, end["best"], y)
    detail = f"{LONGER} more steps break {count} of {len(rows)} points that held"
    return _gain("more-steps", count, board, rows, detail)


def _wrong(made: Engine, points: Images, y: Labels) -> int:
    """How many of the images the model itself misclassifies."""
    return int((margin_of(made.verify(points, batch=len(points)), y) > 0).sum())


def _gain(name: str, count: int, board: Board, rows: NDArray[np.int64], detail: str) -> Flag:
    gain = count / len(rows) * float(board.robust.mean())
    status = _grade(gain, 0.01, 0.05) if count > 1 else "ok"
    return Flag(name, status, gain, detail)
