"""Erasure on real features: what a held-out linear probe still finds, and what it costs.

Photographs, each once as it is and once with a striped tag in a corner:

    cifar    CIFAR-10 in `zoo:cifar10-plain-small`, 192 features
    pets     cats and dogs of Oxford pets at 128 px in EfficientNet-Lite0 (ImageNet weights), 1,280
             features, under a head fitted on 300 photographs without tags

LEACE is fitted on n images, the probe on other photographs, its AUROC measured on third ones, every
photograph of which is there in both versions. The n images are either different photographs, half
of which have the tag, or n / 2 photographs in both versions (what `repair --pairs` has). In the
first case the concept is known up to d / n, and a probe finds the rest; in the second what the two
versions share is no part of the error. Then the cost in accuracy, without and with the tag.

Run: .venv/bin/python benchmarks/repair_erasure.py --cifar FOLDER --work runs/erasure
     .venv/bin/python benchmarks/repair_erasure.py --only pets --weights efficientnet-lite0.pth \
         --data photos_pets_train.npz --test photos_pets_test.npz --work runs/erasure
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from counterlens import load, open_set
from counterlens.classifier import Classifier
from counterlens.data.sets import subset
from counterlens.images import ImageSet
from counterlens.runs import read_object, write_json
from counterlens.screen.copies import copies
from counterlens.workflows.repair import features
from counterlens.workflows.repair.edits.made import drawn
from counterlens.workflows.repair.erasure import erase, fitted_eraser, probed
from counterlens.workflows.repair.groups import Grouped, prints_of
from counterlens.workflows.repair.heads import Examples, Pairs, Problem
from counterlens.workflows.repair.receipt import paired
from counterlens.workflows.repair.run import old_head
from repair_pets import CLASSES, TAGS, biased, is_dog, photographs, tag

RESULTS = Path(__file__).parent / "results" / "repair_erasure.json"
BOXES = {"cifar": (0.05, 0.05, 0.3, 0.3), "pets": (0.08, 0.08, 0.35, 0.35)}
SIZES = (250, 500, 1000, 2000, 4000, 8000, 16000)


@dataclass(frozen=True)
class Versions:
    """Features of photographs without and with the tag."""

    plain: np.ndarray
    tagged: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]

    def examples(self, rows: np.ndarray, value: np.ndarray) -> Examples:
        """Some photographs, each in one version."""
        x = np.where(value[:, None] == 1, self.tagged[rows], self.plain[rows])
        return Examples(x, Grouped(self.labels[rows], value, self.classes, TAGS))

    def both(self) -> Examples:
        """Every photograph twice."""
        rows, value = np.tile(np.arange(len(self.labels)), 2), np.repeat([0, 1], len(self.labels))
        return self.examples(rows, value)


def versions(
    classifier: Classifier, images: ImageSet, labels: np.ndarray, box: Any, folder: Path
) -> Versions:
    """One pass over both versions, or the stored features of an earlier one."""
    store = features.FeatureStore.open(folder, classifier)

    def tagged(i: int) -> np.ndarray:
        return drawn(images.read(i), tag(), box)

    both = [
        features.compute(classifier, read, store, count=len(images)).astype(np.float64)
        for read in (images.read, tagged)
    ]
    return Versions(*both, labels, tuple(classifier.classes))


def cifar(asked: argparse.Namespace) -> tuple[Classifier, list[tuple[ImageSet, np.ndarray]]]:
    """Network; photographs to fit on, to probe with, to measure on."""
    classifier = load("zoo:cifar10-plain-small", device="cpu")
    names = ("cifar10_train_part0.npz", "cifar10_train_part1.npz", "cifar10_test.npz")
    counts, parts = (asked.count, asked.count, asked.check), []
    for name, count in zip(names, counts, strict=True):
        whole = open_set(f"pack:{asked.cifar / name}")
        parts.append(subset(whole, np.arange(min(count, len(whole)))))
    parts[2] = apart(parts[2], parts[:2])
    return classifier, [(one, one.labels) for one in parts]


def apart(images: ImageSet, others: list[ImageSet]) -> ImageSet:
    """Without those that are, or nearly are, images of the others; CIFAR-10 has some."""
    own, near = prints_of(images), set()
    for other in others:
        near |= {one.other for one in copies(prints_of(other), own)}
    return subset(images, np.setdiff1d(np.arange(len(images)), sorted(near)))


def pets(asked: argparse.Namespace) -> tuple[Classifier, list[tuple[ImageSet, np.ndarray]]]:
    """Network; photographs to fit on, to probe with, to measure on."""
    folder = asked.work / "pets"
    folder.mkdir(parents=True, exist_ok=True)
    train, test = open_set(f"pack:{asked.data}"), open_set(f"pack:{asked.test}")
    order = np.random.default_rng(0).permutation(len(train))
    first, rest = order[:300], order[300:]
    known = photographs("fitted", train, first, np.zeros(300, bool), f"pack:{asked.data}")
    spec = biased(folder, asked.weights, known, "control")
    classifier = load(spec, device="cpu", trust_remote_code=True)
    half = min(asked.count, len(rest) // 2)
    rows = (rest[:half], rest[half : 2 * half])
    parts = [(subset(train, part), is_dog(train)[part]) for part in rows]
    return classifier, [*parts, (test, is_dog(test))]


def fitted(fit: Versions, n: int, head: Any, *, pairs: bool) -> Problem:
    """The problem whose eraser is fitted on n images."""
    rng = np.random.default_rng(n)
    if not pairs:
        rows = rng.permutation(len(fit.labels))[:n]
        known = fit.examples(rows, (np.arange(n) % 2).astype(np.int64))
        return Problem(head, known, known)
    rows = rng.permutation(len(fit.labels))[: n // 2]
    zeros = np.zeros(len(rows), dtype=np.int64)
    first, second = fit.examples(rows, zeros), fit.examples(rows, zeros + 1)
    return Problem(head, first, first, Pairs(np.arange(len(rows)), second, second.x))


def curve(head: Any, parts: list[Versions]) -> list[dict[str, Any]]:
    """AUROC and accuracy for each n and design."""
    fit, other, third = parts
    known, check = other.both(), third.both()
    width, n_test = fit.plain.shape[1], len(third.labels)
    before = probed(np.zeros((width, width)), np.zeros(width), known, check)
    rows = [{"n": 0, "design": "before", "auroc": before.to_json()}]
    for pairs in (False, True):
        for n in SIZES:
            if n > len(fit.labels) * (2 if pairs else 1):
                continue
            problem = fitted(fit, n, head, pairs=pairs)
            area, new = probed(*fitted_eraser(problem), known, check), erase(problem)
            row = {"n": n, "design": "pairs" if pairs else "photographs", "auroc": area.to_json()}
            for part, name in ((slice(0, n_test), "no tag"), (slice(n_test, None), "tag")):
                right = [check.right(one)[part] for one in (head, new)]
                row[name] = paired(*right)
            rows.append(row)
            print(row["design"], n, area.value, area.low, area.high, row["no tag"], flush=True)
    return rows


def main() -> None:
    """Both cases, or one."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("cifar", "weights", "data", "test"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", choices=("cifar", "pets"), default="cifar")
    parser.add_argument("--count", type=int, default=8000)
    parser.add_argument("--check", type=int, default=3000)
    asked = parser.parse_args()
    start = time.perf_counter()
    classifier, opened = {"cifar": cifar, "pets": pets}[asked.only](asked)
    assert asked.only == "cifar" or classifier.classes == CLASSES
    parts = [
        versions(classifier, images, labels, BOXES[asked.only], asked.work / "features")
        for images, labels in opened
    ]
    rows = curve(old_head(classifier), parts)
    stored = read_object(RESULTS) if RESULTS.exists() else {}
    stored[asked.only] = {
        "features": int(parts[0].plain.shape[1]),
        "photographs": [len(part.labels) for part in parts],
        "seconds": time.perf_counter() - start,
        "rows": rows,
    }
    write_json(RESULTS, stored)


if __name__ == "__main__":
    main()
