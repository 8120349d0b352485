"""A folder of class folders, or a flat folder of pictures without labels.

Classes are the sub-folders in sorted order, as in torchvision's ImageFolder. Pictures may lie
deeper; links are followed. Hidden files and folders are passed over, files that are no pictures
are counted, and both class folders without pictures and pictures beside class folders are left
out and named in the notes.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from counterlens.data.sets import Excluded, file_set, printable
from counterlens.errors import InputError
from counterlens.images import SUFFIXES, ImageSet

NO_PICTURE = "no picture by its name"


def open_folder(
    root: Path, *, name: str, space: str | None = None, excluded: list[Excluded] | None = None
) -> ImageSet:
    """The pictures below a folder; their labels are its sub-folders, where there are any.

    Args:
        excluded: where to put folders and files that cannot be read and files that are no pictures,
            in place of refusing the whole folder.
    """
    if not root.is_dir():
        raise InputError(f"{root} is not a folder, expected one with a sub-folder per class.")
    loose, others, folders = [], 0, []
    for entry in _entries(root, None):
        if _is_folder(entry):
            folders.append(entry.name)
        elif is_picture(entry.name):
            loose.append(entry.name)
        else:
            others += 1
            _put(excluded, entry.name, NO_PICTURE)
    files: list[str] = []
    labels: list[int] = []
    classes: list[str] = []
    empty: list[str] = []
    for folder in folders:
        paths = list(_pictures(root, folder, (), excluded))
        pictures = [f for f in paths if is_picture(f)]
        for other in paths if len(paths) > len(pictures) else ():
            if not is_picture(other):
                _put(excluded, other, NO_PICTURE)
        others += len(paths) - len(pictures)
        if not pictures:
            empty.append(printable(folder))
            continue
        files += pictures
        labels += [len(classes)] * len(pictures)
        classes.append(printable(folder))
    if not files:
        files, labels, loose = loose, [-1] * len(loose), []
    if not files:
        raise InputError(
            f"{root} holds no pictures ({others} other files), expected a sub-folder per class, "
            "e.g. cats/1.jpg, or pictures."
        )
    for picture in loose:
        _put(excluded, picture, "beside the class folders")
    opened = file_set(name, root, files, labels, classes, space=space, excluded=excluded)
    return replace(opened, notes=tuple(_notes(others, empty, loose)))


def is_picture(name: str) -> bool:
    """Whether a file's name says that it is a picture we read."""
    stem, dot, suffix = name.rpartition(".")
    return bool(stem) and dot + suffix.lower() in SUFFIXES


def walk(root: Path, below: str = "") -> list[str]:
    """All pictures below a folder, in sorted order, as paths relative to `root`."""
    return [f for f in _pictures(root, below, (), None) if is_picture(f)]


def _pictures(
    root: Path, below: str, above: tuple[str, ...], excluded: list[Excluded] | None
) -> Iterator[str]:
    real = os.path.realpath(root / below)
    if real in above:  # a link back to a folder that we are in
        _put(excluded, below, "a link back to a folder above it")
        return
    for entry in _entries(root / below, excluded, below):
        path = f"{below}/{entry.name}" if below else entry.name
        if _is_folder(entry):
            yield from _pictures(root, path, (*above, real), excluded)
        else:
            yield path


def _put(excluded: list[Excluded] | None, path: str, why: str) -> None:
    if excluded is not None:
        excluded.append((printable(path), why))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder, or a link to one; a link to itself is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _entries(
    folder: Path, excluded: list[Excluded] | None, below: str = ""
) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            seen = [e for e in entries if not e.name.startswith((".", "__MACOSX"))]
    except OSError as error:
        if excluded is not None:
            _put(excluded, below, f"folder cannot be listed ({error.strerror or error})")
            return []
        raise InputError(f"cannot list folder {folder}: {error.strerror or error}.") from None
    return sorted(seen, key=lambda e: e.name)


def _notes(others: int, empty: list[str], loose: list[str]) -> list[str]:
    notes = []
    if others:
        notes.append(f"{others} files that are no pictures were passed over")
    if empty:
        notes.append(f"{len(empty)} folders without pictures: {', '.join(empty[:10])}")
    if loose:
        notes.append(f"{len(loose)} pictures beside the class folders were left out")
    return notes
