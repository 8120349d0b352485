"""Train the models of Table 1 that are not shipped and audit them, several at a time on one GPU.

    python tools/make_zoo.py --data DIR --out DIR [--rows NAME ...] [--only STAGE ...] [--keep DIR]
        [--slots 4] [--minutes M]

DIR of `--data` has cifar10_train_part0.npz and _part1.npz, cifar10_test.npz, the out-distribution
tinyimagenet32_out_train_part0.npz and _part1.npz, and the sets of card_audits.py. Of each row of
ROWS come OUT/train/NAME, a training run; OUT/audits/NAME and NAME-apart, the audits of its card,
OUT/audits/cards/NAME.json; and OUT/audits/NAME-large, all test images attacked by `fast`, for
benchmarks/zoo_orderings.py. What the table needs most is made first: all trainings and main audits,
then the large ones, then what is reported apart. `--only` leaves other stages out. Each stage is
a process of its own, its output OUT/log/NAME-STAGE.txt. Repeat the command to go on where it was
stopped: what is finished stays. `--keep DIR` writes each finished training (weights in half
precision and card) to DIR/NAME.tar, and begins by unpacking those that DIR has, so that models
trained on one machine are audited on another. Needs torch, not the command line.
"""

import argparse
import os
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

from counterlens.errors import CounterlensError
from counterlens.runs import atomic
from counterlens.workflows import recipes
from counterlens.workflows.audit import audit
from counterlens.workflows.pixels import Sets
from counterlens.workflows.train import train

ROWS: dict[str, tuple[str, ...]] = {
    "cifar10-at-0.25": ("epochs=32",),
    "cifar10-acet": ("epochs=20", "far.steps=10", "augment=cifar-light"),
    "cifar10-ratio-0.5": (
        "start=zoo:cifar10-at-0.5", "epochs=20", "near.steps=5", "far.steps=5", "lr=0.12",
        "warmup=1", "augment=cifar-light",
    ),
    "cifar10-trades-0.5": ("epochs=20",),
    "cifar10-half-at-0.5": ("epochs=24",),
    "cifar10-three-part-ratio-0.5": (
        "epochs=16", "near.steps=5", "far.steps=5", "augment=cifar-light",
    ),
    "cifar10-plain": ("epochs=40", "augment=cifar-light"),
    "cifar10-oe": ("epochs=32", "augment=cifar-light"),
}  # fmt: skip
"""Recipes and what is changed of them, to make each row in minutes; the longest training first."""

TRAIN, MAIN, LARGE, APART = "train", "main", "large", "apart"
STAGES = (TRAIN, MAIN, LARGE, APART)
PLAN = ((TRAIN, MAIN), (LARGE,), (APART,))
ATTACKS = ("l2:0.5", "l2:1.0")
CALIBRATION = "sample:cifar10-calibration"


def packs(folder: Path, stem: str, name: str) -> str:
    """Both parts of a packed set, by a name to be read on cards."""
    return f"{name}=pack:" + "+".join(f"{folder}/{stem}_part{i}.npz" for i in range(2))


def inside(given: argparse.Namespace) -> str:
    """Images to train on."""
    return packs(given.data, "cifar10_train", "CIFAR-10 train")


def outside(given: argparse.Namespace) -> str:
    """Images of other things."""
    name = "Tiny-ImageNet at 32 pixels without synsets of a CIFAR-10 class"
    return packs(given.data, "tinyimagenet32_out_train", name)


def done(row: str, stage: str, out: Path) -> Path:
    """The file that a finished stage leaves."""
    place = out / "train" / row if stage == TRAIN else out / "audits" / row
    return (place if stage in (TRAIN, MAIN) else place.with_name(f"{row}-{stage}")) / "DONE"


def train_row(row: str, given: argparse.Namespace) -> None:
    """Train a row, or go on with it."""
    folder = done(row, TRAIN, given.out).parent
    train(
        row,
        inside(given),
        out_data=outside(given),
        changes=[*ROWS[row], *given.set],
        out=folder,
        resume=(folder / "run.json").exists(),
        device=given.device,
        cache=given.out / "cache",
    )


def keep(row: str, given: argparse.Namespace) -> None:
    """Pack a finished training: its checkpoint folder and the mark that it is finished."""
    file, mark = given.keep / f"{row}.tar", done(row, TRAIN, given.out)
    if file.exists() or not mark.exists():
        return
    with atomic(file) as part, tarfile.open(part, "w") as packed:
        for path in (*sorted((mark.parent / "model").iterdir()), mark):
            packed.add(path, path.relative_to(mark.parent))


