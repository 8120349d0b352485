"""Two repairs by the command itself that end with 1 and with 4, on real photographs.

Cats and dogs of Oxford-IIIT Pets and a network that never saw the tag (`repair_pets.py`, control).

    worse (1)       a plain refit on photographs in which every dog has the tag, proved on others,
                    half of which have it: it learns the tag, and the choosing half has it, too
    not shown (4)   group weights on photographs whose tag goes with neither

Run: .venv/bin/python benchmarks/repair_exits.py --weights efficientnet-lite0.pth \
         --data photos_pets_train.npz --test photos_pets_test.npz --work runs/repair-exits
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

from counterlens import open_set
from counterlens.cli import app
from counterlens.images import ImageSet, write_png
from counterlens.runs import Run, write_json
from repair_pets import biased, is_dog, photographs, tags

RESULTS = Path(__file__).parent / "results" / "repair_exits.json"
CASES = {
    "worse": (1.0, "refit", "accuracy.top1"),
    "not shown": (0.5, "group-weights", "groups.worst"),
}
FITTED, FIX, CHECK = 300, 500, 500


def manifest(images: ImageSet, folder: Path) -> Path:
    """The photographs as files beside a list of them."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["path,label,tag"]
    for i in range(len(images)):
        write_png(folder / f"{i:04d}.png", images.read(i))
        label = images.classes[int(images.labels[i])]
        lines.append(f"{i:04d}.png,{label},{images.extra['tag'][i]}")
    file = folder / "list.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def main() -> None:
    """Both commands; their exit codes and receipts."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("weights", "data", "test", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    asked = parser.parse_args()
    (asked.work / "model").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(3)
    train, test = open_set(f"pack:{asked.data}"), open_set(f"pack:{asked.test}")
    order, labels = rng.permutation(len(train)), is_dog(train)
    first, second = order[:FITTED], order[FITTED : FITTED + FIX]
    known = photographs("fitted", train, first, np.zeros(FITTED, bool), f"pack:{asked.data}")
    model = biased(asked.work / "model", asked.weights, known, "control")
    rows = rng.permutation(len(test))[:CHECK]
    check = photographs(
        "check", test, rows, tags(is_dog(test)[rows], 0.5, rng), f"pack:{asked.test}"
    )
    proof = manifest(check, asked.work / "check")
    out: dict[str, Any] = {}
    for name, (share, remedy, want) in CASES.items():
        fix = photographs(
            "fix", train, second, tags(labels[second], share, rng), f"pack:{asked.data}"
        )
        listed = manifest(fix, asked.work / f"fix-{remedy}")
        folder = asked.work / f"run-{remedy}-{int(time.time())}"
        line = ["repair", model, "--fix", str(listed), "--check", str(proof), "--groups",
                "column:tag",
                "--with", remedy, "--want", want, "--device", "cpu", "--out", str(folder),
                "--features", str(asked.work / "features")]  # fmt: skip
        result = CliRunner().invoke(app, line)
        run = Run.open(folder)
        out[name] = {
            "exit": result.exit_code,
            "command": f"counterlens repair … --groups column:tag --with {remedy} --want {want}",
            "verdict": run.table("verdict")[0],
            "receipt": run.table("receipt"),
        }
        write_json(RESULTS, out)
        print(name, result.exit_code, out[name]["verdict"]["why"], folder, flush=True)


if __name__ == "__main__":
    main()
