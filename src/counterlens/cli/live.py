"""The images of a search as it goes on, for whoever watches it: the app sets COUNTERLENS_LIVE.

A thread writes what the search shows (`progress.show_iterates`) to live.json there, a few times
a second at most. The run itself is not touched, so that it is the same whether watched or not.
"""

import base64
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from counterlens.progress import LIVE, Iterates, shown

FILE = "live.json"
PAUSE = 0.3
MOST, SIDE = 24, 224
"""So many images are written, of at most so many pixels a side."""


@contextmanager
def live() -> Iterator[None]:
    """While the block runs, iterates are written to the folder that the environment names."""
    folder = os.environ.get(LIVE, "")
    if not folder:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_follow, args=(Path(folder), ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(5)


def _follow(folder: Path, ended: threading.Event) -> None:
    last: Iterates | None = None
    over = False
    while not over:
        over = ended.wait(PAUSE)
        now = shown()
        if now is None or now is last:
            continue
        last = now
        with suppress(Exception):  # what is only watched never ends the work
            write(folder, now)


def write(folder: Path, now: Iterates) -> None:
    """The first images, each with its name and confidence, in place of what was there."""
    from counterlens.runs import write_json

    rows = [
        {"name": name, "confidence": round(float(sure), 4), "image": _address(point)}
        for name, sure, point in zip(now.names[:MOST], now.confidence, now.points, strict=False)
    ]
    write_json(folder / FILE, {"rows": rows, "more": max(0, len(now.names) - MOST)})


def _address(point: Any) -> str:
    from counterlens.images import png_bytes, thumbnail, to_pixels

    pixels = to_pixels(point.float().cpu())
    small = max(pixels.shape[:2]) <= SIDE
    data = png_bytes(pixels) if small else thumbnail(pixels, SIDE)
    kind = "png" if small else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
