"""Logits that a run keeps, so that later questions need no second pass over the images.

logits/NAME.npy    one row per image, under the declared protocol: arg max is the answer
logits/NAME.json   role, ids, labels, temperature
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from counterlens.errors import InputError, first_line
from counterlens.runs.files import atomic, plain_file, read_object, write_json
from counterlens.runs.run import Run

if TYPE_CHECKING:  # NumPy loads only when logits are read or written
    import numpy as np

Role = Literal["in", "ood"]


@dataclass(frozen=True)
class LogitSet:
    """Logits of one set of images.

    Args:
        name: the set's name.
        role: "in" for the data the model is meant for, "ood" for data it should refuse.
        logits: one row per image; its columns are the classes of the declared protocol.
        labels: column of the true class; −1 where there is none.
        ids: the images' ids, in the order of the rows.
        temperature: what the logits are divided by before a confidence is read from them.
    """

    name: str
    role: Role
    logits: "np.ndarray[Any, Any]"
    labels: "np.ndarray[Any, Any]"
    ids: tuple[str, ...]
    temperature: float = 1.0


def store_logits(
    run: Run,
    name: str,
    logits: "np.ndarray[Any, Any]",
    *,
    labels: Sequence[int],
    ids: Sequence[str],
    role: Role = "in",
    temperature: float = 1.0,
) -> None:
    """Store logits with what is needed to use them again."""
    import numpy as np

    rows = np.asarray(logits, dtype=np.float32)
    if rows.ndim != 2 or not len(rows) == len(labels) == len(ids):
        raise InputError(
            f"{name}: logits of shape {rows.shape}, {len(labels)} labels and {len(ids)} ids; "
            "expected one row, one label and one id per image."
        )
    with atomic(run.path("logits", f"{name}.npy")) as part, part.open("wb") as file:
        np.save(file, rows)
    facts = {
        "role": role,
        "temperature": float(temperature),
        "labels": [int(label) for label in labels],
        "ids": [str(i) for i in ids],
    }
    write_json(run.path("logits", f"{name}.json"), facts)


def stored_logits(run: Run) -> dict[str, LogitSet]:
    """All logits a run has kept, by the name of the set; rows stay on disk until read."""
    import numpy as np

    by_name = {}
    for path in sorted((run.folder / "logits").glob("*.json")):
        facts = read_object(run.file(path.relative_to(run.folder)))
        try:
            by_name[path.stem] = LogitSet(
                path.stem,
                facts["role"],
                np.load(_plain(run, f"logits/{path.stem}.npy"), mmap_mode="r"),
                np.asarray(facts["labels"], dtype=np.int64),
                tuple(str(i) for i in facts["ids"]),
                float(facts["temperature"]),
            )
        except (ArithmeticError, LookupError, OSError, TypeError, ValueError) as error:
            raise InputError(
                f"{path.with_suffix('')} holds no logits as a run keeps them "
                f"({type(error).__name__}: {first_line(error)}): it was changed or torn."
            ) from None
        one = by_name[path.stem]
        if one.logits.ndim != 2 or not len(one.logits) == len(one.labels) == len(one.ids):
            raise InputError(
                f"{path.with_suffix('')} has logits of shape {one.logits.shape}, "
                f"{len(one.labels)} labels and {len(one.ids)} ids: it was changed or torn."
            )
    return by_name


def _plain(run: Run, name: str) -> Path:
    path = run.file(name)
    plain_file(path)
    return path
