"""race(): time several ways of doing the same thing, in turn, round after round.

A busy machine then slows all arms alike; a result whose rounds disagree says so itself.
"""

import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Lap(NamedTuple):
    """Seconds by the clock and seconds of computation."""

    wall: float
    cpu: float


NOISY = 1.25  # upper over lower end of the interval above which a ratio is not to be quoted


def race(rounds: int = 5, **arms: Callable[[], object]) -> dict[str, list[Lap]]:
    """Laps of each arm, one per round; one untimed round warms up."""
    laps: dict[str, list[Lap]] = {name: [] for name in arms}
    for turn in range(rounds + 1):
        names = list(arms) if turn % 2 else list(arms)[::-1]  # nobody always runs second
        for name in names:
            started, cpu = time.perf_counter(), _cpu()
            arms[name]()
            if turn:
                laps[name].append(Lap(time.perf_counter() - started, _cpu() - cpu))
    return laps


def _cpu() -> float:
    return sum(os.times()[:4])  # user and system, of this process and of workers that ended


def ratio(laps: dict[str, list[Lap]], first: str, second: str) -> dict[str, float | str]:
    """How fast `first` is next to `second`: the median over rounds of the ratio of throughputs.

    `low` and `high` bound the median with 95 % confidence, by order statistics (the whole range
    below six rounds); `least` and `most` are the outermost rounds. `cpu` is the same ratio in
    seconds of computation, which a busy machine disturbs less.
    """
    pairs = list(zip(laps[first], laps[second], strict=True))
    ratios = sorted(b.wall / a.wall for a, b in pairs)
    work = sorted(b.cpu / a.cpu for a, b in pairs)
    cut = _cut(len(ratios))
    low, high = ratios[cut], ratios[-1 - cut]
    return {
        "ratio": statistics.median(ratios),
        "low": low,
        "high": high,
        "least": ratios[0],
        "most": ratios[-1],
        "rounds": len(ratios),
        "cpu": statistics.median(work),
        "cpu_low": work[cut],
        "cpu_high": work[-1 - cut],
        "verdict": "" if high / low < NOISY else "NOISY, do not quote",
    }


def _cut(rounds: int) -> int:
    """How many rounds on each side lie outside a 95 % interval of the median.

    >>> [_cut(n) for n in (5, 6, 11, 31)]
    [0, 0, 1, 9]
    """
    below, cut = 0.5**rounds, 0
    while below + math.comb(rounds, cut + 1) * 0.5**rounds <= 0.025:
        cut += 1
        below += math.comb(rounds, cut) * 0.5**rounds
    return cut


def machine() -> dict[str, object]:
    """Where and on what a result was measured."""
    import torch

    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "commit": commit,
    }
