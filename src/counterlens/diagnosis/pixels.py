"""Are the pictures pixels? Bytes in 0 … 255, not twice divided, not empty."""

from collections.abc import Sequence

import numpy as np

from counterlens.diagnosis.finding import Finding

DARK = 16


def pixels(pictures: Sequence[np.ndarray]) -> Finding:
    """Look at pictures as they were read."""
    name = "data pixels"
    if not pictures:
        return Finding(name, "skipped", "no data given.", "low")
    kinds = {str(picture.dtype) for picture in pictures}
    if kinds != {"uint8"}:
        message = f"pictures are {', '.join(sorted(kinds))}, expected uint8 in 0 … 255."
        fix = "Let read(i) return (x * 255).round().astype(np.uint8) of images in [0, 1]."
        return Finding(name, "fail", message, "high", fix)
    high = max(int(picture.max()) for picture in pictures)
    if high == 1:  # all zero: empty, below
        message = f"bytes of {len(pictures)} pictures are at most {high}: divided by 255 too early."
        fix = "Store bytes in 0 … 255; the division by 255 is done here."
        return Finding(name, "fail", message, "high", fix)
    empty = sum(int(picture.max()) == int(picture.min()) for picture in pictures)
    same = len(pictures) > 1 and all(np.array_equal(p, pictures[0]) for p in pictures[1:])
    if high < DARK or empty > len(pictures) / 5 or same:
        what = "are all the same" if same else f"are empty: {empty} of {len(pictures)}"
        message = (
            f"pictures {what}." if same or empty else f"pictures are dark: no byte above {high}."
        )
        return Finding(name, "warn", message, "medium", "Look at the pictures; re-export them.")
    return Finding(name, "ok", f"bytes up to {high} in {len(pictures)} pictures.")
