"""Child process that reads pictures: one request a line on standard input, one answer each.

A picture that crashes or stalls the reader ends this process, not the server. An answer is a line
of JSON, {"size": bytes} or {"error": text}, and then so many bytes.
"""

import json
import sys
from typing import Any

from counterlens.data.metadata import suffix_of
from counterlens.errors import CounterlensError
from counterlens.images import ImageSet, decode, png_bytes, read, thumbnail
from counterlens.runs import file_bytes

_sets: dict[str, tuple[ImageSet, dict[str, int]]] = {}


def main() -> None:
    """Answer until standard input ends."""
    _limit_memory()
    out = sys.stdout.buffer
    for line in sys.stdin:
        try:
            data = answer(json.loads(line))
            out.write(json.dumps({"size": len(data)}).encode() + b"\n" + data)
        except CounterlensError as error:
            out.write(json.dumps({"error": str(error)}).encode() + b"\n")
        except Exception as error:
            what = f"The picture cannot be read ({type(error).__name__})."
            out.write(json.dumps({"error": what}).encode() + b"\n")
        out.flush()


def answer(request: dict[str, Any]) -> bytes:
    """The bytes that a request asks for: a thumbnail, a picture as PNG, or nothing."""
    if request["want"] == "ready":
        return b""
    if request["want"] == "check":
        data = file_bytes(request["path"], what="picture")
        decode(data, name=request["name"])
        return (suffix_of(data) or ".img").encode()
    spec = request.get("spec", "")
    pixels = _of_set(spec, request["item"]) if spec else read(request["path"])
    side = int(request["side"])
    return thumbnail(pixels, side) if side and max(pixels.shape[:2]) > 96 else png_bytes(pixels)


def _of_set(spec: str, item: str) -> Any:
    from counterlens.data import open_set
    from counterlens.errors import InputError

    if spec not in _sets:
        opened = open_set(spec)
        _sets[spec] = (opened, {name: row for row, name in enumerate(opened.ids)})
    images, rows = _sets[spec]
    if item not in rows:
        raise InputError(f"{spec} has no picture {item!r}.")
    return images.read(rows[item])


def _limit_memory() -> None:
    """A picture never takes the machine's memory: 8 GB of address space, most of it libraries."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    except (ImportError, ValueError, OSError):  # not on this system
        return


if __name__ == "__main__":
    main()
