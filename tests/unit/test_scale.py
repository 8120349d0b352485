"""Shards here and on a real Ray of this machine: equal tables, and nothing lost with a worker."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from counterlens.errors import InputError
from counterlens.scale import Columns, Shard, from_arrow, map_shards, shards, to_arrow


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
