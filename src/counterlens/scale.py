"""Work cut into shards, done in this process or on Ray; the only file that knows Ray.

A shard is a range of rows. Work on it is a pure function of that range, so where and how often it
is done does not matter: a shard lost with its worker is done again, and the tables are equal.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from counterlens.errors import InputError, MissingExtra, first_line

Columns = Mapping[str, np.ndarray]
"""A table: columns of equal length, one value or one row of a matrix each. Texts are objects."""
ShardWork = Callable[[int, int], Columns]
"""From the first row and the one after the last to a table."""
_TRIES = 3
_ACTOR_CALLS = 2  # shards under way per worker: one running, one waiting


@dataclass(frozen=True)
class Shard:
    """Rows start … stop − 1 of some data, number `index` of its shards."""

    index: int
    start: int
    stop: int


def shards(rows: int, size: int) -> list[Shard]:
    """Cut rows into shards of one size, the last one smaller.

    >>> [(s.start, s.stop) for s in shards(5, 2)]
    [(0, 2), (2, 4), (4, 5)]
    """
    if size < 1:
        raise InputError(f"got a shard of {size} images, expected 1 or more.")
    return [Shard(i, i * size, min((i + 1) * size, rows)) for i in range(math.ceil(rows / size))]


def map_shards(
    make: Callable[[], ShardWork],
    todo: Sequence[Shard],
    *,
    on: str = "here",
    workers: int | None = None,
    gpus: float | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Iterator[tuple[Shard, Columns]]:
    """Do the work on every shard; tables come as they are done, on Ray in any order.

    Args:
        make: builds what does the work, once per worker: here the models are loaded. Must
            pickle for Ray.
        todo: shards to do.
        on: "here", "ray" (this machine) or the address of a cluster, ray://HOST:PORT.
        workers: most workers on Ray; None lets it grow to the GPUs there are, or the cores.
        gpus: GPUs that each worker on Ray reserves; None for one where Ray has any.
        tell: hears when the workers stand ready.
    """
    check_place(on)
    if on == "here":
        began = time.monotonic()
        work = make()
        tell(f"ready after {time.monotonic() - began:.1f} s")
        for shard in todo:
            yield shard, work(shard.start, shard.stop)
    else:
        yield from _on_ray(make, todo, on, workers, gpus, tell)


def check_place(on: str) -> None:
    """Refuse a place that is none."""
    if on not in ("here", "ray") and not on.startswith("ray://"):
        raise InputError(f"on is {on!r}, expected here, ray or ray://HOST:PORT.")


def worker_plan(
    cores: int, cards: float, *, workers: int | None, gpus: float | None, shards: int
) -> tuple[int, float]:
    """How many workers start on a cluster, and how many GPUs each reserves.

    >>> worker_plan(64, 8, workers=None, gpus=None, shards=100)
    (8, 1.0)
    >>> worker_plan(64, 0, workers=None, gpus=None, shards=100)
    (64, 0.0)
    """
    each = (1.0 if cards >= 1 else 0.0) if gpus is None else gpus
    room = int(cards / each) if each else cores
    if room < 1:
        raise InputError(f"each worker on Ray needs {each:g} GPUs, and the cluster has {cards:g}.")
    most = min(workers or room, room) if each else workers or room
    return min(most, shards), each


def _on_ray(
    make: Callable[[], ShardWork],
    todo: Sequence[Shard],
    on: str,
    workers: int | None,
    gpus: float | None,
    tell: Callable[[str], None],
) -> Iterator[tuple[Shard, Columns]]:
    ray = _ray()
    began = time.monotonic()
    own = not ray.is_initialized()
    if own:
        _start(ray, on)
    try:
        resources = ray.cluster_resources()
        cores, cards = int(resources.get("CPU", 1)), float(resources.get("GPU", 0))
        most, each = worker_plan(cores, cards, workers=workers, gpus=gpus, shards=len(todo))
        waiting = {shard.index: shard for shard in todo}
        tell(
            f"Ray is up after {time.monotonic() - began:.1f} s: {cores} cores, {cards:g} GPUs, "
            f"≤ {most} workers"
        )
        for shard, columns in _stream(ray, make, todo, most, each):
            if waiting.pop(shard.index, None) is not None:  # done twice is returned once
                yield shard, columns
        if waiting:
            raise RuntimeError(f"Ray lost {len(waiting)} of {len(todo)} shards")
    finally:
        if own:
            ray.shutdown()


def _stream(
    ray: Any, make: Callable[[], ShardWork], todo: Sequence[Shard], most: int, gpus: float
) -> Iterator[tuple[Shard, Columns]]:
    """Ray Data over the list of shards; actors build the work once and keep it.

    Ray Data restarts actors that die and repeats their tasks by itself.
    """
    import pyarrow as pa

    def build(items: Any) -> Any:  # a class defined here pickles by value, as Ray needs it
        class Worker:
            def __init__(self, make: Callable[[], ShardWork]) -> None:
                self.work = make()

            def __call__(self, batch: Any) -> Any:
                rows = batch.to_pylist()
                tables = []
                for row in rows:
                    columns = self.work(row["start"], row["stop"])
                    tables.append(to_arrow(columns, shard=row["index"]))
                return pa.concat_tables(tables)

        return items.map_batches(
            Worker,
            fn_constructor_args=(make,),
            batch_size=1,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(
                min_size=1, max_size=most, max_tasks_in_flight_per_actor=_ACTOR_CALLS
            ),
            num_cpus=1,
            num_gpus=gpus or None,
        )

    rows = [{"index": s.index, "start": s.start, "stop": s.stop} for s in todo]
    by_index = {shard.index: shard for shard in todo}
    done = build(ray.data.from_items(rows, override_num_blocks=len(rows)))
    for batch in done.iter_batches(batch_size=None, batch_format="pyarrow"):
        numbers = batch.column("shard").to_numpy()
        for index in dict.fromkeys(numbers.tolist()):
            part = batch.filter(pa.array(numbers == index)).drop_columns(["shard"])
            yield by_index[index], from_arrow(part)


def to_arrow(columns: Columns, **constants: int) -> Any:
    """Columns as an Arrow table, with additional columns of one value."""
    import pyarrow as pa

    length = len(next(iter(columns.values())))
    arrays = {
        name: _fixed(values)
        if values.ndim == 2
        else pa.array(values.tolist() if values.dtype == object else values)
        for name, values in columns.items()
    }
    texts = {name for name, values in columns.items() if values.dtype == object}
    arrays = {n: a.cast(pa.string()) if n in texts else a for n, a in arrays.items()}
    extra = {name: pa.array([value] * length, pa.int64()) for name, value in constants.items()}
    return pa.table({**arrays, **extra})


def _fixed(values: np.ndarray) -> Any:
    """A matrix as a column whose cells are its rows."""
    import pyarrow as pa

    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def from_arrow(table: Any) -> dict[str, np.ndarray]:
    """An Arrow table as columns."""
    return {name: _to_numpy(table.column(name).combine_chunks()) for name in table.column_names}


def _to_numpy(column: Any) -> np.ndarray:
    import pyarrow as pa

    if _is_text(column):
        return np.array(column.to_pylist(), dtype=object)
    if pa.types.is_fixed_size_list(column.type):
        values: np.ndarray = column.flatten().to_numpy(zero_copy_only=False)
        return values.reshape(len(column), column.type.list_size)
    flat: np.ndarray = column.to_numpy(zero_copy_only=False)
    return flat


def _is_text(column: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(column.type) or pa.types.is_null(column.type))


def _start(ray: Any, on: str) -> None:
    import logging

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if on == "ray":
        settings |= {"include_dashboard": False}
    address = None if on == "ray" else on
    for left in reversed(range(_TRIES)):
        try:
            ray.init(address=address, **settings)
            break
        except Exception as error:  # a busy machine makes Ray's own start run out of time
            ray.shutdown()
            if not left:
                raise InputError(
                    f"Ray did not start ({first_line(error, 120)}). Is the machine "
                    "busy, or the address wrong? on=here needs no Ray."
                ) from error
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def _ray() -> Any:
    try:
        import pyarrow  # noqa: F401
        import ray
        import ray.data
    except ImportError:
        raise MissingExtra(
            "on=ray needs Ray. Install it: pip install 'counterlens[ray]'."
        ) from None
    return ray
