"""Logits that a run keeps, so that later questions need no second pass over the images.

logits/NAME.npy    one row per image, under the declared protocol: arg max is the answer
logits/NAME.json   role, ids, labels, temperature
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from counterlens.errors import InputError
from counterlens.runs.files import atomic, read_json, write_json
from counterlens.runs.run import Run

if TYPE_CHECKING:  # NumPy loads only when logits are read or written
    import numpy as np

Role = Literal["in", "ood"]


@dataclass(frozen=True)
class Kept:
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


def keep_logits(
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


def kept_logits(run: Run) -> dict[str, Kept]:
    """All logits a run has kept, by the name of the set; rows stay on disk until read."""
    import numpy as np

    found = {}
    for path in sorted((run.folder / "logits").glob("*.json")):
        facts = read_json(path)
        found[path.stem] = Kept(
            path.stem,
            facts["role"],
            np.load(path.with_suffix(".npy"), mmap_mode="r"),
            np.asarray(facts["labels"], dtype=np.int64),
            tuple(facts["ids"]),
            facts["temperature"],
        )
    return found
