"""Shared by all tests: one thread budget, seeded generators, the path of optional outside data."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # tests run side by side, a process per core
settings.register_profile("counterlens", deadline=None)  # a busy machine is no failure
settings.load_profile("counterlens")


@pytest.fixture
def rng() -> torch.Generator:
    """A seeded generator, fresh for each test."""
    return torch.Generator().manual_seed(0)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from a second thread, and lose much on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of outside data sets; tests that want it skip where it is absent."""
    folder = Path(os.environ.get("COUNTERLENS_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("outside data absent: set COUNTERLENS_DATA to a folder of packed sets")
    return folder


@pytest.fixture
def few_digits(tmp_path: Path) -> str:
    """Both splits of MNIST, eighty pictures each, all ten digits among them."""
    from counterlens.data import open_set, write_pack

    specs = []
    for name in ("mnist-train", "mnist"):
        shipped = open_set(f"sample:{name}")
        pictures, labels = [shipped.read(i) for i in range(80)], shipped.labels[:80].tolist()
        write_pack(tmp_path / f"{name}.npz", pictures, labels, shipped.classes)
        specs.append(f"pack:{tmp_path / name}.npz")
    return ",".join(specs)
