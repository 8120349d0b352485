"""Erasure on real features: what a held-out linear probe still finds, and what it costs.

CIFAR-10 photographs, each once as it is and once with a striped tag in a corner, in
`zoo:cifar10-plain-small` (192 features). LEACE is fitted on one half of the training photographs,
the probe on the other half, its AUROC measured on test photographs. Both versions of a photograph
lie in one half, so what the tag adds is known up to its own variation, not up to that of the
photographs; without such pairs the direction is known up to d / n and a probe finds the rest.

Run: .venv/bin/python benchmarks/repair_erasure.py --cifar FOLDER --work runs/erasure
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from counterlens import open_set, repair
from counterlens.data.sets import array_set, subset
from counterlens.images import ImageSet
from counterlens.runs import write_json
from counterlens.screen.copies import copies
from counterlens.workflows.repair.edits import drawn
from counterlens.workflows.repair.groups import prints_of
from repair_pets import tag

RESULTS = Path(__file__).parent / "results" / "repair_erasure.json"
BOX = (0.05, 0.05, 0.3, 0.3)


def twice(images: ImageSet, rows: np.ndarray, name: str) -> ImageSet:
    """Some photographs, each without and with the tag."""
    pixels = [images.read(int(i)) for i in rows]
    both = np.stack([*pixels, *(drawn(x, tag(), BOX) for x in pixels)])
    labels = np.concatenate([images.labels[rows]] * 2)
    made = array_set(name, both, labels, images.classes)
    tagged = np.repeat(["no tag", "tag"], len(rows))
    photo = np.array([f"photo {i}" for i in rows.tolist()] * 2)
    return replace(made, extra={"tag": tagged, "photo": photo})


def apart(images: ImageSet, rows: np.ndarray, others: ImageSet) -> np.ndarray:
    """The rows of a set that are, and nearly are, no images of the other; CIFAR-10 has some."""
    near = copies(prints_of(others), prints_of(subset(images, rows)))
    kept: np.ndarray = np.setdiff1d(np.arange(len(rows)), [one.other for one in near])
    return rows[kept]


def main() -> None:
    """One repair by erasure alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("cifar", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--fix", type=int, default=6000)
    parser.add_argument("--check", type=int, default=2000)
    asked = parser.parse_args()
    train = open_set(f"pack:{asked.cifar / 'cifar10_train_part0.npz'}")
    test = open_set(f"pack:{asked.cifar / 'cifar10_test.npz'}")
    fix, n = twice(train, np.arange(asked.fix), "fix"), asked.check
    kept = set(apart(twice(test, np.arange(n), "check"), np.arange(2 * n), fix).tolist())
    rows = np.array([j for j in range(n) if {j, j + n} <= kept])
    result = repair(
        "zoo:cifar10-plain-small", fix=fix,
        check=twice(test, rows, "check"), groups_from="column:tag",
        pairs="column:photo", remedies="erase", device="cpu", features=asked.work / "features",
        out=asked.work / f"run-{int(time.time())}",
    )  # fmt: skip
    numbers = {k: n.to_json() for k, n in result.numbers.items()}
    write_json(
        RESULTS,
        {"numbers": numbers, "verdict": result.table("verdict")[0], "sizes": result.table("sizes"),
         "tried": result.table("tried"), "receipt": result.table("receipt")},
    )  # fmt: skip
    for key in ("repair.probe_before", "repair.probe_after"):
        print(key, numbers[key]["value"], numbers[key]["low"], numbers[key]["high"], flush=True)
    for row in result.table("tried"):
        print(
            row["name"],
            row.get("accuracy"),
            row.get("accuracy.top1.low"),
            row.get("accuracy.top1.high"),
        )


if __name__ == "__main__":
    main()
