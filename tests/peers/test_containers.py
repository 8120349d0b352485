"""Shards written by webdataset and folders written by `datasets`, against the arrays they hold."""

import gc
from pathlib import Path

import numpy as np
import pytest

from counterlens.data import open_set

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Cannot locate reference"),  # dill, inside datasets
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # webdataset leaves its files open
]
PICTURES = np.random.default_rng(0).integers(0, 256, (6, 12, 10, 3), dtype=np.uint8)


def test_shards_of_webdataset(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset", reason="webdataset is not installed")
    pattern = str(tmp_path / "s-%03d.tar")
    with webdataset.ShardWriter(pattern, maxcount=4, verbose=0) as sink:
        for i, pixels in enumerate(PICTURES):
            sink.write({"__key__": f"{i:04}", "png": pixels, "cls": i % 3})
    gc.collect()
    images = open_set(f"wds:{tmp_path}")
    assert images.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert all(np.array_equal(images.read(i), PICTURES[i]) for i in range(6))


def test_folders_of_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    from PIL import Image

    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    rows = {"image": [Image.fromarray(p) for p in PICTURES], "label": [0, 1, 0, 1, 1, 0]}
    table = datasets.Dataset.from_dict(rows, features=features)
    table.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"test": table}).save_to_disk(tmp_path / "split")
    for spec in (f"hf:{tmp_path / 'one'}", f"hf:{tmp_path / 'split'}#test"):
        images = open_set(spec)
        assert images.classes == ("cat", "dog")
        assert images.labels.tolist() == [0, 1, 0, 1, 1, 0]
        assert all(np.array_equal(images.read(i), PICTURES[i]) for i in range(6))
