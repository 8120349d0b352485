"""Photographs of seven of the cue-conflict set's categories, with masks: what cgn_heads.py uses.

    python benchmarks/cgn_things.py --data DIR --u2net u2netp.onnx --out OUT

DIR holds the packed photographs (pets with masks, Imagenette, Caltech-101 categories). Cats and
dogs have true masks (a border counts as animal); birds, boats, chairs, elephants and trucks get
masks of U²-Net-p. OUT/train and OUT/test have a folder for each class; OUT/masks has all masks. Of
pets and trucks the packs' own test files are the test set; of the others every fifth photograph. At
most 100 and 40 of each class.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from counterlens.images import decode, write_png
from counterlens.models.salient import load_salient

GROUPS = {
    "bird": ("emu", "flamingo", "ibis", "pigeon", "rooster"),
    "boat": ("ferry", "ketch", "schooner"),
    "chair": ("chair", "windsor chair"),
    "elephant": ("elephant",),
}
MOST = {"train": 100, "test": 40}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("data", "u2net", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=10**9, help="most masks in this call")
    args = parser.parse_args()
    salient = load_salient(args.u2net)
    for split in ("train", "test"):
        with_pets(args, split)
        with_trucks(args, split, salient)
    with_caltech(args, salient)


def with_pets(args: argparse.Namespace, split: str) -> None:
    pack = np.load(args.data / f"photos_pets_{split}.npz")
    for kind in ("cat", "dog"):
        wanted = [i for i, name in enumerate(pack["classes"]) if str(name).endswith(kind)]
        rows = np.flatnonzero(np.isin(pack["labels"], wanted))
        for i in np.random.default_rng(0).permutation(rows)[: MOST[split]]:
            mask = piece(pack, "mask_png", "mask_offsets", i)
            keep(
                args.out,
                split,
                kind,
                f"pet-{split}-{i}",
                piece(pack, "encoded", "offsets", i),
                mask,
            )


def with_trucks(args: argparse.Namespace, split: str, salient) -> None:
    pack = np.load(args.data / f"photos_imagenette_{split}.npz")
    label = pack["classes"].tolist().index("garbage truck")
    rows = np.random.default_rng(0).permutation(np.flatnonzero(pack["labels"] == label))
    for i in rows[: MOST[split]]:
        segmented(args, split, "truck", f"truck-{split}-{i}", pack, i, salient)


def with_caltech(args: argparse.Namespace, salient) -> None:
    pack = np.load(args.data / "photos_out_train.npz")
    for name, parts in GROUPS.items():
        wanted = [i for i, one in enumerate(pack["classes"]) if str(one) in parts]
        rows = np.random.default_rng(0).permutation(np.flatnonzero(np.isin(pack["labels"], wanted)))
        for number, i in enumerate(rows[: sum(MOST.values())]):
            split = "test" if number % 5 == 0 else "train"
            segmented(args, split, name, f"caltech-{i}", pack, i, salient)


def segmented(args, split: str, label: str, name: str, pack, i: int, salient) -> None:
    """A photograph with its mask by U²-Net-p, unless an earlier call made them."""
    if (args.out / "masks" / f"{name}.png").exists() or args.limit <= 0:
        return
    args.limit -= 1
    image = piece(pack, "encoded", "offsets", i)
    keep(args.out, split, label, name, image, by_u2net(salient, image))


def piece(pack, encoded: str, offsets: str, i: int) -> np.ndarray:
    start, end = pack[offsets][i], pack[offsets][i + 1]
    return decode(pack[encoded][start:end].tobytes())


def by_u2net(salient, image: np.ndarray) -> np.ndarray:
    x = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255
    soft = (salient(x)[0, 0].numpy() * 255).round().astype(np.uint8)
    return np.repeat(soft[..., None], 3, axis=2)


def keep(out: Path, split: str, label: str, name: str, image, mask) -> None:
    write_png(out / split / label / f"{name}.png", image)
    write_png(out / "masks" / f"{name}.png", mask)


if __name__ == "__main__":
    main()
