"""The command line in process: arguments in, exit code and both streams out."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Said:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """Last line of standard output: the run folder."""
        return self.out.strip().splitlines()[-1]

    @property
    def lines(self) -> list[str]:
        """Standard error, line by line."""
        return self.err.strip().splitlines()


class Command:
    """`counterlens ARGUMENTS`, run from an empty folder."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str], at: Path):
        self.patch, self.capture, self.at = patch, capture, at
        patch.chdir(at)
        patch.setenv("COUNTERLENS_PROGRESS", "off")  # what is printed must not depend on the clock

    def __call__(self, *arguments: str) -> Said:
        from counterlens.cli import main

        self.patch.setattr(sys, "argv", ["counterlens", *arguments])
        self.capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        streams = self.capture.readouterr()
        return Said(int(ended.value.code or 0), streams.out, streams.err)

    def left_behind(self) -> list[str]:
        """Everything the command left in its folder."""
        return sorted(str(p.relative_to(self.at)) for p in self.at.rglob("*"))
