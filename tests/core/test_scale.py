"""Shards here and on a real Ray of this machine: equal tables, and nothing lost with a worker."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from counterlens.errors import InputError
from counterlens.scale import Columns, Shard, from_arrow, map_shards, shards, to_arrow, worker_plan


def squares(log: Path, pause: float = 0.0):
    """Work whose answer is known; each worker writes down who it is and what it did.

    Functions within functions pickle by value, so that Ray's workers need not know this file.
    """

    def make():
        def work(start, stop):
            rows = np.arange(start, stop)
            with (log / f"{os.getpid()}").open("a") as file:
                file.write(f"{start}\n")
            time.sleep(pause)
            names = np.array([f"n{r}" if r % 3 else "" for r in rows], dtype=object)
            return {"row": rows, "square": (rows**2).astype(np.float32), "name": names}

        return work

    return make


def joined(tables: list[tuple[Shard, Columns]]) -> dict[str, np.ndarray]:
    ordered = [table for _, table in sorted(tables, key=lambda pair: pair[0].index)]
    return {key: np.concatenate([t[key] for t in ordered]) for key in ordered[0]}


def test_here_every_shard_is_done_in_order(tmp_path) -> None:
    found = list(map_shards(squares(tmp_path), shards(10, 4)))
    assert [shard.index for shard, _ in found] == [0, 1, 2]
    assert joined(found)["square"].tolist() == [float(r * r) for r in range(10)]


def test_tables_survive_arrow() -> None:
    table = {
        "row": np.arange(3),
        "share": np.array([0.5, np.nan, 1.0], np.float32),
        "why": np.array(["", "brüchig", ""], dtype=object),
        "small": np.array([1, -1, 2], np.int8),
        "matrix": np.arange(12, dtype=np.float32).reshape(3, 4),
        "codes": np.array([[2**63, 1], [0, 2**64 - 1], [5, 7]], np.uint64),
    }
    back = from_arrow(to_arrow(table))
    assert list(back) == list(table)
    for key, column in table.items():
        assert back[key].dtype == column.dtype
        np.testing.assert_array_equal(back[key], column)


def test_bad_sizes_and_places_are_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="1 or more"):
        shards(10, 0)
    with pytest.raises(InputError, match="expected here, ray"):
        list(map_shards(squares(tmp_path), shards(2, 1), on="there"))


def test_workers_are_as_many_as_the_gpus_they_reserve() -> None:
    assert worker_plan(16, 2, workers=None, gpus=None, shards=9) == (2, 1.0)
    assert worker_plan(16, 2, workers=8, gpus=None, shards=9) == (2, 1.0)
    assert worker_plan(16, 2, workers=None, gpus=0.0, shards=9) == (9, 0.0)
    assert worker_plan(4, 1, workers=None, gpus=0.5, shards=9) == (2, 0.5)
    with pytest.raises(InputError, match="needs 1 GPUs, and the cluster has 0"):
        worker_plan(4, 0, workers=None, gpus=1.0, shards=9)


def reserved():
    """Work that says how many GPUs its worker has reserved."""

    def make():
        def work(start, stop):
            import ray

            held = len(ray.get_gpu_ids())
            return {"gpus": np.full(stop - start, held)}

        return work

    return make


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray's own, on import and at its end
def test_workers_on_ray_reserve_gpus_unless_the_device_is_the_cpu() -> None:
    """A Ray that is told it has two GPUs; it hands them out whether or not they are there."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
    try:
        for gpus, expected in ((None, 1), (0.0, 0)):
            found = joined(list(map_shards(reserved(), shards(4, 1), on="ray", gpus=gpus)))
            assert found["gpus"].tolist() == [expected] * 4
    finally:
        ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray's own, on import and at its end
def test_ray_gives_the_same_table_although_a_worker_is_killed(tmp_path) -> None:
    pytest.importorskip("ray")
    here, there = tmp_path / "here", tmp_path / "ray"
    here.mkdir()
    there.mkdir()
    todo = shards(101, 5)
    expected = joined(list(map_shards(squares(here), todo)))
    found: list[tuple[Shard, Columns]] = []
    killed: list[int] = []
    told: list[str] = []
    for pair in map_shards(squares(there, 0.3), todo, on="ray", workers=2, tell=told.append):
        found.append(pair)
        if len(found) == 3:
            killed += [int(path.name) for path in there.iterdir()][:1]
            os.kill(killed[0], signal.SIGKILL)
    assert killed and told and "Ray is up" in told[0]
    assert sorted(shard.index for shard, _ in found) == [shard.index for shard in todo]
    table = joined(found)
    for key, column in expected.items():
        np.testing.assert_array_equal(table[key], column)
    assert len(list(there.iterdir())) >= 2  # another worker took over
