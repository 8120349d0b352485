"""Progress: what is being done, how far it is, and a heartbeat that says so.

Work reports with `doing`, `within` and `steps`, which only store a few values. The command line
runs a `Heartbeat`: whenever nothing was printed for two seconds, it prints what is being done,
for how long, and about how much longer. On a terminal that is one line that is written over;
in a log the lines come more rarely the longer a run lasts.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

CLEAR = "\r\033[2K"
SILENCE = 1.5
"""Seconds without output after which the heartbeat prints."""
LOG_INTERVALS = ((60.0, SILENCE), (600.0, 10.0), (float("inf"), 60.0))
"""In a log: up to this many seconds of a run, a line may follow after this many seconds."""


@dataclass(slots=True)
class Activity:
    """What is being done now.

    Attributes:
        text: in a few words, e.g. "predicting photos".
        started: when, by `time.monotonic`.
        done, total: how many of how many, total 0 where nobody knows.
        inner, inner_total: steps within the next one of these, e.g. of a search.
        left: seconds that it will take, where the work has a better forecast than the clock.
    """

    text: str
    started: float
    done: int = 0
    total: int = 0
    inner: int = 0
    inner_total: int = 0
    left: float | None = None

    @property
    def fraction(self) -> float:
        """How much of it is done, in [0, 1]."""
        part = self.inner / self.inner_total if self.inner_total else 0.0
        return min(1.0, (self.done + part) / max(1, self.total))


@dataclass(frozen=True, slots=True)
class Iterates:
    """The images of a search at its last step.

    Attributes:
        points: the images, a tensor with a row each.
        confidence: in what is searched for, one number per row.
        names: what each row is.
    """

    points: Any
    confidence: Any
    names: Sequence[str]


LIVE = "COUNTERLENS_LIVE"
"""Environment variable with the folder to which the command line writes these images."""
_iterates: list[Iterates] = []
_current: list[Activity] = []
"""The activities under way, the innermost last. Empty: nothing to report."""


def doing(text: str, done: int = 0, total: int = 0, *, left: float | None = None) -> None:
    """This is being done now, so far `done` of `total`; replaces what was reported before."""
    if _current and _current[-1].text == text:
        now = _current[-1]
        now.done, now.total, now.left = done, total, left
        now.inner = now.inner_total = 0
    else:
        _current[-1:] = [Activity(text, time.monotonic(), done, total, left=left)]


def idle() -> None:
    """Nothing is being done: the program waits for its user, and the heartbeat stays silent."""
    _current.clear()
    _iterates.clear()


def show_iterates(points: Any, confidence: Any, names: Sequence[str]) -> None:
    """These are the images of the search now; only a reference is held, the last one."""
    _iterates[:] = [Iterates(points, confidence, names)]


def shown() -> Iterates | None:
    """The images of the search under way."""
    return next(iter(_iterates), None)


@contextmanager
def within(text: str) -> Iterator[None]:
    """While the block runs, this is being done; afterwards, what was done before."""
    before = list(_current)
    _current.append(Activity(text, time.monotonic()))
    try:
        yield
    finally:
        _current[:] = before


def steps(items: Iterable[int], total: int) -> Iterator[int]:
    """The same items, each reported as a step of what is being done."""
    for place, item in enumerate(items):
        if _current:
            _current[-1].inner, _current[-1].inner_total = place, total
        yield item
    if _current:
        _current[-1].inner = _current[-1].inner_total = 0


def line(now: Activity, clock: Callable[[], float] = time.monotonic) -> str:
    """An activity in a line: what, how far, how long so far, and about how much longer."""
    seconds = clock() - now.started
    parts = [now.text]
    if now.total:
        parts.append(f"{now.done:,} of {now.total:,} ({now.fraction:.0%})")
    if now.inner_total:
        parts.append(f"step {now.inner:,} of {now.inner_total:,}")
    parts.append(_duration(seconds))
    left = now.left
    if left is None and 0.02 <= now.fraction < 1 and seconds >= 1:
        left = seconds * (1 / now.fraction - 1)
    if left is not None:
        parts.append(f"about {_duration(left)} left")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Heartbeat:
    """Prints a line whenever its stream was silent for too long.

    Use it in place of the stream: it notes when something is written, and clears its own line
    before. `with Heartbeat(sys.stderr) as stream: sys.stderr = stream`.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.stream, self.clock = stream, clock
        self.started = self.written = clock()
        self.screen = stream.isatty()
        self.shown = False
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.pid = os.getpid()

    def __enter__(self) -> "Heartbeat":
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        with self.lock:
            self._clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """What others print: the heartbeat's own line goes first."""
        if os.getpid() != self.pid:  # a forked worker must not wait for a thread it does not have
            return self.stream.write(text)
        with self.lock:
            self._clear()
            self.written = self.clock()
            return self.stream.write(text)

    def beat(self) -> None:
        """Print what is being done if nothing was printed for long enough."""
        now = self.clock()
        if not _current or now - self.written < self._patience(now):
            return
        text = line(_current[-1], self.clock)
        with self.lock:
            if self.screen:
                self.stream.write(f"{CLEAR}{text[: _columns() - 1]}")
                self.shown = True
            else:
                self.written = now
                self.stream.write(f"{text}\n")
            self.stream.flush()

    def _patience(self, now: float) -> float:
        if self.screen:
            return SILENCE
        return next(wait for end, wait in LOG_INTERVALS if now - self.started < end)

    def _clear(self) -> None:
        if self.shown:
            self.shown = False
            self.stream.write(CLEAR)

    def _run(self) -> None:
        while not self.stop.wait(0.25):
            try:
                self.beat()
            except (ValueError, OSError):  # the stream was closed
                return


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80
