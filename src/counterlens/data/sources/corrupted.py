"""corrupted:NAME,SEVERITY@SPEC: the images of any set under a common corruption.

Paper: Hendrycks, Dietterich 2019, arXiv:1903.12261.
Differs: an image whose shorter side is above 256 pixels is first reduced to 256 there, as for
    ImageNet-C, and corrupted before the classifier's crop, not after it. Other images are corrupted
    at their own size.
"""

import re
from dataclasses import dataclass, replace

from counterlens.data.corruptions import LEVELS, SMALL, check, corrupt
from counterlens.data.sets import fingerprint
from counterlens.errors import InputError
from counterlens.images import ImageSet, Pixels, resize

FORM = "corrupted:NAME,SEVERITY@SPEC, e.g. corrupted:fog,3@sample:cifar10"
LONG = 256  # a shorter side above this is reduced to it


@dataclass(frozen=True)
class ReadCorrupted:
    """Reads image i of a set and corrupts it; draws depend on its id alone, not on its place."""

    base: ImageSet
    kind: str
    severity: int

    def __call__(self, i: int) -> Pixels:
        pixels = self.base.read(i)
        height, width = pixels.shape[:2]
        if (short := min(height, width)) > LONG:
            size = (height * LONG // short, width * LONG // short)
            pixels = resize(pixels, size, "bilinear")
        return corrupt(pixels, self.kind, self.severity, seed=self.base.ids[i])


def open_corrupted(
    text: str,
    *,
    name: str,
    limit: int | None,
    seed: int,
    size: tuple[int, int],
    channels: int,
) -> ImageSet:
    """`NAME,SEVERITY@SPEC`: the same images, labels and ids as of SPEC, drawn alike."""
    what, _, spec = text.partition("@")
    parts = re.fullmatch(r"([^,]+),([+-]?\d{1,9})", what)
    if not parts or not spec:
        raise InputError(f"corrupted:{text} is not whole, expected {FORM}.")
    kind, severity = parts[1].strip().replace("-", "_"), int(parts[2])
    check(kind, severity)
    from counterlens.data.open import open_set  # which opens corrupted sets in its turn

    base = open_set(spec, limit=limit, seed=seed, size=size, channels=channels)
    return corrupted_set(base, kind, severity, name=name)


def corrupted_set(base: ImageSet, kind: str, severity: int, *, name: str) -> ImageSet:
    """The images of a set under one corruption, with the same labels and ids."""
    note = (
        f"{kind} of severity {severity} by Hendrycks and Dietterich 2019, made in memory: the "
        f"32-pixel constants up to {SMALL} pixels, the 224-pixel constants above"
    )
    if kind in LEVELS:
        note = f"{kind} at level {severity}: {LEVELS[kind][severity - 1]}"
    ice = ("frost textures are made by code, not photographs",) if kind == "frost" else ()
    return replace(
        base,
        name=name,
        read=ReadCorrupted(base, kind, severity),
        fingerprint=fingerprint([f"corrupted 1 {kind} {severity} {base.fingerprint}"]),
        notes=(*base.notes, note, *ice),
    )
