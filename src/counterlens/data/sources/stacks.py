"""`stack:FILE`: every page of a TIFF file, or every frame of a DICOM file, as a picture.

Labels stand in `FILE.labels.txt`, one a line in the order of the pages; an empty line is unknown.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from counterlens.data.sets import fingerprint
from counterlens.data.sources.items import numbered_labels
from counterlens.data.sources.pixels import as_pixels
from counterlens.dicom import dicom_frames, is_dicom, tiff_page, tiff_pages
from counterlens.errors import InputError
from counterlens.images import ImageSet, Pixels
from counterlens.runs import file_bytes, plain_file


@dataclass(frozen=True)
class ReadTiff:
    """Page i of a TIFF file; nothing else of it is read."""

    path: Path

    def __call__(self, i: int) -> Pixels:
        return as_pixels(tiff_page(self.path, i), f"page {i} of {self.path}")


@dataclass(frozen=True)
class ReadFrames:
    """Frame i of a DICOM file."""

    frames: np.ndarray

    def __call__(self, i: int) -> Pixels:
        return np.array(self.frames[i])


def open_stack(text: str, *, name: str) -> ImageSet:
    """The pages of one file as a set."""
    path = Path(text)
    if not path.is_file():
        raise InputError(f"{path} does not exist, expected stack:FILE.tif or stack:FILE.dcm.")
    with path.open("rb") as file:
        head = file.read(256)
    read: ReadTiff | ReadFrames
    if is_dicom(head):
        frames = dicom_frames(file_bytes(path, what="picture"), str(path))
        read, count = ReadFrames(frames), len(frames)
    else:
        read, count = ReadTiff(path), tiff_pages(path)
    given = _labels(path, count)
    labels, classes = numbered_labels(given, None, name)
    size = plain_file(path, what="picture").st_size
    return ImageSet(
        name=name,
        ids=[f"{path.name}#{i}" for i in range(count)],
        labels=labels,
        classes=classes,
        read=read,
        fingerprint=fingerprint([f"{path.name}\t{size}\t{count}", *map(str, given)]),
    )


def _labels(path: Path, count: int) -> list[int | str | None]:
    beside = path.with_name(path.name + ".labels.txt")
    if not beside.is_file():
        return [None] * count
    lines = beside.read_text(encoding="utf-8").splitlines()
    if len(lines) != count:
        raise InputError(
            f"{beside} has {len(lines)} lines, but {path.name} has {count} pages. Write one label "
            "a line, in the order of the pages."
        )
    return [line.strip() or None for line in lines]
