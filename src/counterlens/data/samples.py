"""The shipped sample sets: packs under zoo/samples, each with a provenance card, and textures.

`cifar10`: 1,000 CIFAR-10 test images, the first 100 of each class. `cifar10-calibration`: the
last 2,000 CIFAR-10 training images, for temperatures. `textures`: patterns drawn by code when
they are read, at any size (see textures.py).
"""

import json
from pathlib import Path
from typing import Any

from counterlens.data.packed import open_pack
from counterlens.data.textures import textures
from counterlens.errors import InputError
from counterlens.images import ImageSet

FOLDER = Path(__file__).parents[1] / "zoo" / "samples"


def sample_names() -> list[str]:
    """The names that `sample:NAME` knows."""
    return sorted([path.stem for path in FOLDER.glob("*.npz")] + ["textures"])


def sample_card(name: str) -> dict[str, Any]:
    """Where a shipped pack comes from: source, indices, licence, hash."""
    card: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return card


def open_sample(which: str, *, name: str, size: tuple[int, int]) -> ImageSet:
    """A shipped set."""
    if which == "textures":
        return textures(name, size)
    if which not in sample_names():
        known = ", ".join(f"sample:{n}" for n in sample_names())
        raise InputError(f"sample:{which} is not shipped, expected one of {known}.")
    return open_pack(FOLDER / f"{which}.npz", name=name)
