"""Table 3 of the CGN study from scratch: generators, baselines, classifiers, ablation.

Result (H200, results/cgn_study.json, docs/papers/cgn2021.md): median test accuracy of classifiers
that learnt from 50,000 counterfactuals, seeds 0 to 2: Coloured 96.5 %, Double-coloured 87.0 %,
Wildlife 83.0 %; from the originals 36.9, 9.8, 10.8 %; from both 97.6, 86.4, 80.9 %. Of ten Coloured
seeds 100 of 100 masks are intact at the first try; without a levelled critic 90. Not run: sizes of
Coloured, few originals and a million of Wildlife, the arm with the study's own edge loss, a
levelled critic on the other two sets.
The settings are the defaults of each set; `unlevelled-…` in the results are Coloured runs with
--set level=false --set epochs=18 --set hold=0.6.
Run: python benchmarks/cgn_study.py STAGE --mnist known:mnist@mnist.npz --vgg vgg16.ckpt
     --textures pack:wildlife_textures.npz   (stages: speed, train, table, …, look, keep, figures)

Every stage is resumable: repeat the command after a time limit. The sets of a stage run side by
side as processes on one device, each set's seeds as one stack; output goes to RUNS/*.log.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

SETS = {"coloured": "0-9", "double-coloured": "0-2", "wildlife": "0-2"}
PLAIN = {"plain": "edge=0", "edge": "edge=0.1"}  # the paper's way; the study's, with its edge loss
GAN_EPOCHS = {"coloured": 11, "double-coloured": 13, "wildlife": 13}  # the paper: 40,000 updates
KEPT = ("attempts", "classifiers", "independence", "sizes")
BARS = {"coloured": 0.90, "double-coloured": 0.84, "wildlife": 0.76}


def command(module: str, which: str, out: Path, given: argparse.Namespace, *more: str) -> list[str]:
    """One workflow as a process; an unfinished run is continued."""
    words = [sys.executable, "-u", "-m", f"counterlens.workflows.{module}", which]
    words += ["--mnist", given.mnist, "--out", str(out), "--device", given.device, *more]
    if which == "wildlife" and given.textures:
        words += ["--textures", given.textures]
    return words + (["--resume"] if (out / "run.json").exists() else [])


def side_by_side(jobs: dict[Path, list[str]], minutes: float) -> bool:
    """Run all jobs that are not done; after the time they are asked to stop. Whether all ended."""
    began = time.monotonic()
    running = {}
    for out, words in jobs.items():
        if (out / "DONE").exists():
            continue
        log = (out.parent / f"{out.name}.log").open("a")
        running[out] = subprocess.Popen(words, stdout=log, stderr=log)
    told = 0.0
    while running and time.monotonic() - began < 60 * minutes:
        time.sleep(2)
        running = {out: job for out, job in running.items() if job.poll() is None}
        if time.monotonic() - told > 30:
            told = time.monotonic()
            for out in running:
                print(f"{out.name}: {last_line(out.parent / f'{out.name}.log')}", flush=True)
    for job in running.values():
        job.terminate()
    for job in running.values():
        job.wait()
    for out in jobs:
        state = "done" if (out / "DONE").exists() else "NOT done: repeat the stage"
        print(f"{out.name}: {state}. {last_line(out.parent / f'{out.name}.log')}", flush=True)
    return all((out / "DONE").exists() for out in jobs)


def last_line(log: Path) -> str:
    """The last thing a job said."""
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1][:300] if lines else ""


def words(option: str, values: Iterable[object]) -> list[str]:
    """An option that may be given several times."""
    return [word for value in values for word in (option, str(value))]


def train(given: argparse.Namespace) -> dict[Path, list[str]]:
    """CGNs and GANs of all sets."""
    jobs = {}
    for which, seeds in given.sets.items():
        out = given.runs / f"cgn-{which}"
        more = ["--vgg", given.vgg, "--seeds", seeds, *words("--set", given.changes)]
        jobs[out] = command("cgn_train", which, out, given, *more)
        out = given.runs / f"gan-{which}"
        changes = [f"epochs={GAN_EPOCHS[which]}", *given.gan_changes]
        more = ["--kind", "gan", "--seeds", "0-2", *words("--set", changes)]
        jobs[out] = command("cgn_train", which, out, given, *more)
    return jobs


def plain(given: argparse.Namespace) -> dict[Path, list[str]]:
    """Coloured, one try a seed: without the edge loss, and with it as the study has it."""
    from counterlens.workflows.cgn.settings import PAPERS

    jobs = {}
    for name in given.arms.split(","):
        out = given.runs / f"{name}-coloured"
        changes = [*given.changes, *(f"{k}={v}".lower() for k, v in PAPERS.items()), PLAIN[name]]
        more = ["--vgg", given.vgg, "--seeds", given.plain_seeds, *words("--set", changes)]
        jobs[out] = command("cgn_train", "coloured", out, given, *more)
    return jobs


def table(given: argparse.Namespace) -> dict[Path, list[str]]:
    """Table 3 of each set, 50,000 counterfactuals."""
    jobs = {}
    settings = ["--count", str(given.count), "--epochs", str(given.epochs)]
    for which in given.sets:
        out = given.runs / f"table-{which}"
        sources = ["--cgn", given.runs / f"cgn-{which}", "--gan", given.runs / f"gan-{which}"]
        jobs[out] = command(
            "cgn_evaluate", which, out, given, *map(str, sources), *settings, "--tsne",
            str(given.tsne),
        )  # fmt: skip
    return jobs


def scatter(given: argparse.Namespace) -> dict[Path, list[str]]:
    """Classifiers of the CGNs without new starts: intact masks against accuracy wants bad ones."""
    out = given.runs / "table-plain-coloured"
    sources = words("--cgn", (given.runs / f"{name}-coloured" for name in given.arms.split(",")))
    settings = ["--count", given.count, "--epochs", given.epochs, "--tsne", 0, "--compared", 0]
    return {out: command("cgn_evaluate", "coloured", out, given, *sources, *map(str, settings))}


def ablation(given: argparse.Namespace) -> dict[Path, list[str]]:
    """Sizes × ratios with the first three seeds, and the combined arm with few originals."""
    jobs = {}
    for which in given.sets:
        sources = words("--cgn", (given.runs / f"cgn-{which}" / f"seed-{i}" for i in range(3)))
        sources += ["--epochs", str(given.epochs)]
        out = given.runs / f"few-{which}"
        few = ("--count", str(4 * given.count), "--originals", str(given.originals), "--tsne", "0")
        jobs[out] = command("cgn_evaluate", which, out, given, *sources, *few)
        out = given.runs / f"sizes-{which}"
        jobs[out] = command("cgn_evaluate", which, out, given, *sources, "--sizes", given.sizes)
    return jobs


def million(given: argparse.Namespace) -> dict[Path, list[str]]:
    """A million counterfactuals of ratio 1, the first three seeds, for as many epochs as asked."""
    jobs = {}
    for which in given.sets:
        sources = words("--cgn", (given.runs / f"cgn-{which}" / f"seed-{i}" for i in range(3)))
        out = given.runs / f"million-{which}"
        more = ["--sizes", given.most, "--ratios", "1", "--epochs", str(given.most_epochs)]
        jobs[out] = command("cgn_evaluate", which, out, given, *sources, *more)
    return jobs


STAGES = {
    "train": train, "plain": plain, "table": table, "scatter": scatter, "ablation": ablation,
    "million": million,
}  # fmt: skip


def keep(given: argparse.Namespace) -> None:
    """Copy what is worth keeping, without bulk, and print the table."""
    for run in sorted(p for p in given.runs.iterdir() if (p / "run.json").exists()):
        target = given.to / run.name
        for name in ("run.json", "result.json", "DONE", "report.html"):
            if (run / name).exists():
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy2(run / name, target / name)
        kinds = {"cgn": ("seed-0", "seed-1", "seed-2"), "plain": ("seed-0",), "edge": ("seed-0",)}
        weights = kinds.get(run.name.split("-")[0], ())
        if weights and not (run / weights[0]).exists():  # its first round has not ended
            weights = tuple(f"unfinished/{name}" for name in weights)
        for name in ("tables", "images", *weights):
            if (run / name).is_dir():
                wanted = shutil.ignore_patterns("round-*", "*.pdf")
                shutil.copytree(run / name, target / name, dirs_exist_ok=True, ignore=wanted)
    tables = {
        f"{run.name}/{path.stem}": _rows(path)
        for run in sorted(given.runs.iterdir())
        for path in sorted((run / "tables").glob("*.jsonl"))
        if path.stem in KEPT
    }
    looks = given.runs / "looks.json"
    if looks.exists():
        tables |= {f"{run}/looks": rows for run, rows in json.loads(looks.read_text()).items()}
    (given.to / "cgn_study.json").write_text(json.dumps(tables, indent=0) + "\n")
    for which, bar in BARS.items():
        rows = tables.get(f"table-{which}/classifiers", [])
        for arm in dict.fromkeys(row["arm"] for row in rows):
            values = sorted(row["test"] for row in rows if row["arm"] == arm and row["seed"] < 3)
            middle = values[(len(values) - 1) // 2]
            verdict = f" (bar {bar:.0%}: {middle >= bar})" if arm == "cgn" else ""
            every = " ".join(f"{100 * value:.1f}" for value in values)
            print(f"{which:16} {arm:14} seeds 0-2: median {100 * middle:.1f} of {every}{verdict}")


def _rows(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def asked() -> argparse.Namespace:
    """What came on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=("speed", *STAGES, "look", "keep", "figures"))
    parser.add_argument("--mnist", default="sample:mnist")
    parser.add_argument("--vgg", default="vgg16.ckpt")
    parser.add_argument("--textures")
    parser.add_argument("--sets", default=",".join(SETS), help="some of them, with commas")
    parser.add_argument("--plain-seeds", default="0-4", help="of the trainings without new starts")
    parser.add_argument("--arms", default=",".join(PLAIN), help="of those trainings")
    parser.add_argument("--runs", type=Path, default=Path("runs/cgn"))
    parser.add_argument("--to", type=Path, default=Path("runs/kept"))
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--originals", type=int, default=2000)
    parser.add_argument("--tsne", type=int, default=3840)
    parser.add_argument("--sizes", default="10000,100000")
    parser.add_argument("--most", default="1000000")
    parser.add_argument("--most-epochs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--steps", type=int, default=200, help="timed updates of a speed case")
    parser.add_argument("--masks", type=int, default=500, help="of each digit, in a look")
    parser.add_argument("--digit-classifier-updates", type=int, default=9000, help="of a look")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    parser.add_argument("--gan-set", action="append", default=[], dest="gan_changes", metavar="K=V")
    given = parser.parse_args()
    wanted = given.sets.split(",")
    if unknown := [which for which in wanted if which not in SETS]:
        parser.error(f"--sets has {unknown[0]!r}, expected some of {','.join(SETS)}")
    given.sets = {which: seeds for which, seeds in SETS.items() if which in wanted}
    return given


def main() -> int:
    """One stage; 0 if all of it is done."""
    given = asked()
    given.runs.mkdir(parents=True, exist_ok=True)
    if given.stage == "speed":
        from cgn_speed import speed

        speed(given)
    elif given.stage == "look":
        from cgn_look import look

        look(given)
    elif given.stage == "keep":
        keep(given)
    elif given.stage == "figures":
        from cgn_pictures import draw

        draw(given)
    else:
        return 0 if side_by_side(STAGES[given.stage](given), given.minutes) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
