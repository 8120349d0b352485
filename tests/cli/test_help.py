"""`--help`: quick, and short or in groups. Oracle: the clock of the processor and the text."""

import os
import subprocess
import sys

import pytest

MOST = 0.5
SCREEN = 40


def asked(*words: str) -> tuple[str, float]:
    """What a command prints and its processor time in seconds, the better of two."""
    times = []
    for _ in range(2):
        child = subprocess.Popen(
            [sys.executable, "-m", "counterlens", *words],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "100"},
        )
        assert child.stdout is not None
        text = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        child.stdout.close()
        assert child.returncode == 0
        times.append(used.ru_utime + used.ru_stime)
    return text, min(times)


@pytest.mark.parametrize("words", [(), ("audit",), ("explain", "diffusion")])
def test_help_takes_at_most_half_a_second(words: tuple[str, ...]) -> None:
    text, seconds = asked(*words, "--help")
    assert seconds <= MOST
    lines = text.splitlines()
    groups = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert len(lines) <= SCREEN or len(groups) > 2
    assert "counterlens " + " ".join(words) in text
