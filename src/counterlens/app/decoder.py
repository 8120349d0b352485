"""Pictures read by child processes, so that the server stays small and a bad file harms nothing."""

import json
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from counterlens.errors import InputError

WORKERS = 2
PATIENCE = 30.0
"""Seconds that one picture may take, libraries included."""


@dataclass(frozen=True)
class Decoder:
    """A few child processes that are started when first needed and replaced when they die."""

    workers: int = WORKERS
    patience: float = PATIENCE
    idle: "queue.LifoQueue[subprocess.Popen[bytes] | None]" = field(
        default_factory=queue.LifoQueue, repr=False
    )
    started: "list[subprocess.Popen[bytes]]" = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        for _ in range(self.workers):
            self.idle.put(None)

    def warm(self) -> None:
        """Start all processes in the background, so that the first picture need not wait."""
        for _ in range(self.workers):
            threading.Thread(target=self._warm_one, daemon=True).start()

    def _warm_one(self) -> None:
        try:
            self.ask({"want": "ready"})
        except InputError:
            return

    def thumbnail(self, path: Path, side: int) -> bytes:
        """A small JPEG of a picture file; a picture that is small already as PNG."""
        return self.ask({"want": "picture", "path": str(path), "side": side})

    def of_set(self, spec: str, item: str, side: int = 0) -> bytes:
        """A picture of a data set; spec empty: `item` is a file."""
        where = {"spec": spec, "item": item} if spec else {"path": item}
        return self.ask({"want": "picture", **where, "side": side})

    def check(self, path: Path, name: str) -> str:
        """The usual ending of a picture file; what is no whole picture is refused by `name`."""
        return self.ask({"want": "check", "path": str(path), "name": name}).decode()

    def ask(self, request: dict[str, Any]) -> bytes:
        """Send a request to a free process and wait for its answer."""
        process = self.idle.get()
        if process is None or process.poll() is not None:
            process = _start()
            self.started.append(process)
        timer = threading.Timer(self.patience, process.kill)
        timer.start()
        try:
            return _exchange(process, request)
        except (OSError, ValueError):
            process.kill()
            raise InputError("The picture could not be read: its reader ended.") from None
        finally:
            timer.cancel()
            self.idle.put(process)

    def close(self) -> None:
        """End all processes."""
        while self.started:
            process = self.started.pop()
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()


def _start() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "counterlens.app.decoding"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in the terminal is for the server
    )


def _exchange(process: "subprocess.Popen[bytes]", request: dict[str, Any]) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    head = json.loads(process.stdout.readline() or b"null")
    if head is None:
        raise OSError("the process ended")
    if "error" in head:
        raise InputError(head["error"])
    data = process.stdout.read(head["size"])
    if len(data) != head["size"]:
        raise OSError("the process ended")
    return data
