"""For whom an ImageNet classifier is worse on Oxford pets: breed, kind, size, pose, brightness.

The photographs are independent of ImageNet; the 24 breeds that are ImageNet classes are taken with
their masks. Groups and pairs of groups are judged together; slices rest on the same answers.
Result: see docs/how-to/groups.md.
Run: python benchmarks/pets_groups.py WEIGHTS.pth photos_pets_train.npz+photos_pets_test.npz
     --limit 2500 --out benchmarks/results/pets_groups.json
WEIGHTS are those of EfficientNet-Lite0.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

import counterlens as cl
from counterlens.data.columns import column_values
from counterlens.data.sets import sample_rows, subset
from counterlens.images import ImageSet
from counterlens.label_spaces.imagenet import imagenet_names

SHOWN = 25
POSE = {
    "size in the picture": "mask:area",
    "pose, width over height": "mask:aspect",
    "pose, off centre": "mask:offset",
    "cut off by the edge": "mask:edge",
}


def known(packs: str, limit: int | None) -> ImageSet:
    """The pets whose breed is an ImageNet class, under its ImageNet name."""
    pets = cl.open_set(f"pack:{packs}")
    with np.load(packs.split("+")[0]) as file:
        index = file["imagenet_index"]
    rows = np.flatnonzero(index[pets.labels] >= 0)
    if limit:
        rows = rows[sample_rows(len(rows), limit, 0)]
    found = sorted({int(index[k]) for k in pets.labels[rows]})
    place = {number: k for k, number in enumerate(found)}
    labels = np.array([place[int(index[k])] for k in pets.labels[rows]])
    names = imagenet_names()
    return replace(
        subset(pets, rows), labels=labels, classes=tuple(names[number] for number in found)
    )


def main() -> None:
    """Audit by group, look for slices, print and store both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", type=Path)
    parser.add_argument("packs")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    data = f"pack:{args.packs}"
    pets = known(args.packs, args.limit)
    groups = {
        "kind": [pets.classes[k] for k in pets.labels.tolist()],
        "breed": column_values(pets, "class"),
        **{words: column_values(pets, name, data) for words, name in POSE.items()},
        "brightness": column_values(pets, "image:brightness"),
    }
    groups["kind"] = ["cat" if "cat" in str(name).lower() else "dog" for name in groups["kind"]]
    model = f"timm:tf_efficientnet_lite0@{args.weights}"
    result = cl.audit(model, pets, groups=groups, slices=True, out=args.run, quiet=True)
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
    slices = result.table("slices")
    for row in slices:
        print({key: row[key] for key in ("name", "confirmed", "n", "excess", "low", "high")})
    if args.out:
        facts = {
            "accuracy": {"value": top.value, "low": top.low, "high": top.high, "n": top.n},
            "looked_at": len(rows),
            "judged": judged,
            "slices": slices,
        }
        args.out.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
