"""`--help`: quick, and short or in groups. Oracle: the clock of the processor and the text."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from counterlens.cli import app

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


def every_command() -> Iterator[tuple[str, ...]]:
    """All commands with their groups, as a user types them."""
    todo = [((), get_command(app))]
    while todo:
        path, one = todo.pop()
        inner = getattr(one, "commands", {})
        todo += [((*path, name), part) for name, part in inner.items() if not part.hidden]
        if not inner:
            yield path


def test_the_help_of_every_command_fits_a_screen_or_is_grouped_and_has_an_example() -> None:
    commands = sorted(every_command())
    assert len(commands) > 40
    for path in commands:
        text = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "100"}).output
        lines = text.splitlines()
        heads = [i for i, line in enumerate(lines) if line.endswith(":") and line[:1].strip()]
        longest = max(b - a for a, b in zip(heads, [*heads[1:], len(lines)], strict=True))
        assert len(lines) <= SCREEN or (len(heads) > 2 and longest <= SCREEN), path
        assert "Example:" in text, path
        assert "counterlens " + " ".join(path) in text.partition("Example:")[2], path
