"""Near-duplicates by embeddings: rows that point the same way.

Paper: none; exhaustive search, in blocks.
"""

import numpy as np
from jaxtyping import Float, Float32, Int64

from counterlens.errors import InputError

_Rows = Float[np.ndarray, "_ _"]
_BLOCK = 4096


def nearest(
    a: _Rows, b: _Rows, *, apart: bool = False
) -> tuple[Int64[np.ndarray, "_"], Float32[np.ndarray, "_"]]:
    """For each row of a the row of b with the highest cosine, and that cosine.

    Args:
        a, b: embeddings.
        apart: row i of a is row i of b, and does not count as its own neighbour.
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise InputError(
            f"got embeddings of shapes {a.shape} and {b.shape}, expected rows of equal length."
        )
    first, second = _unit(a, "a"), _unit(b, "b")
    if not len(second) or (apart and len(second) < 2):
        raise InputError("embeddings b hold no row to be near to.")
    place = np.zeros(len(first), dtype=np.int64)
    best = np.full(len(first), -np.inf, dtype=np.float32)
    for i in range(0, len(first), _BLOCK):
        for j in range(0, len(second), _BLOCK):
            cosines = first[i : i + _BLOCK] @ second[j : j + _BLOCK].T
            if apart and i == j:
                np.fill_diagonal(cosines, -np.inf)
            here = cosines.argmax(1)
            value = cosines[np.arange(len(here)), here]
            better = value > best[i : i + _BLOCK]
            place[i : i + _BLOCK][better] = here[better] + j
            best[i : i + _BLOCK][better] = value[better]
    return place, best.clip(-1, 1)


def _unit(rows: _Rows, name: str) -> Float32[np.ndarray, "_ _"]:
    wide = rows.astype(np.float64)
    if not np.isfinite(wide).all():
        raise InputError(f"embeddings {name} hold NaN or infinite values.")
    length = np.linalg.norm(wide, axis=1, keepdims=True)
    unit: Float32[np.ndarray, "_ _"] = np.divide(
        wide, length, out=np.zeros_like(wide), where=length > 0
    ).astype(np.float32)
    return unit
