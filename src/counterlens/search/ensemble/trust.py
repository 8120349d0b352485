"""Trust: whether the result of an attack may be quoted, and the reasons why not.

Paper: Croce and Hein 2020 (autoattack2020) and Carlini et al. 2019 (carlini2019) for the signs
       of an evaluation that failed instead of the attack.
Differs: every sign is a record with its number, and all of them give one verdict, for robust
       accuracy and for the highest confidence around an image alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from counterlens.ball import mix
from counterlens.search.apgd_l1 import climbing
from counterlens.search.ensemble.probes import (
    Flag,
    FlagStatus,
    grade,
    masking,
    misclassified,
    randomness,
)
from counterlens.search.ensemble.protocols import SCORES
from counterlens.search.ensemble.state import CLEAN, AttackState
from counterlens.search.fast.cuda_graph import Replay
from counterlens.search.fast.engine import Engine
from counterlens.search.rule import RuleState

TrustVerdict = Literal["trusted", "weak", "do not quote"]

PROBED, FAR_STEPS = 48, 50  # points evaluated by the probes, steps of the far attack
FEW_PROBED, FEW_FAR_STEPS = 16, 20  # the same after a budget has ended
LONGER = 200  # steps of the attack that tests whether more steps help
SEED = 999  # stream of the probes
NO_GRADIENTS = Flag(
    "gradients", "bad", None, "the model has no gradients: attacks that need them could not be run"
)


@dataclass(frozen=True)
class Trust:
    """All signs and what they add up to."""

    verdict: TrustVerdict
    reasons: tuple[str, ...]
    flags: tuple[Flag, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a Number's `trust`."""
        return {
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "flags": [flag.to_json() for flag in self.flags],
        }


def weigh(flags: Sequence[Flag]) -> Trust:
    """One bad sign forbids quoting, one weak sign weakens."""
    bad = [flag.detail for flag in flags if flag.status == "bad"]
    weak = [flag.detail for flag in flags if flag.status == "weak"]
    verdict: TrustVerdict = "do not quote" if bad else "weak" if weak else "trusted"
    return Trust(verdict, tuple(bad + weak), tuple(flags))


def examine(
    engine: Engine,
    attack: AttackState,
    *,
    lacking: Sequence[str],
    complete: bool,
    probes: bool,
) -> Trust:
    """Judge a robust accuracy by the record of its attack and by a few probes.

    Where the budget ended first the attack is judged by fewer probes, those of masked gradients:
    16 points, about 1,000 evaluations in all, whatever the budget was.

    Args:
        lacking: stages of `standard` that this attack has not, or has with fewer steps.
    """
    flags = [_complete(complete, attack), _ensemble(lacking), _transfer(attack)]
    flags.append(_black_box(attack) if engine.differentiable else NO_GRADIENTS)
    after: list[Flag] = []
    if probes:
        right = np.flatnonzero([name != CLEAN for name in attack.broken_by])
        flags += _probe(engine, attack, right, complete)
        holding = spread(np.flatnonzero(attack.robust), PROBED)
        if complete and len(holding) and engine.differentiable:
            after = [_longer(engine, attack, holding)]
    elif complete:  # else the bounds show it already
        flags.append(Flag("probes", "weak", None, "the probes that judge it were not run"))
    flags += [_switch(attack, lacking, [*flags, *after]), *after, _finite(engine, attack)]
    return weigh(flags)


def examine_extremes(
    engine: Engine, attack: AttackState, *, lacking: Sequence[str], complete: bool, probes: bool
) -> Trust:
    """Judge extreme scores in the same way."""
    flags = [_complete(complete, attack, "; the true worst case is worse")]
    flags.append(_raised_blindly(attack) if engine.differentiable else NO_GRADIENTS)
    flags.append(_ensemble(lacking))
    if probes:
        flags += _probe(engine, attack, np.arange(len(attack)), complete)
    elif complete:
        flags.append(Flag("probes", "weak", None, "the probes that judge it were not run"))
    return weigh([*flags, _finite(engine, attack)])


