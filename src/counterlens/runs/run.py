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
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from counterlens.errors import InputError, RunExists
from counterlens.runs.files import json_line, read_json, write_json, write_text
from counterlens.runs.number import Number
from counterlens.version import __version__

KINDS = ("tables", "logits", "images", "state")
_BEFORE = ("run.json", "matching.jsonl", "doctor.jsonl")  # written before anything is measured
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

        With `resume`, an unfinished run of the same command and settings is continued.
        """
        run = cls(Path(folder))
        _latest[:] = [run]
        wanted = json.loads(json.dumps(dict(settings), default=str))
        if (run.folder / "run.json").exists():
            run._allow(command, wanted, resume)
            return run
        if run.folder.exists() and any(run.folder.iterdir()):
            raise RunExists(f"{run.folder} is not empty and holds no run. Choose another --out.")
        run.folder.mkdir(parents=True, exist_ok=True)
        manifest = {
            "schema": 1,
            "command": command,
            "name": run.folder.name,
            "argv": [Path(sys.argv[0]).name, *sys.argv[1:]],
            "settings": wanted,
            "started": _now(),
            "versions": versions(),
        }
        write_json(run.folder / "run.json", manifest)
        _made[:] = [run]
        return run

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """Open a run that exists."""
        folder = Path(folder)
        if not (folder / "run.json").is_file():
            raise InputError(f"{folder} is no run folder: it has no run.json.")
        return cls(folder)

    def _allow(self, command: str, settings: Mapping[str, object], resume: bool) -> None:
        if self.done:
            raise RunExists(f"{self.folder} holds a finished run. Choose another --out.")
        if not resume:
            raise RunExists(f"{self.folder} holds an unfinished run. Add --resume to continue it.")
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
                "Repeat the first command with --resume, or choose another --out."
            )

    @property
    def manifest(self) -> dict[str, Any]:
        """What run.json says."""
        manifest: dict[str, Any] = read_json(self.folder / "run.json")
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
        path = self.folder / "result.json"
        if path.exists():
            result: dict[str, Any] = read_json(path)
            return result
        return {"schema": 1, "run": self.folder.name, "numbers": {}}

    @property
    def numbers(self) -> dict[str, Number]:
        """All numbers of the run."""
        return {k: Number.from_json(v) for k, v in self._result()["numbers"].items()}

    def path(self, kind: str, name: str) -> Path:
        """Where a table, an image, logits or state of this name belongs."""
        if kind not in KINDS:
            raise InputError(f"a run keeps {', '.join(KINDS)}, not {kind!r}.")
        path = self.folder / kind / name
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
        path = self.folder / "tables" / f"{name}.jsonl"
        if not path.exists():
            return []
        # Not splitlines(): it also cuts at U+2028 and its kin, which JSON strings may hold.
        lines = path.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines if line]

    def tables(self) -> list[str]:
        """Names of the tables this run has."""
        return sorted(p.stem for p in (self.folder / "tables").glob("*.jsonl"))

    def finish(self) -> None:
        """Drop the resume state and write DONE: the last act of a workflow."""
        self.note(finished=_now())
        shutil.rmtree(self.folder / "state", ignore_errors=True)
        write_text(self.folder / "DONE", _now() + "\n")


_latest: list[Run] = []
_made: list[Run] = []  # created by this process, not continued


def latest() -> Run | None:
    """The run this process wrote to last: where a crash leaves its traceback."""
    return _latest[-1] if _latest else None


def discard_unstarted() -> None:
    """Remove the run that this process created, if it has found nothing yet: input was bad."""
    while _made:
        folder = _made.pop().folder
        if any(file.is_file() and file.name not in _BEFORE for file in folder.rglob("*")):
            continue
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # runs/, where it was the first
            folder.parent.rmdir()


def new_folder(command: str, name: str, *, root: Path = Path("runs")) -> Path:
    """A folder for a new run: runs/<utc>-<command>-<name>, free at the time of asking."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    slug = re.sub(r"[^\w.\-]+", "-", name).strip("-.")[:60] or "run"
    folder = root / f"{stamp}-{command}-{slug}"
    count = 2
    while folder.exists():
        folder = root / f"{stamp}-{command}-{slug}-{count}"
        count += 1
    return folder


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries a number can depend on."""
    found = {"python": platform.python_version(), "counterlens": __version__}
    for library in _LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
