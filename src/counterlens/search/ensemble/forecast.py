"""How long an attack will take, from the work it has done and the work it has planned.

Work is counted in forward passes, a backward pass as two. Points break on the way and leave, so
the answer is a range: all that hold now may go through every stage, or half of them.
"""

from collections.abc import Sequence

import numpy as np

from counterlens.search.ensemble.stage import RunningBatch, SearchStage
from counterlens.search.ensemble.state import AttackState
from counterlens.search.fast.engine import PassCounts

Range = tuple[float, float]


def work_done(counts: PassCounts) -> int:
    """Forward passes so far."""
    return counts.forwards + 2 * counts.backwards


def work_left(
    stages: Sequence[SearchStage], at: int, attack: AttackState, running: RunningBatch
) -> Range:
    """Forward passes that remain, at least and at most."""
    stage, queue = stages[at], running.queue
    begun = queue[: min(running.position, len(queue))]
    breaks = stage.judge is None
    held = float(attack.robust[begun].mean()) if breaks and len(begun) else 1.0
    each, classes = stage.rule.evaluations, attack.targets.shape[1] + 1
    waiting = max(len(queue) * stage.variants - running.position, 0)
    unfinished = float((each - running.num_evaluations).sum())
    later = sum(s.variants * s.rule.evaluations * _passes(s, classes) for s in stages[at + 1 :])
    points = held * len(queue)
    high = (unfinished + waiting * each) * _passes(stage, classes) + points * later
    if not breaks:
        return high, high
    low = (unfinished + waiting * each * held) * _passes(stage, classes) + points * later
    return low / 2, high


def _passes(stage: SearchStage, classes: int) -> int:
    """Forward passes that one evaluation is worth."""
    if stage.score is None:
        return 1 + 2 * classes
    return 3 if stage.slope else 1


def seconds_left(done: int, elapsed: float, left: Range) -> Range | None:
    """The same in seconds, at the pace so far; None while nothing was done.

    >>> seconds_left(100, 2.0, (50, 200))
    (1.0, 4.0)
    """
    if done <= 0 or elapsed <= 0 or not np.isfinite(left[1]):
        return None
    return left[0] * elapsed / done, left[1] * elapsed / done


def in_words(left: Range) -> str:
    """A range of seconds as text.

    >>> in_words((95, 240)), in_words((4000, 9000)), in_words((20, 50))
    ('2 to 4 min', '1.1 to 2.5 h', '20 to 50 s')
    """
    low, high = left
    if high < 90:
        return f"{low:.0f} to {high:.0f} s"
    if high < 5400:
        return f"{low / 60:.0f} to {high / 60:.0f} min"
    return f"{low / 3600:.1f} to {high / 3600:.1f} h"
