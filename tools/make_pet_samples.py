"""Make sample:pets: photographs of 37 breeds with masks, from a packed set of Oxford-IIIT Pets.

    python tools/make_pet_samples.py photos_pets_test.npz

The first four test photographs of each breed, encoded as they came (136 pixels, WebP); masks as PNG
(255 animal, 0 background, 128 border). The data set is licensed CC BY-SA 4.0 (Parkhi et al. 2012).
"""

import hashlib
import sys
from pathlib import Path

import numpy as np

from counterlens.data.sources.packed import open_pack, write_encoded
from counterlens.runs import write_json

EACH = 4
OUT = Path(__file__).parents[1] / "src" / "counterlens" / "zoo" / "samples" / "pets.npz"


def main() -> None:
    """Write the pack and its card."""
    source = Path(sys.argv[1])
    images = open_pack(source, name="pets")
    labels = np.asarray(images.labels)
    rows = [int(i) for k in range(len(images.classes)) for i in np.flatnonzero(labels == k)[:EACH]]
    raw = np.load(source)
    starts, masks = raw["mask_offsets"], raw["mask_png"]
    parts = [masks[starts[i] : starts[i + 1]] for i in rows]
    ends = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    write_encoded(
        OUT,
        [images.read.encoded(i) for i in rows],  # type: ignore[attr-defined]
        labels[rows].tolist(),
        images.classes,
        ids=np.array([f"pets-test/{i}" for i in rows]),
        mask_png=np.concatenate(parts),
        mask_offsets=ends,
    )
    card = {
        "schema": 1,
        "name": "pets",
        "what": f"photographs of 37 breeds of cats and dogs with masks, {EACH} of each",
        "images": len(rows),
        "size": [136, 136],
        "split": "test",
        "licence": "CC-BY-SA-4.0",
        "author": "the photographers, by way of O. M. Parkhi, A. Vedaldi, A. Zisserman, "
        "C. V. Jawahar",
        "source": "The Oxford-IIIT Pet Dataset (Cats and Dogs, CVPR 2012)",
        "changes": "square crops from the centre, reduced to 136 pixels, encoded as WebP of "
        "quality 85; masks are the trimaps of the set, cropped and reduced alike",
        "made_by": "tools/make_pet_samples.py",
        "sha256": hashlib.sha256(OUT.read_bytes()).hexdigest(),
        "reviewed": "labels are those of the data set; no person reviewed this selection",
    }
    write_json(OUT.with_suffix(".json"), card)
    print(f"{OUT}: {len(rows)} photographs, {OUT.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
