"""Data sets of the Hugging Face hub: `hf:DATASET#SPLIT`, or `hf:DATASET/CONFIG#SPLIT`.

The only file that knows the `datasets` package. The first column of pictures and the first
column of class labels are taken; code that a data set brings along is never run.
"""

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from counterlens.data.provenance import NAMES
from counterlens.errors import InputError, MissingExtra
from counterlens.images import ImageSet, Pixels, decode, read


@dataclass(frozen=True)
class ReadHub:
    """Picture i of a hub data set; the table stays memory-mapped."""

    table: Any
    column: str
    name: str

    def __call__(self, i: int) -> Pixels:
        cell = self.table[i][self.column]
        if cell.get("bytes"):
            return decode(cell["bytes"], name=f"{self.name}, picture {i}")
        return read(cell["path"])


def open_hub(text: str, *, name: str) -> ImageSet:
    """One split of a data set of the hub, or of a local folder that `datasets` can load."""
    try:
        import datasets
    except ImportError:
        raise MissingExtra(
            f"hf:{text} needs the datasets package. Install it: pip install datasets."
        ) from None
    path, _, part = text.partition("#")
    if _saved(Path(path)):
        return hub_set(_from_disk(datasets, text, path, part), name=name, where=f"hf:{text}")
    if not part:
        raise InputError(f"hf:{text} names no split, expected hf:DATASET#SPLIT, e.g. #test.")
    owner, _, rest = path.partition("/")
    which, _, config = rest.partition("/")
    try:
        table = datasets.load_dataset(
            "/".join(filter(None, (owner, which))), config or None, split=part
        )
    except Exception as error:  # the hub's client raises a zoo of its own
        raise InputError(f"hf:{text} cannot be opened: {_line(error)}") from None
    return hub_set(table, name=name, where=f"hf:{text}")


def _saved(folder: Path) -> bool:
    """Whether a folder was written by `save_to_disk`."""
    return any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))


def _from_disk(datasets: Any, text: str, path: str, part: str) -> Any:
    try:
        stored = datasets.load_from_disk(path)
    except Exception as error:
        raise InputError(f"hf:{text} cannot be opened: {_line(error)}") from None
    if not isinstance(stored, datasets.DatasetDict):
        return stored
    if part not in stored:
        raise InputError(f"hf:{text} names none of its splits, which are {', '.join(stored)}.")
    return stored[part]


def hub_set(table: Any, *, name: str, where: str) -> ImageSet:
    """A table with a column of pictures, and one of labels where known."""
    import datasets

    pictures = [key for key, kind in table.features.items() if isinstance(kind, datasets.Image)]
    if not pictures:
        raise InputError(
            f"{where} has no column of pictures, only {', '.join(table.features)}. Expected one "
            "of type Image."
        )
    labels = [key for key, kind in table.features.items() if isinstance(kind, datasets.ClassLabel)]
    classes = tuple(table.features[labels[0]].names) if labels else ()
    marks = np.asarray(table[labels[0]]) if labels else np.full(len(table), -1)
    raw = table.cast_column(pictures[0], datasets.Image(decode=False))
    facts = hashlib.sha256(f"{table._fingerprint} {where}".encode())
    extra = {key: np.array([v or "" for v in table[key]]) for key in NAMES & set(table.features)}
    return ImageSet(
        name=name,
        ids=[f"{name}/{i}" for i in range(len(table))],
        labels=marks.astype(np.int64),
        classes=classes,
        read=ReadHub(raw.select_columns([pictures[0]]), pictures[0], where),
        extra=extra,
        fingerprint=facts.hexdigest()[:16],
    )


def _line(error: Exception) -> str:
    text = io.StringIO(str(error)).readline().strip()
    return f"{text[:150] or type(error).__name__}."
