"""Accuracy of shipped networks under the fifteen common corruptions at all five severities.

The same images are corrupted for every network. Each accuracy is the mean over severities with a
BCa bootstrap over images, because the versions of an image are not independent; differences
between two networks are paired by image. Frost textures are made by code (see
docs/how-to/corruptions.md).

Run: python benchmarks/corruption_table.py --out benchmarks/results/corruption_table.json
Needs torch, not the command line. Each network is stored as it ends and kept by a second run.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path

import numpy as np

from counterlens.classifier import Classifier
from counterlens.data import open_set
from counterlens.data.corruptions import COMMON, SEVERITIES
from counterlens.metrics.intervals.closed_form import mean_interval
from counterlens.metrics.numbers import share
from counterlens.models import load
from counterlens.predictions import predict
from counterlens.runs import Number, atomic

MODELS = (
    "zoo:cifar10-plain-small",
    "zoo:cifar10-ratio-small",
    "zoo:cifar10-at-0.5",
    "zoo:cifar10-ratio-0.25",
)
DATA = "sample:cifar10"
GROUPS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
Hits = dict[str, np.ndarray]
"""Which images are classified as labelled: a row per severity of each corruption."""


def right(model: Classifier, spec: str, count: int) -> np.ndarray:
    """Which images of a set are classified as labelled."""
    images = open_set(spec, limit=count, seed=0)
    found = predict(model, images, progress=False, workers=0)
    return np.asarray(found.logits).argmax(1) == images.labels


def hits_of(spec: str, severities: Sequence[int], count: int, folder: Path) -> Hits:
    """Answers of one network, from the file of an earlier run where it is there."""
    path = folder / f"{spec.replace(':', '-')}-{count}-{'.'.join(map(str, severities))}.npz"
    if not path.exists():
        model = load(spec)
        rows = {"clean": right(model, DATA, count)[None]}
        for name in COMMON:
            each = [right(model, f"corrupted:{name},{s}@{DATA}", count) for s in severities]
            rows[name] = np.stack(each)
            print(f"{spec} {name:20} {rows[name].mean(1).round(3)}", flush=True)
        with atomic(path) as part, part.open("wb") as file:
            np.savez_compressed(file, **rows)
    with np.load(path) as file:
        return {name: file[name] for name in file}


def mean(values: np.ndarray, text: str, ends: tuple[float, float] = (0.0, 1.0)) -> Number:
    """Mean over images of what is already a mean over versions of each."""
    low, high = mean_interval(values, ends, seed=0)
    text = f"{text}; BCa bootstrap over images"
    return Number(float(values.mean()), len(values), low, high, text)


def per_image(hits: Hits) -> dict[str, np.ndarray]:
    """Share of the versions of each image that are right: by corruption, by kind and over all."""
    own = {name: rows.mean(0) for name, rows in hits.items() if name != "clean"}
    kinds = {kind: np.mean([own[name] for name in names], 0) for kind, names in GROUPS.items()}
    return own | kinds | {"mean corruption accuracy": np.mean([own[name] for name in COMMON], 0)}


def row(hits: Hits) -> dict[str, Number]:
    """Clean accuracy, one per corruption, of each kind, and of all."""
    clean = share(hits["clean"][0], f"{hits['clean'].size} images of {DATA}, drawn by seed 0")
    text = f"mean over {len(hits['fog'])} severities"
    return {"clean": clean} | {name: mean(v, text) for name, v in per_image(hits).items()}


def pairs(every: Mapping[str, Hits]) -> list[dict[str, object]]:
    """Differences of the means between networks, on the same images."""
    rows = []
    parts = ("mean corruption accuracy", *GROUPS)
    for one, two in combinations(every, 2):
        first, second = per_image(every[one]), per_image(every[two])
        for part in parts:
            number = mean(first[part] - second[part], f"{part}, paired", (-1.0, 1.0))
            rows.append({"first": one, "second": two, "what": part, **asdict(number)})
    return rows


def main() -> None:
    """Print and store the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--severities", type=int, nargs="+", default=list(SEVERITIES))
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--answers", type=Path, default=Path("runs/corruption-table"))
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.answers.mkdir(parents=True, exist_ok=True)
    every = {
        spec: hits_of(spec, given.severities, given.images, given.answers) for spec in given.models
    }
    table = {}
    for spec, hits in every.items():
        numbers = row(hits)
        table[spec] = {name: asdict(number) for name, number in numbers.items()}
        for name, number in numbers.items():
            print(f"{spec} {name:24} {number.value:.3f} [{number.low:.3f}, {number.high:.3f}]")
    facts = {"data": DATA, "severities": given.severities, "models": table, "pairs": pairs(every)}
    for one in facts["pairs"]:  # type: ignore[attr-defined]
        print("{first} − {second}, {what}: {value:+.3f} [{low:+.3f}, {high:+.3f}]".format(**one))
    with atomic(given.out) as part:
        part.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