def spread(rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Some of these rows, evenly from first to last: sorted sets have each class in one run."""
    if len(rows) <= most:
        return rows
    chosen: NDArray[np.int64] = rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)]
    return chosen


def _probe(
    engine: Engine, attack: AttackState, rows: NDArray[np.int64], complete: bool
) -> list[Flag]:
    """The probes that always run."""
    points, steps = (PROBED, FAR_STEPS) if complete else (FEW_PROBED, FEW_FAR_STEPS)
    some, _ = attack.take(spread(np.arange(len(attack)), points), engine.device)
    flags = [randomness(engine, some)]
    chosen = spread(rows, points)
    if len(chosen) and engine.differentiable:
        x, y = attack.take(chosen, engine.device)
        seeds = mix(attack.seeds[torch.from_numpy(chosen)], SEED).to(engine.device)
        flags += masking(engine, attack.ball, x, y, seeds, far_steps=steps)
    return flags


def _complete(complete: bool, attack: AttackState, consequence: str = "") -> Flag:
    if complete:
        return Flag("complete", "ok", 1.0, "every stage ran to its end")
    share = float(attack.finished.mean())
    detail = consequence or f": {share:.0%} of the points are settled"
    return Flag("complete", "weak", share, f"the budget ended first{detail}")


def _ensemble(lacking: Sequence[str]) -> Flag:
    if not lacking:
        return Flag("ensemble", "ok", 0.0, "all attacks of version standard, or more")
    detail = f"weaker than version standard ({', '.join(lacking)}): an upper bound"
    return Flag("ensemble", "weak", float(len(lacking)), f"{detail}; quote version standard")


def _finite(engine: Engine, attack: AttackState) -> Flag:
    """Whether logits and gradients were numbers; half precision alone may overflow."""
    odd = sum(tally["odd"] for tally in attack.tallies)
    if engine.counts.odd or (odd and engine.precision == "float32"):
        bad = odd + engine.counts.odd
        detail = f"{bad} evaluations gave logits or gradients that are no numbers"
        return Flag("finite", "bad", float(bad), detail)
    if odd:
        detail = f"{odd} evaluations overflowed in {engine.precision}: search in float32"
        return Flag("finite", "weak", float(odd), detail)
    return Flag("finite", "ok", 0.0, "all logits and gradients were numbers")


def _broken(attack: AttackState, *stages: str) -> int:
    return sum(name in stages for name in attack.broken_by)


def _switch(attack: AttackState, lacking: Sequence[str], others: Sequence[Flag]) -> Flag:
    """Whether another loss broke many points that cross-entropy missed.

    That alone is no weakness of the number: it is one only if the attacks that came after the
    switch broke more points, or were not run.
    """
    ran = [tally["stage"] for tally in attack.tallies]
    if "apgd-ce" not in ran or len(ran) < 2:
        return Flag("loss-switch", "skipped", None, "only one loss was tried")
    switched = [name for name in ran if name.startswith("apgd") and name != "apgd-ce"]
    count = _broken(attack, *switched)
    gain = count / len(attack)
    detail = f"switching the loss broke {gain:.1%} of all points that cross-entropy did not"
    if count <= 3 or gain <= 0.1:
        return Flag("loss-switch", "ok", gain, detail)
    later = _broken(attack, *(name for name in ran if name.startswith(("fab", "square"))))
    doubts = [flag for flag in others if flag.status in ("weak", "bad")]
    if lacking or doubts or (later > 1 and later / len(attack) > 0.01):
        return Flag("loss-switch", "weak", gain, detail)
    return Flag("loss-switch", "ok", gain, f"{detail}; what came after it broke {later}")


def _black_box(attack: AttackState) -> Flag:
    """Whether a search without gradients beat those with them."""
    if not any(tally["stage"] == "square" for tally in attack.tallies):
        return Flag("black-box", "skipped", None, "no attack without gradients was run")
    count = _broken(attack, "square")
    gain = count / len(attack)
    status = grade(gain, 0.002, 0.02) if count > 2 else "weak" if gain > 0.03 else "ok"
    detail = f"the attack without gradients broke {count} points that held against gradients"
    return Flag("black-box", status, gain, detail)


def _raised_blindly(attack: AttackState) -> Flag:
    """How much of what the scores gained came from the search without gradients."""
    raised = [(tally["stage"] == "square", tally.get("raised", 0.0)) for tally in attack.tallies]
    if not any(square for square, _ in raised):
        return Flag("black-box", "skipped", None, "no attack without gradients was run")
    blind = sum(gain for square, gain in raised if square)
    share = blind / max(sum(gain for _, gain in raised), 1e-12)
    mean = blind / len(attack)
    status: FlagStatus = grade(share, 0.02, 0.1) if mean > 0.005 else "ok"
    detail = f"{share:.1%} of the rise in confidence came from the attack without gradients"
    return Flag("black-box", status, share, detail)


def _longer(engine: Engine, attack: AttackState, rows: NDArray[np.int64]) -> Flag:
    """Whether more steps from another start would break more."""
    x, y = attack.take(rows, engine.device)
    rule = climbing(attack.ball.norm, LONGER)
    seeds = mix(attack.seeds[torch.from_numpy(rows)], SEED).to(engine.device)

    def step(state: RuleState) -> RuleState:
        evaluation = engine.slope(SCORES["margin"], state["z"], state["y"], state["y"])
        return state | rule.update(state, state["x"], attack.ball, evaluation)

    start = {"x": x, "y": y} | rule.start(x, attack.ball, seeds)
    end = Replay(engine).run(step, start, rule.evaluations)
    count = int(misclassified(engine, end["best"], y).sum())
    detail = f"{LONGER} more steps break {count} of {len(rows)} points that held"
    return _gain("more-steps", count, attack, rows, detail)


def _transfer(attack: AttackState) -> Flag:
    """Whether adversarial images of other models broke points that no other attack broke."""
    ran = [t["stage"] for t in attack.tallies if t["stage"].startswith("transfer-")]
    if not ran:
        return Flag("transfer", "skipped", None, "no other model was given to attack in its place")
    count = _broken(attack, *ran)
    gain = count / len(attack)
    status = grade(gain, 0.002, 0.02) if count > 2 else "weak" if gain > 0.03 else "ok"
    detail = f"images made against {len(ran)} other models broke {count} points that held"
    if status != "ok":
        detail += ": its own gradients are masked"
    return Flag("transfer", status, gain, detail)


def _gain(name: str, count: int, attack: AttackState, rows: NDArray[np.int64], detail: str) -> Flag:
    gain = count / len(rows) * float(attack.robust.mean())
    status = grade(gain, 0.01, 0.05) if count > 1 else "ok"
    return Flag(name, status, gain, detail)
