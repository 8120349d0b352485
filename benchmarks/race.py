"""race(): time several ways of doing the same thing, in turn, round after round.

A busy machine then slows all arms alike; a result whose rounds disagree says so itself.
"""

import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

NOISY = 1.5  # slowest over fastest round above which a ratio is not to be quoted


def race(rounds: int = 5, **arms: Callable[[], object]) -> dict[str, list[float]]:
    """Seconds of each arm, one entry per round; one untimed round warms up."""
    times: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(rounds + 1):
        names = list(arms) if turn % 2 else list(arms)[::-1]  # nobody always runs second
        for name in names:
            started = time.perf_counter()
            arms[name]()
            if turn:
                times[name].append(time.perf_counter() - started)
    return times


def ratio(times: dict[str, list[float]], first: str, second: str) -> dict[str, float | str]:
    """How fast `first` is next to `second`: throughput ratios round by round, and a verdict."""
    ratios = [b / a for a, b in zip(times[first], times[second], strict=True)]
    low, high = min(ratios), max(ratios)
    return {
        "ratio": statistics.median(ratios),
        "low": low,
        "high": high,
        "best": min(times[second]) / min(times[first]),
        "verdict": "" if high / low < NOISY else "NOISY, do not quote",
    }


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
