"""Explanations under way: the command line as a child process, with progress, ETA and an end.

A job is a folder with job.json (what was asked), stdout, stderr and exit (how it ended), so that it
outlives a reload of the page and a restart of the app. One runs at a time, the others wait.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from counterlens.errors import CounterlensError, InputError
from counterlens.progress import LIVE
from counterlens.runs import read_object, write_json, write_text

State = Literal["waiting", "running", "finished", "failed", "cancelled"]
_SHARE = re.compile(r"\((\d+)%\)")
_STEP = re.compile(r"step ([\d,]+) of ([\d,]+)")
_LEFT = re.compile(r"about (.+?) left")
_GRACE = 10.0  # seconds between being asked to end and being ended
CANCELLED = "cancelled"


@dataclass(frozen=True)
class Job:
    """What was asked.

    Args:
        name: of its folder.
        argv: the command line behind `counterlens`.
        run: path of the run that it writes.
        title: in a few words.
    """

    name: str
    argv: tuple[str, ...]
    run: str
    title: str
    created: str


@dataclass(frozen=True)
class Jobs:
    """All jobs of an app, in the order in which they were asked for."""

    folder: Path
    turn: threading.Lock = field(default_factory=threading.Lock, repr=False)
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict, repr=False)
    closing: threading.Event = field(default_factory=threading.Event, repr=False)
    mine: set[str] = field(default_factory=set, repr=False)

    def start(self, argv: Sequence[str], run: Path, title: str) -> Job:
        """Ask for a command; it starts when those before it have ended."""
        now = datetime.now(UTC)
        name = f"{now:%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"
        job = Job(name, tuple(argv), str(run), title, now.isoformat(timespec="seconds"))
        home = self.folder / name
        home.mkdir(parents=True)
        write_json(home / "job.json", {**job.__dict__, "argv": list(job.argv)})
        self.mine.add(name)
        threading.Thread(target=self._work, args=(job,), daemon=True).start()
        return job

    def _work(self, job: Job) -> None:
        home = self.folder / job.name
        with self.turn:
            if self.closing.is_set() or (home / CANCELLED).exists():
                return
            with (home / "stdout").open("wb") as out, (home / "stderr").open("wb") as err:
                process = subprocess.Popen(
                    [sys.executable, "-m", "counterlens", *job.argv],
                    env={**os.environ, LIVE: str(home)},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,  # it and what it starts end together
                )
                self.processes[job.name] = process
                write_text(home / "pid", str(process.pid))
                code = process.wait()
            write_text(home / "exit", str(code))
            self.processes.pop(job.name, None)

    def get(self, name: str) -> Job:
        """A job by its name."""
        if not re.fullmatch(r"[0-9T]{15}-[0-9a-f]{8}", name):
            raise InputError(f"There is no explanation {name!r}.")
        path = self.folder / name / "job.json"
        if not path.is_file():
            raise InputError(f"There is no explanation {name!r}.")
        stored = read_object(path)
        return Job(**{**stored, "argv": tuple(stored["argv"])})

    def all(self) -> list[Job]:
        """All jobs, newest first."""
        names = sorted((p.parent.name for p in self.folder.glob("*/job.json")), reverse=True)
        out = []
        for name in names[:50]:
            try:
                out.append(self.get(name))
            except (CounterlensError, TypeError, KeyError):
                continue
        return out

    def status(self, job: Job) -> dict[str, Any]:
        """How far a job is: its state, a line of progress, a share, and an error if it failed."""
        home = self.folder / job.name
        state = self._state(job)
        lines = _lines(home / "stderr")
        last = lines[-1] if lines else ""
        error = _error(lines, self._code(job)) if state == "failed" else ""
        done = 1.0 if state == "finished" else share_of(last)
        left = _LEFT.search(last) if state == "running" else None
        return {
            "state": state,
            "line": last if state == "running" else "",
            "share": done,
            "left": left[1] if left else "",
            "error": error,
            "log": "\n".join(lines[-40:]),
            "live": _live(home) if state == "running" else {},
        }

    def cancel(self, job: Job) -> None:
        """End a job: politely, so that its run can be resumed; after a while by force."""
        home = self.folder / job.name
        if self._state(job) not in ("waiting", "running"):
            return
        write_text(home / CANCELLED, "")
        process = self.processes.get(job.name)
        if process is not None:
            _end(process, signal.SIGTERM)
            threading.Thread(target=_end_later, args=(process,), daemon=True).start()

    def close(self) -> None:
        """End everything that runs; the app ends."""
        self.closing.set()
        for process in list(self.processes.values()):
            _end(process, signal.SIGTERM)
        for process in list(self.processes.values()):
            _end_later(process)

    def _code(self, job: Job) -> int | None:
        try:
            return int((self.folder / job.name / "exit").read_text())
        except (OSError, ValueError):
            return None

    def _state(self, job: Job) -> State:
        home = self.folder / job.name
        code = self._code(job)
        if code == 0:
            return "finished"
        if (home / CANCELLED).exists():
            return "cancelled"
        if code is not None:
            return "failed"
        if job.name in self.processes:
            return "running"
        if job.name in self.mine and not self.closing.is_set():
            return "waiting"
        # the app ended before the job did: the run says whether the job came to its end
        if (Path(job.run) / "DONE").is_file():
            return "finished"
        return "running" if _alive(home, job) else "failed"


def share_of(line: str) -> float:
    """How much is done by a line of progress, in [0, 1].

    >>> share_of("counterfactuals, pictures, 1 of 2 (55%), step 3 of 30, 4 s")
    0.55
    >>> share_of("searching, step 3 of 30, 4 s")
    0.1
    """
    share, step = _SHARE.search(line), _STEP.search(line)
    if share:
        return min(1.0, int(share[1]) / 100)
    if step:
        done, total = (int(text.replace(",", "")) for text in step.groups())
        return min(1.0, done / total) if total else 0.0
    return 0.0


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 20_000))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]


def _error(lines: Sequence[str], code: int | None) -> str:
    errors = [line for line in lines if line.startswith("error: ")]
    if errors:
        return errors[-1].removeprefix("error: ")
    if code is None:
        return "The app ended before the explanation did. Ask again."
    if code < 0:
        return (
            f"The process was ended from outside (signal {-code}). Where the machine ran out of "
            "memory, ask for fewer pictures or a smaller method."
        )
    return lines[-1] if lines else f"The process ended with exit code {code}."


def _live(home: Path) -> dict[str, Any]:
    """The images of the search at its last step, each with its name and confidence."""
    try:
        return read_object(home / "live.json")
    except (CounterlensError, OSError):
        return {}


def _alive(home: Path, job: Job) -> bool:
    """Whether a process that an earlier app started still works on this job."""
    try:
        pid = int((home / "pid").read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except (OSError, ValueError):
        return False
    return job.run in words


def _end(process: "subprocess.Popen[bytes]", how: signal.Signals) -> None:
    try:
        os.killpg(process.pid, how)
    except (ProcessLookupError, PermissionError):
        return


def _end_later(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        _end(process, signal.SIGKILL)


__all__ = ["Job", "Jobs", "share_of"]
