"""How long a head-only repair takes on 5,000 photographs at 224 px once its features are stored.

EfficientNet-Lite0 (1,280 features) with a head for cats and dogs, 5,000 photographs of Oxford-IIIT
Pets with a tag on 90 % of the dogs, proved on the test photographs that are no near copies of them;
all remedies on the head.
`--fill` computes and stores the features alone, in shards; without it the repair is timed. Beside
the wall time stands the CPU time of the process, which other work on the machine does not change.

Run: .venv/bin/python benchmarks/repair_speed.py --fill --weights efficientnet-lite0.pth \
         --data photos_pets_train.npz --test photos_pets_test.npz --work runs/speed   # then without
"""

import argparse
import time
from pathlib import Path

import numpy as np

from counterlens import load, open_set, repair
from counterlens.images import write_png
from counterlens.runs import write_json
from counterlens.workflows.repair import features
from counterlens.workflows.repair.remedies import REMEDIES
from repair_erasure import apart
from repair_pets import BOX, biased, is_dog, photographs, tag, tags

RESULTS = Path(__file__).parent / "results" / "repair_speed.json"


def main() -> None:
    """Fill the store, or time the repair."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("weights", "data", "test", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--fill", action="store_true")
    parser.add_argument("--count", type=int, default=5000)
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    train, test = open_set(f"pack:{asked.data}"), open_set(f"pack:{asked.test}")
    rows = rng.permutation(len(train))[: asked.count]
    fix = photographs("fix", train, rows, tags(is_dog(train)[rows], 0.9, rng), f"pack:{asked.data}")
    tagged = tags(is_dog(test), 0.5, rng)
    check = photographs("check", test, np.arange(len(test)), tagged, f"pack:{asked.test}")
    check = apart(check, [fix])
    write_png(asked.work / "tag.png", tag())
    (asked.work / "model").mkdir(exist_ok=True)
    model = biased(asked.work / "model", asked.weights, fix, "speed", side=224)
    store = asked.work / "features"
    if asked.fill:
        classifier = load(model, device="cpu", trust_remote_code=True)
        for images in (fix, check):
            features.compute(classifier, images, features.FeatureStore.open(store, classifier))
        return
    wall, cpu = time.perf_counter(), time.process_time()
    names = [name for name in REMEDIES if name != "pairs"]
    result = repair(
        model, fix=fix, check=check, groups_from="column:tag", remedies=",".join(names),
        device="cpu", features=store, out=asked.work / f"run-{int(time.time())}",
    )  # fmt: skip
    row = {"photographs": len(fix), "check": len(check), "features": 1280,
           "wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu,
           "box": BOX, "remedies": {r["name"]: r.get("seconds") for r in result.table("tried")},
           "verdict": result.table("verdict")[0]}  # fmt: skip
    write_json(RESULTS, row)
    print(row, flush=True)


if __name__ == "__main__":
    main()
