"""A second look at the masks of trained CGNs: other masks, a classifier trained anew.

Result: results/cgn_study.json (…/looks, H200), docs/papers/cgn2021.md.
Run: python benchmarks/cgn_study.py look --mnist known:mnist@mnist.npz --runs RUNS

A training that is stopped for a good look, or chosen by one, flatters itself; so every network of
RUNS/*-SET/seed-N is examined three times with 500 masks of each digit. Written to RUNS/looks.json.
How much the contrast of each class would have to be raised to that of the mean class (what
`level=true` does) is printed for every set.
"""

import argparse
import json

from counterlens.classifier import pick_device
from counterlens.data.synthetic.digit_factors import open_digits
from counterlens.data.synthetic.mnist_variants import variant
from counterlens.generators.cgn import model as cgn
from counterlens.generators.cgn.model import CGN
from counterlens.losses.cgn import level_of
from counterlens.workflows.cgn.masks import accuracy, examine, train_digit_classifier

DRAWS = 3


def look(given: argparse.Namespace) -> None:
    """Examine all networks of all runs."""
    device = pick_device(given.device)
    digits = open_digits(given.mnist)
    for which in given.sets:
        data = variant(which, "train", digits, textures=given.textures)
        gains = level_of(data.pixels(), data.labels).gain.tolist()
        print(f"{which}: contrast to be raised by {[round(gain, 2) for gain in gains]}", flush=True)
    classifier = train_digit_classifier(
        digits[0], folder=given.runs / "look-classifier", device=device, log=lambda line: None,
        updates=given.digit_classifier_updates,
    )  # fmt: skip
    print(
        f"the classifier reads {accuracy(classifier, digits[1]).value:.1%} of real digits",
        flush=True,
    )
    found: dict[str, list[dict[str, object]]] = {}
    for folder in sorted(given.runs.glob("*-*/seed-*")):
        net, _ = cgn.load(folder)
        if not isinstance(net, CGN):
            continue
        for draw in range(DRAWS):
            health = examine(net.to(device), classifier, count=given.masks, seed=draw)
            read = [round(value, 3) for value in health.read[0].tolist()]
            row = {
                "seed": int(folder.name.removeprefix("seed-")), "masks": draw,
                "intact": int(health.intact.sum()), "read": read,
            }  # fmt: skip
            found.setdefault(folder.parent.name, []).append(row)
            print(folder.parent.name, row, flush=True)
    (given.runs / "looks.json").write_text(json.dumps(found, indent=0) + "\n")
    for run, rows in found.items():
        for draw in range(DRAWS):
            counts = [row["intact"] for row in rows if row["masks"] == draw]
            print(f"{run}, masks {draw}: {sum(counts)} of {10 * len(counts)} digits intact")