def restore(row: str, given: argparse.Namespace) -> None:
    """Unpack a training that was kept, unless it is there."""
    file, mark = given.keep / f"{row}.tar", done(row, TRAIN, given.out)
    if file.exists() and not mark.exists():
        with tarfile.open(file) as packed:
            packed.extractall(mark.parent, filter="data")


def attack_all(row: str, given: argparse.Namespace) -> None:
    """Attack all test images by `fast`."""
    folder = done(row, LARGE, given.out).parent
    audit(
        [str(given.out / "train" / row / "model")],
        f"cifar10-test=pack:{given.data}/cifar10_test.npz",
        attack=ATTACKS,
        attack_version="fast",
        attack_points=given.large,
        calibrate=CALIBRATION,
        out=folder,
        resume=(folder / "run.json").exists(),
        device=given.device,
    )


def command(row: str, stage: str, given: argparse.Namespace) -> list[str]:
    """What runs a stage as a process of its own."""
    here = Path(__file__)
    common = ["--data", str(given.data), "--device", given.device]
    if stage in (TRAIN, LARGE):
        more = ["--rows", row, "--stage", stage, "--large", str(given.large)]
        more += [text for change in given.set for text in ("--set", change)]
        return [sys.executable, str(here), *common, "--out", str(given.out), *more]
    model, place = given.out / "train" / row / "model", given.out / "audits"
    tool = str(here.with_name("card_audits.py"))
    more = ["--part", stage, "--points", str(given.points), "--out", str(place)]
    return [sys.executable, tool, str(model), *common, *more]


def one(row: str, stage: str, given: argparse.Namespace, began: float) -> bool:
    """Run a stage unless it is finished, and say how it ended."""
    if done(row, stage, given.out).exists():
        return True
    if given.minutes and time.monotonic() - began > 60 * given.minutes:
        print(f"{row} {stage}: no time left", flush=True)
        return False
    log = given.out / "log" / f"{row}-{stage}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    threads = str(max(1, (os.cpu_count() or 1) // given.slots))
    start = time.monotonic()
    with log.open("a") as file:
        code = subprocess.run(
            command(row, stage, given),
            stdout=file,
            stderr=subprocess.STDOUT,
            env={"OMP_NUM_THREADS": threads, **os.environ},
            check=False,
        ).returncode
    end = time.monotonic()
    ended = "done" if code == 0 else f"failed, see {log}"
    print(f"{end - began:5.0f} s  {row} {stage}: {ended} ({end - start:.0f} s)", flush=True)
    return code == 0


def make(given: argparse.Namespace) -> int:
    """All stages of all rows; 1 where one failed."""
    began = time.monotonic()
    if given.keep:
        for row in given.rows:
            restore(row, given)
    if TRAIN in given.only and any(not done(row, TRAIN, given.out).exists() for row in given.rows):
        settings = recipes.load("cifar10-ratio-0.5", given.set)  # decoded once for all
        Sets.open(settings, inside(given), outside(given), given.out / "cache")
    tried = {row: Event() for row in given.rows}

    def job(work: tuple[str, tuple[str, ...]]) -> bool:
        row, planned = work
        stages = [stage for stage in planned if stage in given.only]
        if TRAIN not in planned:  # its training has begun: the plan is worked off in its order
            tried[row].wait()
            if not done(row, TRAIN, given.out).exists():
                return False
        try:
            for stage in stages:
                well = one(row, stage, given, began)
                if stage == TRAIN:
                    tried[row].set()
                    if given.keep:
                        keep(row, given)
                if not well:
                    return False
            return True
        finally:
            tried[row].set()

    jobs = [(row, stages) for stages in PLAN for row in given.rows]
    with ThreadPoolExecutor(given.slots) as pool:
        ended = list(pool.map(job, jobs))
    return 0 if all(ended) else 1


def main() -> int:
    """Make the rows; the exit code is 1 where a stage failed, 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--only", nargs="+", choices=STAGES, default=STAGES, help="these stages")
    parser.add_argument("--keep", type=Path, help="finished trainings, NAME.tar each")
    parser.add_argument("--slots", type=int, default=4, help="processes at a time")
    parser.add_argument("--minutes", type=float, help="start nothing after so long")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--points", type=int, default=1000, help="attacked images of a card")
    parser.add_argument("--large", type=int, default=10_000, help="attacked by `fast`")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--stage", choices=[TRAIN, LARGE], help=argparse.SUPPRESS)
    given = parser.parse_args()
    try:
        if given.stage:
            stage = train_row if given.stage == TRAIN else attack_all
            stage(given.rows[0], given)
            return 0
        return make(given)
    except CounterlensError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
