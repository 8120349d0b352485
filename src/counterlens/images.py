"""Pictures on disk and in memory; the only file that knows Pillow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int64, UInt8

Pixels = UInt8[np.ndarray, "h w c"]


@dataclass(frozen=True)
class ImageSet:
    """Pictures with ids and labels; pixels are read only when asked for.

    Args:
        name: the short name used in keys and reports.
        ids: one stable id per picture, unique within the set.
        labels: index into `classes`; −1 where unknown.
        classes: class names of the set; empty for sets without classes.
        read: picture i as uint8 RGB, height × width × 3. Must pickle, for worker processes.
        space: declared label space or protocol of a known set ("imagenet-a", "cue-conflict", …).
        extra: further per-picture facts, e.g. texture labels.
        fingerprint: hash of ids, labels and contents or their metadata.
    """

    name: str
    ids: Sequence[str]
    labels: Int64[np.ndarray, "n"]
    classes: tuple[str, ...]
    read: Callable[[int], Pixels]
    space: str | None = None
    extra: Mapping[str, np.ndarray] = field(default_factory=dict)
    fingerprint: str = ""

    def __len__(self) -> int:
        return len(self.ids)
