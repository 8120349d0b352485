"""Train the models of Table 1 that are not shipped and audit them, several at a time on one GPU.

    python tools/make_zoo.py --data DIR --out DIR [--rows NAME ...] [--only STAGE ...] [--keep DIR]
        [--pack FILE] [--slots 4] [--minutes M]

DIR of `--data` has cifar10_train_part0.npz and _part1.npz, cifar10_test.npz, the out-distribution
tinyimagenet32_out_train_part0.npz and _part1.npz, and the sets of card_audits.py. Of each row of
ROWS comes OUT/train/NAME, a training run; of these and of the shipped models OUT/audits/NAME and
NAME-PART, the parts of card_audits.py, and OUT/audits/cards/NAME.json. Of shipped models, whose
cards have the rest, only what STAGES_OF_SHIPPED says is audited. Stages are worked off for all rows
in the order of `--only`, by default in the order of need. Each stage is a process of its own, its
output OUT/log/NAME-STAGE.txt. Repeat the command to go on where it was stopped: what is finished
stays. `--keep DIR` writes each finished training (weights in half precision and card) to
DIR/NAME.tar, and begins by unpacking those that DIR has, so that models trained on one machine are
audited on another. `--pack FILE` ends with one archive of what is finished: cards, the points that
benchmarks/zoo_orderings.py compares, results and logs; `--only` without a stage packs alone. Needs
torch, not the command line.
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

from card_audits import APART, FAST, FAST_FAR, MAIN, SEEN, WHOLE, place
from counterlens.errors import CounterlensError, InputError
from counterlens.runs import atomic
from counterlens.workflows.train import recipes
from counterlens.workflows.train.datasets import Sets
from counterlens.workflows.train.run import train

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

TRAIN = "train"
STAGES = (TRAIN, MAIN, APART, WHOLE, FAST, FAST_FAR)
STAGES_OF_SHIPPED: dict[str, tuple[str, ...]] = {
    "cifar10-ratio-0.25": (WHOLE, APART),
    "cifar10-at-0.5": (WHOLE, APART),
    "cifar10-ratio-small": (APART,),
    "cifar10-plain-small": (APART,),
}


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


def stages_of(row: str) -> tuple[str, ...]:
    """The stages that a row has."""
    return STAGES_OF_SHIPPED.get(row, (TRAIN, MAIN, APART, FAST, FAST_FAR))


def done(row: str, stage: str, out: Path) -> Path:
    """The file that a finished stage leaves."""
    return (out / TRAIN / row if stage == TRAIN else place(row, stage, out / "audits")) / "DONE"


def ready(row: str, out: Path) -> bool:
    """Whether the model of a row is there to be audited."""
    return row in STAGES_OF_SHIPPED or done(row, TRAIN, out).exists()


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


def command(row: str, stage: str, given: argparse.Namespace) -> list[str]:
    """What runs a stage as a process of its own."""
    here = Path(__file__)
    common = ["--data", str(given.data), "--device", given.device]
    if stage == TRAIN:
        more = ["--rows", row, "--stage", stage]
        more += [text for change in given.set for text in ("--set", change)]
        return [sys.executable, str(here), *common, "--out", str(given.out), *more]
    model = row if row in STAGES_OF_SHIPPED else str(given.out / TRAIN / row / "model")
    more = ["--part", stage, "--points", str(given.points), "--most", str(given.most)]
    tool = str(here.with_name("card_audits.py"))
    return [sys.executable, tool, model, *common, *more, "--out", str(given.out / "audits")]


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
    jobs = [(row, stage) for stage in given.only for row in given.rows if stage in stages_of(row)]
    training = {row: Event() for row, stage in jobs if stage == TRAIN}
    if any(not done(row, TRAIN, given.out).exists() for row in training):
        settings = recipes.load("cifar10-ratio-0.5", given.set)  # decoded once for all
        Sets.open(settings, inside(given), outside(given), given.out / "cache")

    def job(work: tuple[str, str]) -> bool:
        row, stage = work
        if stage == TRAIN:
            try:
                well = one(row, stage, given, began)
                if given.keep:
                    keep(row, given)
            finally:
                training[row].set()
            return well
        if row in training:  # it has begun: jobs are worked off in their order
            training[row].wait()
        return ready(row, given.out) and one(row, stage, given, began)

    first = sorted(jobs, key=lambda work: work[1] != TRAIN)
    with ThreadPoolExecutor(given.slots) as pool:
        ended = list(pool.map(job, first))
    if given.pack:
        pack(given)
    return 0 if all(ended) else 1


def pack(given: argparse.Namespace) -> None:
    """One archive of what is finished: cards, points, results and logs, but no images."""
    out = given.out
    stored = [
        Path(__file__).parents[1] / "benchmarks" / "results" / "points" / f"{row}.npz"
        for row in (name.removeprefix("cifar10-") for name in STAGES_OF_SHIPPED)
    ]
    audits = sorted(mark.parent for mark in (out / "audits").glob("*/DONE"))
    tool = Path(__file__).parents[1] / "benchmarks" / "zoo_orderings.py"
    asked = [*audits, *stored, "--keep", out / "points"]
    asked += ["--seen", SEEN] if any(path.name.endswith(f"-{APART}") for path in audits) else []
    log = out / "log" / "orderings.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        subprocess.run(
            [sys.executable, tool, *asked, "--out", out / "orderings.json"],
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    found = [out / "orderings.json", *out.glob("points/*.npz"), *out.glob("audits/cards/*.json")]
    found += [*out.glob("log/*.txt"), *out.glob("audits/*/r*.json"), *out.glob("train/*/run.json")]
    with atomic(given.pack) as part, tarfile.open(part, "w:gz") as packed:
        for path in sorted(path for path in found if path.exists()):
            packed.add(path, path.relative_to(out))


def main() -> int:
    """Make the rows; the exit code is 1 where a stage failed, 2 on bad input."""
    rows = [*ROWS, *STAGES_OF_SHIPPED]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", nargs="+", choices=rows, default=rows)
    parser.add_argument("--only", nargs="*", default=STAGES, help=f"of {', '.join(STAGES)}")
    parser.add_argument("--keep", type=Path, help="finished trainings, NAME.tar each")
    parser.add_argument("--pack", type=Path, help="an archive of cards, points, results and logs")
    parser.add_argument("--slots", type=int, default=4, help="processes at a time")
    parser.add_argument("--minutes", type=float, help="start nothing after so long")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--points", type=int, default=1000, help="attacked images of a card")
    parser.add_argument("--most", type=int, default=10_000, help="attacked images of any part")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--stage", choices=[TRAIN], help=argparse.SUPPRESS)
    given = parser.parse_args()
    try:
        unknown = [stage for stage in given.only if stage not in STAGES]
        if unknown:
            raise InputError(f"got --only {unknown[0]}, expected some of {', '.join(STAGES)}.")
        if given.stage:
            train_row(given.rows[0], given)
            return 0
        return make(given)
    except CounterlensError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
