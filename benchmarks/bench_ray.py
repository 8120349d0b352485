"""A pool of 100,000 small images on Ray next to a bare loader and model, and next to one process.

Result (two cores, cifar10-ratio-small, results/ray.json): 411 images a second on Ray, 412 in one
process, 313 and 248 by the bare loop at its best setting before and after: 1.31 of the better one.
One worker of two was killed in the middle; 50 of 50 shards, none twice, the table that of one
process. Ray began to answer after 47 s. Resident memory, the highest of each tenth of the pass:
driver 820 to 828 MiB, largest worker 981 in the first tenth, then 1,192 to 1,334.
Run: .venv/bin/python benchmarks/bench_ray.py FILE.npz           # CIFAR-10 test images, packed

Throughput is from the first to the last block; start-up is printed apart. The bare loop runs at
the best of four settings (threads, loading processes), before and after Ray's pass. A worker is
killed in the middle of that pass; its table must equal that of one process all the same, nothing
lost or doubled. Memory is the highest of each tenth of the pass. The result is written for 100,000
images or more.
"""

import argparse
import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from counterlens.data import open_set, subset
from counterlens.filters.opinions import Opinions
from counterlens.images import ImageSet, prepared
from counterlens.models import load
from counterlens.runs import write_json
from counterlens.scale import map_shards, shards

FULL = 100_000
RESULTS = Path(__file__).parent / "results" / "ray.json"


def repeated(spec: str, count: int) -> ImageSet:
    """A set of so many images, the same ones over and over."""
    base = open_set(spec)
    rows = np.arange(count) % len(base)
    return replace(subset(base, rows), ids=[f"{i}" for i in range(count)])


class Bare(Dataset[torch.Tensor]):
    """What anyone writes: decode a batch, hand it to the model."""

    def __init__(self, images: ImageSet, model: torch.nn.Module, size: int) -> None:
        self.images, self.size, self.fit = images, size, model.preprocess

    def __len__(self) -> int:
        return -(-len(self.images) // self.size)

    def __getitem__(self, j: int) -> torch.Tensor:
        rows = range(j * self.size, min((j + 1) * self.size, len(self.images)))
        return torch.from_numpy(np.stack([prepared(self.images.read, i, self.fit) for i in rows]))


SETTINGS = ((1, 0), (1, 1), (2, 0), (2, 1))  # threads of the model, loading processes


@torch.inference_mode()
def bare(images: ImageSet, spec: str, threads: int, workers: int) -> float:
    """Images a second of a loader and the model."""
    torch.set_num_threads(threads)
    model = load(spec, device="cpu")
    loader = DataLoader(Bare(images, model, 256), batch_size=None, num_workers=workers)
    first, seen, began = 0, 0, 0.0
    for batch in loader:
        model(batch.float().div_(255)).softmax(1).max(1)
        if not first:
            first, began = len(batch), time.monotonic()
        seen += len(batch)
    return (seen - first) / (time.monotonic() - began)


class Memory(threading.Thread):
    """Highest resident memory of this process and of Ray's workers, in MiB, over time."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.stop = threading.Event()
        self.driver: list[float] = []
        self.workers: list[float] = []
        self.most = 0

    def run(self) -> None:
        """Look twice a second."""
        while not self.stop.wait(0.5):
            self.driver.append(_rss(os.getpid()))
            found = [_rss(pid) for pid in ray_workers()]
            self.workers.append(max(found, default=0.0))
            self.most = max(self.most, len(found))

    @staticmethod
    def tenths(seen: list[float]) -> list[int]:
        """The highest of each tenth."""
        parts = np.array_split(np.array(seen or [0.0]), 10)
        return [round(float(part.max())) for part in parts if len(part)]


def _rss(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def ray_workers() -> list[int]:
    """Processes of this user's Ray that hold a model."""
    out = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if words.startswith(b"ray::MapWorker"):
                out.append(int(entry.name))
    return out


def passed(asked: Opinions, on: str, size: int, kill: bool) -> dict[str, object]:
    """One pass; throughput from first to last block, memory, and the table."""
    memory = Memory()
    memory.start()
    began = time.monotonic()
    tables: dict[int, dict[str, np.ndarray]] = {}
    first = killed = 0.0
    first_rows = 0
    todo = shards(len(asked.pool), size)
    for shard, columns in map_shards(asked, todo, on=on, tell=print):
        assert shard.index not in tables
        tables[shard.index] = dict(columns)
        if not first:
            first, first_rows = time.monotonic(), shard.stop - shard.start
        if kill and not killed and len(tables) >= len(todo) // 2 and ray_workers():
            killed = ray_workers()[0]
            os.kill(int(killed), signal.SIGKILL)
            print(f"killed worker {int(killed)}")
    ended = time.monotonic()
    memory.stop.set()
    memory.join()
    first_rows *= max(1, memory.most)  # the other workers' first shards were all but done as well
    table = {key: np.concatenate([tables[i][key] for i in sorted(tables)]) for key in tables[0]}
    return {
        "start_s": first - began,
        "images_per_s": (len(asked.pool) - first_rows) / max(1e-9, ended - first),
        "seconds": ended - began,
        "shards": f"{len(tables)} of {len(todo)}, none twice",
        "rows": len(next(iter(table.values()))),
        "workers": memory.most,
        "killed": bool(killed),
        "driver_mib": memory.tenths(memory.driver),
        "worker_mib": memory.tenths(memory.workers) if on == "ray" else [],
        "table": table,
    }


def same(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> bool:
    """Whether two tables say the same; probabilities to 1e-5."""
    return all(
        np.allclose(one[k], two[k], atol=1e-5, equal_nan=True)
        if one[k].dtype.kind == "f"
        else bool((one[k] == two[k]).all())
        for k in one
    )


def main() -> None:
    """Bare, on Ray, bare again, here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pack")
    parser.add_argument("--model", default="zoo:cifar10-ratio-small")
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--shard", type=int, default=2000)
    asked = parser.parse_args()
    pool = repeated(f"pack:{asked.pack}", asked.images)
    classes = len(load(asked.model, device="cpu").classes)
    opinions = Opinions(
        pool, (asked.model,), (tuple(range(classes)),), crops=False, batch=256, device="cpu"
    )
    few = subset(pool, np.arange(min(asked.images, max(1024, asked.images // 20))))
    tried = {s: bare(few, asked.model, *s) for s in SETTINGS}
    best = max(tried, key=lambda s: tried[s])
    some = subset(pool, np.arange(min(asked.images, max(2048, asked.images // 5))))
    before = bare(some, asked.model, *best)
    print({f"{t} threads, {w} loaders": round(rate) for (t, w), rate in tried.items()})
    there = passed(opinions, "ray", asked.shard, kill=True)
    after = bare(some, asked.model, *best)
    here = passed(opinions, "here", asked.shard, kill=False)
    equal = same(here.pop("table"), there.pop("table"))  # type: ignore[arg-type]
    plain = max(before, after)
    result = {
        "images": asked.images,
        "model": asked.model,
        "bare_threads_and_loaders": best,
        "bare_images_per_s": [before, after],
        "here": here,
        "ray": there,
        "same_table": equal,
        "ray_over_bare": float(str(there["images_per_s"])) / plain,
    }
    if asked.images >= FULL:
        write_json(RESULTS, result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
