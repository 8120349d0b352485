"""Table 3 of the CGN study from scratch: generators, baselines, classifiers, ablation.

Result: not run yet.
Run: python benchmarks/cgn_study.py STAGE --mnist known:mnist@mnist.npz --vgg vgg16.ckpt
     --textures pack:wildlife_textures.npz        (stages: speed, train, table, …, keep)

Every stage is resumable: repeat the command after a time limit. The sets of a stage run side by
side as processes on one device, each set's seeds as one stack; output goes to RUNS/*.log.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

SETS = {"coloured": "0-9", "double-coloured": "0-2", "wildlife": "0-2"}
PAPERS_WAY = ["--set", "edge=0", "--set", "border_start=false", "--set", "attempts=1"]
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


def train(given: argparse.Namespace, *, edge: bool = True) -> dict[Path, list[str]]:
    """Generators of all sets; or, the papers' way, Coloured alone, once per seed."""
    jobs = {}
    for which, seeds in given.sets.items():
        if not edge and which != "coloured":
            continue
        changes = [word for one in given.changes for word in ("--set", one)]
        changes += [] if edge else PAPERS_WAY
        out = given.runs / (f"cgn-{which}" if edge else f"plain-{which}")
        jobs[out] = command(
            "cgn_train", which, out, given, "--vgg", given.vgg, "--seeds", seeds, *changes
        )
        if edge:
            out = given.runs / f"gan-{which}"
            jobs[out] = command("cgn_train", which, out, given, "--kind", "gan", "--seeds", "0-2")
    return jobs


def table(given: argparse.Namespace) -> dict[Path, list[str]]:
    """Table 3 of each set, 50,000 counterfactuals."""
    jobs = {}
    for which in given.sets:
        out = given.runs / f"table-{which}"
        sources = [
            "--cgn",
            str(given.runs / f"cgn-{which}"),
            "--gan",
            str(given.runs / f"gan-{which}"),
        ]
        jobs[out] = command(
            "cgn_evaluate", which, out, given, *sources, "--count", str(given.count)
        )
    without = given.runs / "plain-coloured"
    if (
        "coloured" in given.sets and (without / "DONE").exists()
    ):  # intact masks against accuracy wants some that are not
        out = given.runs / "table-plain-coloured"
        jobs[out] = command(
            "cgn_evaluate", "coloured", out, given, "--cgn", str(without), "--tsne", "0"
        )
    return jobs


def ablation(given: argparse.Namespace) -> dict[Path, list[str]]:
    """Sizes × ratios with the first three seeds, and the combined arm with few originals."""
    jobs = {}
    for which in given.sets:
        folder = given.runs / f"cgn-{which}"
        sources = [word for i in range(3) for word in ("--cgn", str(folder / f"seed-{i}"))]
        out = given.runs / f"sizes-{which}"
        jobs[out] = command("cgn_evaluate", which, out, given, *sources, "--sizes", given.sizes)
        out = given.runs / f"few-{which}"
        few = ("--count", "200000", "--originals", "2000", "--tsne", "0")
        jobs[out] = command("cgn_evaluate", which, out, given, *sources, *few)
    return jobs


def keep(given: argparse.Namespace) -> None:
    """Copy what is worth keeping, without bulk, and print the table."""
    for run in sorted(p for p in given.runs.iterdir() if (p / "run.json").exists()):
        target = given.to / run.name
        for name in ("run.json", "result.json", "DONE", "report.html"):
            if (run / name).exists():
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy2(run / name, target / name)
        weights = () if run.name.startswith("gan") else ("seed-0", "seed-1", "seed-2")
        for name in ("tables", "images", *weights):
            if (run / name).is_dir():
                wanted = shutil.ignore_patterns("round-*", "*.pdf")
                shutil.copytree(run / name, target / name, dirs_exist_ok=True, ignore=wanted)
    for which, bar in BARS.items():
        rows = _rows(given.runs / f"table-{which}" / "tables" / "classifiers.jsonl")
        for arm in dict.fromkeys(row["arm"] for row in rows):
            values = sorted(row["test"] for row in rows if row["arm"] == arm)
            middle = values[(len(values) - 1) // 2]
            verdict = f" (bar {bar:.0%}: {middle >= bar})" if arm == "cgn" else ""
            every = " ".join(f"{100 * value:.1f}" for value in values)
            print(f"{which:16} {arm:14} median {100 * middle:.1f} of {every}{verdict}")


def _rows(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> int:
    """One stage; 0 if all of it is done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=("speed", "train", "plain", "table", "ablation", "keep"))
    parser.add_argument("--mnist", default="sample:mnist")
    parser.add_argument("--vgg", default="vgg16.ckpt")
    parser.add_argument("--textures")
    parser.add_argument("--sets", default=",".join(SETS), help="some of them, with commas")
    parser.add_argument("--runs", type=Path, default=Path("runs/cgn"))
    parser.add_argument("--to", type=Path, default=Path("runs/kept"))
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--sizes", default="10000,100000,1000000")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--steps", type=int, default=200, help="timed updates of a speed case")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    given = parser.parse_args()
    wanted = given.sets.split(",")
    if unknown := [which for which in wanted if which not in SETS]:
        parser.error(f"--sets has {unknown[0]!r}, expected some of {','.join(SETS)}")
    given.sets = {which: seeds for which, seeds in SETS.items() if which in wanted}
    given.runs.mkdir(parents=True, exist_ok=True)
    if given.stage == "speed":
        from cgn_speed import speed

        speed(given)
        return 0
    if given.stage == "keep":
        keep(given)
        return 0
    jobs = {
        "train": lambda: train(given),
        "plain": lambda: train(given, edge=False),
        "table": lambda: table(given),
        "ablation": lambda: ablation(given),
    }[given.stage]()
    if given.stage != "ablation":
        return 0 if side_by_side(jobs, given.minutes) else 1
    until = time.monotonic() + 60 * given.minutes
    done = True
    for which in given.sets:  # one set at a time: a million pictures of 12 classifiers are 37 GB
        part = {out: words for out, words in jobs.items() if out.name.split("-", 1)[1] == which}
        left = (until - time.monotonic()) / 60
        done = left > 0.2 and side_by_side(part, left) and done
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
