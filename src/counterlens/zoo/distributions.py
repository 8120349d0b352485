"""Where shipped weights and samples lie: in this package's folder, or in installed distributions.

A source tree holds all of them. The wheel of the code holds none: weights and samples are wheels of
their own (packages/), found by the entry point `counterlens.zoo`, whose module's folder has the
shelves of `counterlens.zoo`.
"""

from functools import lru_cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

GROUP = "counterlens.zoo"
HELD = {
    "zoo": (
        "cifar10", "cifar10-at-0.5", "cifar10-calibration", "cifar10-clip", "cifar10-diffusion",
        "cifar10-plain-small", "cifar10-ratio-0.25", "cifar10-ratio-small", "coloured-mnist-cgn",
        "double-coloured-mnist-cgn", "mnist", "mnist-train", "wildlife-mnist-cgn",
    ),
    "photos": ("pets", "photos-diffusion"),
}  # fmt: skip
"""What each extra installs."""


@lru_cache(maxsize=1)
def roots() -> tuple[Path, ...]:
    """Folders with shelves: the package's own first, then those of installed distributions."""
    own = Path(__file__).parent
    specs = (find_spec(one.value) for one in sorted(entry_points(group=GROUP)))
    return own, *(Path(spec.origin).parent for spec in specs if spec and spec.origin)


def missing(name: str) -> str | None:
    """What to install for a name that is not here; None where no distribution has it."""
    for extra, names in HELD.items():
        if name in names:
            return f"it is part of counterlens-{extra}: pip install 'counterlens[{extra}]'"
    return None
