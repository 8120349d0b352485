"""Run: a folder with manifest, numbers, tables and images; resumable, never overwritten.

run.json      manifest: command, settings, versions, hashes, seed, device
result.json   {"schema": 1, "run": …, "numbers": {key: Number}}
tables/       *.jsonl, *.parquet
logits/       *.npy
images/       *.png
state/        what a resumed run continues from; removed when done
report.html   the last act of a workflow
DONE          written last of all
"""

import json
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from counterlens.errors import CounterlensError, InputError, RunExists, first_line, nearest
from counterlens.progress import doing
from counterlens.runs.files import (
    inside,
    json_line,
    read_lines,
    read_object,
    short_name,
    write_json,
    write_text,
)
from counterlens.runs.lock import NAME as LOCK
from counterlens.runs.lock import check_present, lock, unlock
from counterlens.runs.number import Number
from counterlens.version import __version__

KINDS = ("tables", "logits", "images", "state")
_BEFORE = (
    LOCK,
    "run.json",
    "matching.jsonl",
    "doctor.jsonl",
)  # written before anything is measured
_LIBRARIES = ("torch", "torchvision", "timm", "numpy", "scikit-learn", "pillow")


@dataclass(frozen=True)
class Run:
    """One run folder. Holds no state of its own: what is true is on disk."""

    folder: Path

    @classmethod
    def create(
        cls, folder: Path, command: str, settings: Mapping[str, object], *, resume: bool = False
    ) -> "Run":
        """Make the folder and its manifest; refuse one that holds another run.

        With `resume`, an unfinished run of the same command and settings is continued. The folder
        stays locked for other processes until `finish`, or until this process ends.
        """
        run = cls(Path(folder))
        wanted = json.loads(json.dumps(dict(settings), default=str))
        if run.done:
            raise RunExists(f"{run.folder} holds a finished run. Choose another: out=FOLDER.")
        if not run._begun and run.folder.exists() and any(run._foreign()):
            raise RunExists(
                f"{run.folder} is not empty and holds no run. Choose another: out=FOLDER."
            )
        run.folder.mkdir(parents=True, exist_ok=True)
        taken = lock(run.folder)
        try:
            run._begin(command, wanted, resume)
        except BaseException:
            if taken:
                unlock(run.folder)
            raise
        _latest[:] = [run]
        doing(f"working on {command}")
        return run

    def _begin(self, command: str, settings: dict[str, Any], resume: bool) -> None:
        """Continue the run that is here, or write the manifest of a new one."""
        if self._begun:
            self._allow(command, settings, resume)
            for part in self.folder.rglob(".*.part"):  # left by a kill: the lock is ours
                part.unlink(missing_ok=True)
            return
        manifest = {
            "schema": 1,
            "command": command,
            "name": self.folder.name,
            "argv": [Path(sys.argv[0]).name, *sys.argv[1:]],
            "settings": settings,
            "started": _now(),
            "versions": versions(),
        }
        write_json(self.folder / "run.json", manifest)
        _created[:] = [self]

    @property
    def _begun(self) -> bool:
        return (self.folder / "run.json").exists()

    def _foreign(self) -> Iterator[Path]:
        """What lies in the folder of a run that has not begun, but for what a kill may leave."""
        if not self.folder.is_dir():
            raise RunExists(f"{self.folder} is a file. Choose another: out=FOLDER.")
        for path in self.folder.iterdir():
            if path.name != LOCK and not path.name.endswith(".part"):
                yield path

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """Open a run that exists."""
        folder = Path(folder)
        try:
            here = (folder / "run.json").is_file()
        except OSError:  # for instance a name that is too long
            here = False
        if not here:
            raise InputError(f"{folder} is not a run folder: it has no run.json.{_beside(folder)}")
        run = cls(folder)
        _ = run.manifest  # refuses a damaged one
        return run

    def _allow(self, command: str, settings: Mapping[str, object], resume: bool) -> None:
        if not resume:
            raise RunExists(f"{self.folder} holds an unfinished run. To continue it: resume=True.")
        before = self.manifest
        changed = [
            k
            for k in sorted(settings.keys() | before["settings"].keys())
            if settings.get(k) != before["settings"].get(k)
        ]
        if before["command"] != command or changed:
            other = ", ".join(changed) or "command"
            raise RunExists(
                f"{self.folder} was started with other settings ({other}). "
                "Go on with the first settings and resume=True, or choose another: out=FOLDER."
            )

    @property
    def manifest(self) -> dict[str, Any]:
        """What run.json says."""
        path = self.file("run.json")
        manifest = read_object(path)
        for key, kind in (("command", str), ("settings", dict)):
            if not isinstance(manifest.get(key), kind):
                raise InputError(f"{path} has no {key} as a run writes it: it was changed or torn.")
        return manifest

    @property
    def done(self) -> bool:
        """Whether the run came to its end."""
        return (self.folder / "DONE").exists()

    def note(self, **facts: object) -> None:
        """Add facts to the manifest: hashes, fingerprints, the doctor's findings."""
        write_json(self.folder / "run.json", {**self.manifest, **facts})

    def add_numbers(self, numbers: Mapping[str, Number]) -> None:
        """Add numbers to result.json; a key written twice keeps the later value."""
        stored = self._result()
        stored["numbers"].update({key: number.to_json() for key, number in numbers.items()})
        write_json(self.folder / "result.json", stored)

    def _result(self) -> dict[str, Any]:
        path = self.file("result.json")
        if not path.exists():
            return {"schema": 1, "run": self.folder.name, "numbers": {}}
        result = read_object(path)
        if not isinstance(result.get("numbers"), dict):
            raise InputError(f"{path} has no numbers as a run writes them: it was changed or torn.")
        return result

    @property
    def numbers(self) -> dict[str, Number]:
        """All numbers of the run."""
        numbers = {}
        for key, row in self._result()["numbers"].items():
            try:
                numbers[key] = Number.from_json(row)
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                raise InputError(
                    f"{self.folder / 'result.json'}: {key} is no number as a run writes it "
                    f"({type(error).__name__}: {first_line(error)})."
                ) from None
        return numbers

    def file(self, name: str | Path) -> Path:
        """A file of this run, by its path inside the folder; one outside it is refused."""
        return inside(self.folder, name)

    def path(self, kind: str, name: str) -> Path:
        """Where a table, an image, logits or state of this name belongs."""
        if kind not in KINDS:
            raise InputError(f"a run keeps {', '.join(KINDS)}, not {kind!r}.")
        path = self.file(Path(kind) / name)
        check_present(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write_table(self, name: str, rows: Iterable[Mapping[str, object]]) -> Path:
        """Write tables/NAME.jsonl, one JSON object a line."""
        path = self.path("tables", f"{name}.jsonl")
        lines = [json_line(row) for row in rows]
        write_text(path, "".join(line + "\n" for line in lines))
        return path

    def table(self, name: str) -> list[dict[str, Any]]:
        """Read tables/NAME.jsonl; an absent table is empty."""
        path = self.file(f"tables/{name}.jsonl")
        return [row for _, row in read_lines(path)] if path.exists() else []

    def tables(self) -> list[str]:
        """Names of the tables this run has."""
        return sorted(p.stem for p in (self.folder / "tables").glob("*.jsonl"))

    def finish(self) -> None:
        """Drop the resume state and write DONE: the last act of a workflow."""
        self.note(finished=_now())
        shutil.rmtree(self.folder / "state", ignore_errors=True)
        write_text(self.folder / "DONE", _now() + "\n")
        unlock(self.folder)


_latest: list[Run] = []
_created: list[Run] = []  # created by this process, not continued


def latest() -> Run | None:
    """The run this process wrote to last: where a crash leaves its traceback."""
    return _latest[-1] if _latest else None


def how_to_resume() -> str:
    """What an interrupted command says of the run it wrote to."""
    run = latest()
    if run is None or not run.folder.is_dir() or run.done:
        return "no run was under way, so there is nothing to resume."
    return (
        f"the work so far is in {run.folder}. To go on, repeat the command with "
        f"--out {run.folder} --resume."
    )


def discard_unstarted() -> None:
    """Remove the run that this process created, if it has found nothing yet: input was bad."""
    while _created:
        folder = _created.pop().folder
        if any(file.is_file() and file.name not in _BEFORE for file in folder.rglob("*")):
            continue
        unlock(folder)
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # runs/, where it was the first
            folder.parent.rmdir()


@contextmanager
def reading(*runs: Run) -> Iterator[None]:
    """Inside, what malformed tables of finished runs make a reader raise is one line.

    For commands that only read runs, which may come from anyone: report, compare, review, freeze.
    """
    try:
        yield
    except CounterlensError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        folders = ", ".join(str(run.folder) for run in runs)
        raise InputError(
            f"{folders} cannot be used: its files do not hold what a run writes "
            f"({type(error).__name__}: {first_line(error)}). It was damaged or changed, or another "
            "version of counterlens wrote it."
        ) from error


def new_folder(command: str, name: str, *, root: Path = Path("runs")) -> Path:
    """A folder for a new run: runs/<utc>-<command>-<name>, free at the time of asking."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    slug = re.sub(r"[^\w.\-]+", "-", name).strip("-.")[:60] or "run"
    slug = short_name(slug)
    folder = root / f"{stamp}-{command}-{slug}"
    count = 2
    while folder.exists():
        folder = root / f"{stamp}-{command}-{slug}-{count}"
        count += 1
    return folder


def _beside(folder: Path) -> str:
    """Where a run may be, when one is not there: the nearest name beside it, else the latest."""
    try:
        runs = sorted(p.parent.name for p in folder.parent.glob("*/run.json"))
    except OSError:
        runs = []
    if folder.exists() or not runs:
        return ""
    near = nearest(folder.name, runs)
    if near:
        return f" Did you mean {folder.parent / near}?"
    return f" The latest there: {folder.parent / runs[-1]}."


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries a number can depend on."""
    libraries = {"python": platform.python_version(), "counterlens": __version__}
    for library in _LIBRARIES:
        try:
            libraries[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return libraries


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
