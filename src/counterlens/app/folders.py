"""Which files the app may open: runs below one folder, and folders named when it was started.

Every name comes from a browser or from a run folder that may be anyone's, so each is resolved,
links included, and refused where it leads outside.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterlens.errors import CounterlensError, InputError
from counterlens.runs import Run, inside

STATE = ".counterlens-app"
"""Folder beside the runs where the app keeps uploads, jobs and thumbnails."""
_DEPTH = 3
_PICTURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}


class NotFound(InputError):
    """What an address names is not there."""


@dataclass(frozen=True)
class Folders:
    """The folders the app was given.

    Args:
        root: the folder of runs.
        only: name of the one run that is shown with what lies in it; empty: all.
        pictures: further folders whose pictures may be opened.
        references: a folder per class; None: no reference images.
    """

    root: Path
    only: str = ""
    pictures: tuple[Path, ...] = ()
    references: Path | None = None

    @classmethod
    def open(
        cls, runs: Path, pictures: tuple[Path, ...] = (), references: Path | None = None
    ) -> "Folders":
        """The folders as they are given on the command line; a run may stand for its folder."""
        for folder in (*pictures, *([references] if references else [])):
            if not folder.is_dir():
                raise InputError(f"{folder} is no folder of pictures.")
        whole = Path(os.path.realpath(runs))
        if whole.exists() and not whole.is_dir():
            raise InputError(f"{runs} is a file, expected a folder of runs.")
        resolved = tuple(Path(os.path.realpath(folder)) for folder in pictures)
        known = Path(os.path.realpath(references)) if references else None
        if (whole / "run.json").is_file():
            return cls(whole.parent, whole.name, resolved, known)
        return cls(whole, "", resolved, known)

    @property
    def state(self) -> Path:
        """Where the app keeps its own files."""
        return self.root / STATE

    @property
    def new_runs(self) -> Path:
        """Where runs that the app starts are written."""
        return self.root / f"{self.only}.explained" if self.only else self.root

    def run(self, name: str) -> Run:
        """A run by its path below the root."""
        folder = self._folder(name)
        if not (folder / "run.json").is_file():
            raise NotFound(f"There is no run {name!r} here.")
        return Run.open(folder)

    def _folder(self, name: str) -> Path:
        parts = Path(name).parts
        hidden = any(part.startswith(".") for part in parts)
        shown = not self.only or (parts and parts[0] in (self.only, f"{self.only}.explained"))
        if not name or hidden or not shown or Path(name).is_absolute():
            raise NotFound(f"There is no run {name!r} here.")
        try:
            return inside(self.root, name)
        except InputError:
            raise NotFound(f"There is no run {name!r} here.") from None

    def names(self) -> list[str]:
        """Names of all runs, newest first; runs inside a run follow it."""
        folders = sorted(_runs_below(self.root, self.root, _DEPTH))
        folders.sort(key=lambda name: name.partition("/")[0], reverse=True)
        return [name for name in folders if self._shown(name)]

    def _shown(self, name: str) -> bool:
        try:
            self._folder(name)
        except InputError:
            return False
        return True

    def picture(self, run: Run, name: str) -> Path:
        """A picture file of a run."""
        try:
            path = run.file(name)
        except InputError:
            raise NotFound(f"There is no picture {name!r} in this run.") from None
        if not path.is_file():
            raise NotFound(f"There is no picture {name!r} in this run.")
        return path

    def source(self, spec: object, item: str) -> tuple[str, str] | None:
        """How the decoder can read picture `item` of a data set that a run names, if it may.

        Shipped samples may be read; a folder only where it lies in one that the app was given.
        """
        if not isinstance(spec, str):
            return None
        if spec.startswith("sample:") and "#" not in spec and "," not in spec:
            return (spec, item)
        try:
            folder = Path(os.path.realpath(spec))
            if folder.is_dir() and any(folder.is_relative_to(one) for one in self.pictures):
                path = inside(folder, item)
                return ("", str(path)) if path.is_file() else None
        except (InputError, OSError, ValueError):
            return None
        return None

    def upload(self, name: str) -> Path:
        """A picture that was uploaded before, by the name the app gave it."""
        try:
            path = inside(self.state / "uploads", name)
        except InputError:
            raise NotFound(f"There is no upload {name!r}.") from None
        if not name or not path.is_file():
            raise NotFound(f"There is no upload {name!r}.")
        return path

    def reference_images(self, name: str, most: int = 8) -> list[str]:
        """File names of some reference images of a class, of those that lie in its folder."""
        folder = self._reference_folder(name)
        if folder is None:
            return []
        files = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
        return [one for one in files if _is_inside(folder, one)][:most]

    def reference(self, name: str, file: str) -> Path:
        """One reference image."""
        folder = self._reference_folder(name)
        if folder is None or not file or not _is_inside(folder, file):
            raise NotFound(f"There is no reference image {file!r} of {name!r}.")
        return folder / file

    def _reference_folder(self, name: str) -> Path | None:
        if self.references is None or not name or Path(name).name != name:
            return None
        folder = self.references / name
        return folder if _is_inside(self.references, name) and folder.is_dir() else None


def describe(folders: Folders, name: str) -> dict[str, Any]:
    """One line of the list of runs; a damaged run says what is wrong with it."""
    try:
        run = folders.run(name)
        manifest = run.manifest
        numbers = run.numbers
    except (CounterlensError, OSError) as error:
        return {"name": name, "damaged": str(error)}
    model = manifest.get("model") or manifest["settings"].get("model") or ""
    data = manifest.get("data") or manifest["settings"].get("data") or ""
    return {
        "name": name,
        "damaged": "",
        "command": str(manifest["command"]),
        "model": model if isinstance(model, str) else str(model.get("name", ""))
        if isinstance(model, dict) else "",
        "data": data if isinstance(data, str) else "",
        "started": str(manifest.get("started", "")),
        "done": run.done,
        "error": str(manifest.get("error", "")),
        "numbers": numbers,
    }  # fmt: skip


def picture_type(data: bytes) -> str:
    """The content type of an encoded picture that browsers show; empty for anything else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _PICTURES.items() if data.startswith(start)), "")


def _is_inside(folder: Path, name: str) -> bool:
    try:
        return inside(folder, name).exists()
    except (InputError, OSError, ValueError):
        return False


def _runs_below(folder: Path, root: Path, depth: int) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(".") or not entry.is_dir():
            continue
        path = Path(entry.path)
        if (path / "run.json").is_file():
            yield str(path.relative_to(root))
        if depth > 1 and not entry.is_symlink() and entry.name not in ("images", "tables"):
            yield from _runs_below(path, root, depth - 1)
