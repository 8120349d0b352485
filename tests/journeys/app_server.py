"""The app as a child process, as a user starts it, and a browser that opened its address."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Started:
    """A running app.

    Attributes:
        address: with the token, as the terminal shows it.
    """

    process: "subprocess.Popen[str]"
    address: str

    @property
    def base(self) -> str:
        """Scheme, host and port."""
        return self.address.partition("/?")[0]

    @property
    def port(self) -> int:
        """Port that it listens on."""
        return int(self.base.rpartition(":")[2])

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()


@contextmanager
def started(runs: Path, *options: str, port: int = 0) -> Iterator[Started]:
    """`counterlens app RUNS`, ended when the block ends."""
    words = [sys.executable, "-m", "counterlens", "app", str(runs), "--no-browser"]
    process = subprocess.Popen(
        [*words, "--port", str(port), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield Started(process, process.stdout.readline().strip())
    finally:
        process.terminate()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def chromium(play: Any, pytest: Any) -> Any:
    """Chromium of this machine; skips where there is none, fails where it is required."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        if os.environ.get("COUNTERLENS_BROWSER") == "required":
            pytest.fail("Chromium is required here and was not found; set CHROMIUM to its path")
        pytest.skip("Chromium absent: install it or set CHROMIUM to its path")
    return play.chromium.launch(executable_path=path, args=["--no-sandbox"])
