"""Accuracy of shipped networks under the fifteen common corruptions, at one severity.

The same images are corrupted for every network. Each accuracy has a Wilson interval; the mean
corruption accuracy has a BCa bootstrap over images, because the fifteen versions of an image are
not independent. Frost textures are made by code (see docs/how-to/corruptions.md).

Run: python benchmarks/corruption_table.py --out benchmarks/results/corruption_table.json
Needs torch, not the command line.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from counterlens.classifier import Classifier
from counterlens.data import open_set
from counterlens.data.corruptions import COMMON
from counterlens.metrics.intervals.closed_form import mean_interval
from counterlens.metrics.numbers import share
from counterlens.models import load
from counterlens.predictions import predict
from counterlens.runs import Number, atomic

MODELS = ("zoo:cifar10-plain-small", "zoo:cifar10-ratio-small")
DATA = "sample:cifar10"


def right(model: Classifier, spec: str, count: int) -> np.ndarray:
    """Which images of a set are classified as labelled."""
    images = open_set(spec, limit=count, seed=0)
    found = predict(model, images, progress=False, workers=0)
    return np.asarray(found.logits).argmax(1) == images.labels


def row(model: Classifier, severity: int, count: int) -> dict[str, Number]:
    """Clean accuracy, one per corruption, and their mean."""
    out = {"clean": share(right(model, DATA, count), f"{count} images of {DATA}, drawn by seed 0")}
    hits = []
    for name in COMMON:
        hits.append(right(model, f"corrupted:{name},{severity}@{DATA}", count))
        out[name] = share(hits[-1], f"the same images, {name} of severity {severity}")
    means = np.mean(hits, 0)
    low, high = mean_interval(means, (0, 1), seed=0)
    text = f"mean over {len(COMMON)} corruptions; BCa bootstrap over images"
    out["mean corruption accuracy"] = Number(float(means.mean()), count, low, high, text)
    return out


def main() -> None:
    """Print and store the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--severity", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    table = {}
    for spec in MODELS:
        numbers = row(load(spec), given.severity, given.images)
        table[spec] = {name: asdict(number) for name, number in numbers.items()}
        for name, number in numbers.items():
            print(f"{spec} {name:24} {number.value:.3f} [{number.low:.3f}, {number.high:.3f}]")
    facts = {"data": DATA, "severity": given.severity, "models": table}
    with atomic(given.out) as part:
        part.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
