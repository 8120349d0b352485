"""One pass over many images, shard by shard, in this process or on Ray, kept on disk.

The pass writes a Parquet file per shard (where pyarrow is not installed, an .npz file of the same
columns); a file that is there is not made again, so an interrupted pass goes on where it stopped.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from counterlens.errors import MissingExtra
from counterlens.runs import atomic
from counterlens.scale import Columns, Shard, ShardWork, from_arrow, map_shards, shards, to_arrow
from counterlens.workflows._shared.session import Log

SHARD = 512


@dataclass(frozen=True)
class Where:
    """How a pass is cut, and where it runs.

    Args:
        size: images per shard.
        on: here, ray, or ray://HOST:PORT.
        workers: most workers on Ray; None for as many as there are GPUs or cores.
        device: of the models; with cpu no worker on Ray asks for a GPU.
    """

    size: int = SHARD
    on: str = "here"
    workers: int | None = None
    device: str = "auto"


def in_shards(
    folder: Path,
    make: Callable[[], ShardWork],
    rows: int,
    where: Where,
    *,
    what: str,
    log: Log,
) -> dict[str, np.ndarray]:
    """The table of all rows; shards that the folder has are read back.

    Args:
        folder: of the shards' files; they must be of the same work and data.
        make: builds what does the work, once per worker.
        rows: how many.
        what: what the log calls the rows that are done.
    """
    every = shards(rows, where.size)
    todo = [shard for shard in every if not _part(folder, shard).exists()]
    if len(todo) < len(every):
        log(f"{len(every) - len(todo)} of {len(every)} shards are there already")
    done = rows - sum(s.stop - s.start for s in todo)
    gpus = 0.0 if where.device == "cpu" else None
    passes = map_shards(make, todo, on=where.on, workers=where.workers, gpus=gpus, tell=log)
    for shard, columns in passes if todo else ():
        _write(_part(folder, shard), columns)
        done += shard.stop - shard.start
        log(f"{done:,} of {rows:,} {what}")
    tables = [_read(_part(folder, shard)) for shard in every]
    return {key: np.concatenate([t[key] for t in tables]) for key in tables[0]}


def _part(folder: Path, shard: Shard) -> Path:
    name = f"part-{shard.index:06d}"
    there = [folder / f"{name}.{end}" for end in ("parquet", "npz")]
    return next((path for path in there if path.exists()), there[0 if _has_arrow() else 1])


def _has_arrow() -> bool:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        return False
    return True


def _write(path: Path, columns: Columns) -> None:
    if path.suffix == ".parquet":
        import pyarrow.parquet as parquet

        with atomic(path) as part:
            parquet.write_table(to_arrow(columns), part)
        return
    texts: dict[str, Any] = {
        k: v.astype(str) if v.dtype == object else v for k, v in columns.items()
    }
    with atomic(path) as part, part.open("wb") as file:
        np.savez(file, **texts)


def _read(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".parquet":
        if not _has_arrow():
            raise MissingExtra(
                f"{path.name} is Parquet, which needs pyarrow. Install it: "
                "pip install 'counterlens[ray]'."
            )
        import pyarrow.parquet as parquet

        return from_arrow(parquet.read_table(path))
    with np.load(path) as stored:
        return {k: v.astype(object) if v.dtype.kind == "U" else v for k, v in stored.items()}
