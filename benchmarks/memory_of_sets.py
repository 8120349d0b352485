"""Claim: of a data set its list alone is held in memory (ids, places, labels, logits), no pixels.

Evidence: `python benchmarks/memory_of_sets.py --out benchmarks/results/memory_of_sets.json`. Shards
and a table (CSV) of n pictures of 32 pixels are written, opened in a process of its own and read
once in batches; n grows thirtyfold.
Stored: resident memory after opening and the peak during the pass, above that of a process that has
predicted a few images. From 2,000 to 60,000 images the peak grows by 287 bytes per image of shards
and 504 of a table (their pixels are 3,072 bytes): ten million images of any size want some 3 to 5
GB. One process reads; each worker process holds the list again.
Not shown: logits above 2 GB, which lie in a file (tests/core/test_predictions.py).
"""

import argparse
import csv
import io
import json
import resource
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np

SIDE, PER_SHARD = 32, 5_000


def picture(i: int) -> bytes:
    """A PNG of noise; every one its own."""
    from counterlens.images import png_bytes

    return png_bytes(np.random.default_rng(i).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8))


def write_shards(folder: Path, count: int) -> str:
    """WebDataset shards: KEY.png and KEY.cls."""
    folder.mkdir()
    for first in range(0, count, PER_SHARD):
        with tarfile.open(folder / f"s-{first:07}.tar", "w") as tar:
            for i in range(first, min(first + PER_SHARD, count)):
                for ending, data in (("png", picture(i % 512)), ("cls", str(i % 10).encode())):
                    member = tarfile.TarInfo(f"{i:07}.{ending}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return f"wds:{folder}"


def write_table(folder: Path, count: int) -> str:
    """A CSV of count rows over 512 picture files."""
    folder.mkdir()
    for i in range(512):
        (folder / f"{i}.png").write_bytes(picture(i))
    with (folder / "rows.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("id", "path", "label"))
        rows.writerows((f"{i:07}", f"{i % 512}.png", f"class {i % 10}") for i in range(count))
    return str(folder / "rows.csv")


def resident() -> int:
    """Resident memory now, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def measure(spec: str) -> dict[str, int]:
    """Memory of opening a set and of one pass over it, above what the imports take."""
    import torch
    from torch import nn

    from counterlens.classifier import Classifier
    from counterlens.data import open_set
    from counterlens.predictions import predict

    torch.set_num_threads(1)
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 10))
    classifier = Classifier(net, 10, size=SIDE)
    predict(classifier, open_set("sample:cifar10", limit=64), workers=0, progress=False)
    before = resident()
    images = open_set(spec)
    opened = resident() - before
    peak, answers = opened, 0

    def watch(_: nn.Module, __: object, logits: torch.Tensor) -> None:
        nonlocal peak, answers
        peak, answers = max(peak, resident() - before), answers + len(logits)

    net.register_forward_hook(watch)
    predict(classifier, images, workers=0, progress=False)
    return {"images": answers, "opened": opened, "peak": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2_000, 20_000, 60_000])
    parser.add_argument("--spec", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.spec:
        print(json.dumps(measure(given.spec)))
        return
    found: dict[str, list[dict[str, int]]] = {}
    for kind, write in (("shards", write_shards), ("table", write_table)):
        for count in given.sizes:
            with tempfile.TemporaryDirectory() as folder:
                spec = write(Path(folder) / "set", count)
                command = [sys.executable, __file__, "--spec", spec]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                row = json.loads(done.stdout.splitlines()[-1])
            found.setdefault(kind, []).append(row)
            print(kind, {key: f"{value:,}" for key, value in row.items()}, flush=True)
        first, last = found[kind][0], found[kind][-1]
        per = (last["peak"] - first["peak"]) / (last["images"] - first["images"])
        print(f"{kind}: {per:.0f} bytes per image, which holds {SIDE * SIDE * 3} bytes of pixels")
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
