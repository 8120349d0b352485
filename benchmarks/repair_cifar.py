"""A plain CIFAR-10 network repaired towards robustness and towards unknown images, with receipts.

`zoo:cifar10-plain-small` trained further from its own weights on 1,200 or so CIFAR-10 training
images for two epochs: outlier exposure with 1,500 Tiny-ImageNet images, and RATIO. Proved on 1,000
test images, against Caltech-256 and street-view characters, and under attack. Two epochs on two
cores are a fraction of a real training: what is shown is the receipt, not how far RATIO goes.

Run: .venv/bin/python benchmarks/repair_cifar.py --cifar FOLDER --data FOLDER --work runs/cifar
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from counterlens import open_set, repair
from counterlens.data.sets import subset
from counterlens.runs import read_object, write_json
from repair_erasure import apart

RESULTS = Path(__file__).parent / "results" / "repair_cifar.json"
MODEL = "zoo:cifar10-plain-small"
CASES: dict[str, dict[str, Any]] = {
    "outlier-exposure": {
        "want": "ood.caltech.auroc",
        "changes": ("epochs=2", "batch=32"),
        "allow": ("accuracy.top1:-0.02",),
    },
    "ratio": {
        "want": "robust.l2-0.25.accuracy",
        "attack": ("l2:0.25",),
        "attack_points": 64,
        "changes": ("epochs=2", "batch=32", "near.steps=3", "far.steps=3"),
    },
}


def main() -> None:
    """Both repairs; each is written as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("cifar", "data", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--fix", type=int, default=2400)
    parser.add_argument("--check", type=int, default=1000)
    parser.add_argument("--only", choices=tuple(CASES))
    asked = parser.parse_args()
    known = read_object(RESULTS) if RESULTS.exists() else {}
    fix = open_set(f"pack:{asked.cifar / 'cifar10_train_part0.npz'}")
    check = open_set(f"pack:{asked.cifar / 'cifar10_test.npz'}")
    out = open_set(f"pack:{asked.data / 'tinyimagenet32_out_train_part0.npz'}")
    unknown = {
        name: open_set(f"pack:{asked.data / file}")
        for name, file in (
            ("caltech", "ood32_caltech256.npz"),
            ("characters", "ood32_streetview_chars.npz"),
        )
    }
    fixed = some(fix, asked.fix)
    proof = apart(some(check, asked.check), [fixed])
    for name, options in CASES.items():
        if asked.only not in (None, name):
            continue
        began = time.perf_counter()
        result = repair(
            MODEL, fix=fixed, check=proof, groups_from="none",
            ood={key: some(one, 600) for key, one in unknown.items()}, out_data=some(out, 1500),
            remedies=f"recipe:{name}", device="cpu", features=asked.work / "features",
            out=asked.work / f"{name}-{int(time.time())}", **options,
        )  # fmt: skip
        known[name] = {
            "options": options,
            "seconds": time.perf_counter() - began,
            "verdict": result.table("verdict")[0],
            "keys": result.table("keys"),
            "receipt": result.table("receipt"),
            "placebos": result.table("placebos"),
            "tried": result.table("tried"),
        }
        write_json(RESULTS, known)
        print(name, known[name]["verdict"], flush=True)


def some(images: Any, count: int) -> Any:
    """The same images of a set at every call."""
    rows = np.random.default_rng(0).permutation(len(images))[:count]
    return subset(images, np.sort(rows))


if __name__ == "__main__":
    main()
