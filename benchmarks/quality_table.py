"""How good counterfactuals are, method by method, on CIFAR-10 at 32 pixels.

The table of `counterlens explain … --evaluate`: validity, truth, closeness, realism, sparsity and
cost of pixel counterfactuals (of a plain and of a robust model), DVCE, prompt-to-prompt alone and
DiG-IN's, on the same pictures with the same seeded targets; pictures the model gets wrong are left
out. Judges took no part in making any image. Every batch is kept: a run that was stopped goes on
with --resume.

Result: docs/papers/digin2024.md, "The comparator", and results/quality_table.json: most judges see
the target in 5 % (pixel), 53 % (pixel-robust), 21 % (dvce, the paper's constants), 85 %
(prompt-to-prompt) and 86 % (diffusion, single searches) of 1,012. The comparison with DVCE is not
fair: its constants start at a signal of 0.28 in this schedule, where the paper's start at 0.08.
Run: python benchmarks/quality_table.py --data pack:cifar10_test.npz --generator FOLDER \
         --lpips alexnet.ckpt --images 270 --targets 4 --out OUT --run FOLDER [--resume]
Diffusion searches once (edit.rounds=0), unless --set edit.rounds=N says otherwise. The result is of
an earlier run; its last 52 of dvce were added with --resume.
A time limit (SIGTERM) leaves the numbers of the methods that were done.
"""

import argparse
import json
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

from counterlens.runs import Run
from counterlens.workflows.quality.options import ARMS
from counterlens.workflows.quality.run import draw, evaluate

GUIDE, ROBUST = "zoo:cifar10-plain-small", "zoo:cifar10-ratio-0.25"
JUDGES = ("zoo:cifar10-at-0.5", "zoo:cifar10-ratio-small")
SHOWN = ("flipped", "sure", "agreed", "l2", "l2_outside", "lpips", "lpips_outside", "kid",
         "nearest", "changed", "seconds", "denoiser_passes")  # fmt: skip


def show(run: Run) -> None:
    """The table as text: a column per method."""
    numbers = run.numbers
    arms = [arm for arm in ARMS if f"quality.{arm}.flipped" in numbers]
    print(f"{'':18}" + "".join(f"{arm:>26}" for arm in arms))
    for name in SHOWN:
        line = f"{name:18}"
        for arm in arms:
            one = numbers.get(f"quality.{arm}.{name}")
            if one is None or one.value is None:
                line += f"{'–':>26}"
            elif one.low is None or one.high is None:
                line += f"{one.value:>26.4g}"
            else:
                line += f"{f'{one.value:.4g} [{one.low:.3g}, {one.high:.3g}]':>26}"
        print(line)


def main() -> None:
    """Run the evaluation and leave a table, a sheet and all numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="sample:cifar10", help="labelled test images")
    parser.add_argument("--generator")
    parser.add_argument("--lpips")
    parser.add_argument("--guide", default=GUIDE)
    parser.add_argument("--robust", default=ROBUST)
    parser.add_argument("--judge", action="append")
    parser.add_argument("--arm", action="append", default=[])
    parser.add_argument("--images", type=int, default=260)
    parser.add_argument("--targets", type=int, default=4)
    parser.add_argument("--radius", type=float)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--memory", help="of the generator, e.g. 40GB")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tf32", action="store_true", help="faster products on a GPU")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--run", type=Path, help="folder of the run; default: OUT/run")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    folder = given.run or given.out / "run"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(124))
    if given.tf32:
        torch.set_float32_matmul_precision("high")
    began = time.perf_counter()
    try:
        evaluate(
            given.guide, [f"{given.data}#0:{given.images}"], arm=given.arm,
            judge=given.judge or JUDGES, robust=given.robust, targets=given.targets,
            real=given.data, lpips=given.lpips, generator=given.generator, radius=given.radius,
            updates=given.updates, changes=given.changes, batch=given.batch,
            memory=given.memory, seed=given.seed, device=given.device, out=folder,
            resume=given.resume,
        )  # fmt: skip
    finally:
        leave(Run(folder), given.out, time.perf_counter() - began)


def leave(run: Run, out: Path, seconds: float) -> None:
    """What there is: the table, a figure, the numbers, and each counterfactual's row."""
    rows = run.table("quality")
    if not rows:
        return
    show(run)
    facts = {
        "done": run.done, "settings": run.manifest["settings"], "seconds": round(seconds, 1),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "numbers": {key: number.to_json() for key, number in run.numbers.items()},
    }  # fmt: skip
    (out / "quality_table.json").write_text(json.dumps(facts, indent=1, ensure_ascii=False))
    shutil.copy(run.folder / "tables" / "quality.jsonl", out / "quality_rows.jsonl")
    arms = list(dict.fromkeys(row["method"] for row in rows))
    draw(run, rows, [arm for arm in ARMS if arm in arms])
    shutil.copy(run.folder / "images" / "figure-000.png", out / "quality_figure.png")
    print(f"{seconds:.0f} s in all")


if __name__ == "__main__":
    main()
