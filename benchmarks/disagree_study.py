"""Disagreement and neuron pictures with the small generator, at full count, in one go on a GPU.

Claims to be tested: over all classes, ten seeds each, mean of all images as PNG files read back,
one classifier is at least 0.8 sure of the class and the other at most 0.2, both ways; optimised
pictures of at least 15 of 20 units chosen by seed beat the best of all training images and leave
the other units lower.

Result: docs/papers/digin2024.md, "Numbers", and results/disagree_study.json: after temperature
0.92 / 0.09 and 0.88 / 0.08 for plain and RATIO, 0.96 / 0.07 and 0.97 / 0.02 for the zero-shot pair
and plain (n = 100 each); 19 of 20 units.
Run: python benchmarks/disagree_study.py STAGE... --generator FOLDER
     [--first zoo:cifar10-plain-small] [--second zoo:cifar10-ratio-0.25] [--judge SPEC]
     [--persist SPEC] [--clip clip:FOLDER] [--real pack:TEST.npz] [--train pack:A.npz+B.npz]
     [--set updates=30 --set text_rate=0.05] [--out runs/disagree-study]
Stages: sweep  few images under several settings: --arm NAME:updates=30,text_rate=0.05 (repeated)
        pair   the two classifiers, all classes, both ways, with all that is measured
        clip   the zero-shot classifier against the first one
        neurons  --units 20 units of --neurons MODEL, chosen by seed
        all    pair, clip (where given) and neurons (where given)

Every stage can be stopped and repeated: images that are there are not made again. Results go to
OUT/study.json as they come, contact sheets to OUT/*.png.
"""

import argparse
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from counterlens import images
from counterlens.generators.diffusion.optimise import DISAGREEMENT
from counterlens.models import load
from counterlens.models.parts import head
from counterlens.runs import Number, Run, read_json, write_json
from counterlens.workflows._shared.generation.generate import changed
from counterlens.workflows._shared.generation.generator import open_generator
from counterlens.workflows.disagree.numbers import numbers
from counterlens.workflows.disagree.run import disagree, shared_classes
from counterlens.workflows.disagree.search import DisagreeTask, search
from counterlens.workflows.neurons.run import neurons

SWEEP = (  # noise of 0.05 alone fools a plain classifier at 32 pixels: try less
    "paper:",
    "quiet:sigma=0.01",
    "quiet-rate4:sigma=0.01,text_rate=0.1,noise_rate=0.005,clip=none",
    "quiet-rate4-30:sigma=0.01,text_rate=0.1,noise_rate=0.005,clip=none,updates=30",
    "less-rate4-30:sigma=0.02,text_rate=0.1,noise_rate=0.005,clip=none,updates=30",
    "noise-rate4-30:sigma=0.05,text_rate=0.1,noise_rate=0.005,clip=none,updates=30",
    "clipped:sigma=0.02,text_rate=0.1,noise_rate=0.005,updates=30",
)


def say(line: str) -> None:
    print(line, flush=True)


def keep(given: argparse.Namespace, stage: str, found: dict[str, Any]) -> None:
    """Add to study.json at once."""
    path = given.out / "study.json"
    before = read_json(path) if path.exists() else {}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    write_json(path, {**before, stage: {"device": device, "torch": torch.__version__, **found}})


def plain(found: dict[str, Number]) -> dict[str, Any]:
    return {key: [number.value, number.low, number.high, number.n] for key, number in found.items()}


def sweep(given: argparse.Namespace) -> None:
    """Mean confidences of few images per class under several settings."""
    pair = (load(given.first, device=given.device), load(given.second, device=given.device))
    wanted, _ = shared_classes(pair, given.classes)
    model = open_generator(given.generator, pair[0].mean.device, half=given.half)
    rows: dict[str, Any] = {}
    say(f"{'arm':14} {'way':7} p_up  p_down  apart  after jpeg/noise/shift  seconds")
    for arm in given.arm or SWEEP:
        name, _, text = arm.partition(":")
        changes = [one for one in text.split(",") if one]
        folder = given.out / "sweep" / name
        shutil.rmtree(folder, ignore_errors=True)
        run = Run.create(folder, "disagree", {"arm": arm})
        settings = changed(DISAGREEMENT, [*given.changes, *changes])
        task = DisagreeTask(
            run, model, (), settings, given.few, given.seed, given.memory, lambda line: None,
            logarithms=given.score == "logarithms",
        )  # fmt: skip
        began = time.monotonic()
        found = numbers(search(task, pair, wanted), [])
        took = time.monotonic() - began
        rows[name] = {"settings": text, "seconds": took, "numbers": plain(found)}
        for way in ("first", "second"):
            key = f"disagree.{way}"
            gaps = [n.value for k, n in found.items() if k.startswith(f"{key}.gap_")]
            say(f"{name:14} {way:7} {found[f'{key}.p_up'].value:.2f}  "
                f"{found[f'{key}.p_down'].value:.2f}    {found[f'{key}.succeeded'].value:.2f}   "
                f"{' / '.join(f'{gap:.2f}' for gap in gaps):22} {took:.1f}")  # fmt: skip
        sheets(given, run, f"sweep-{name}", [one.word for one in wanted], given.few)
        keep(given, "sweep", rows)


def sheets(
    given: argparse.Namespace, run: Run, name: str, words: Sequence[str], count: int
) -> None:
    """Found images of each way and the starts: a row per class."""
    for kind, suffix in (("first", ""), ("second", ""), ("first", "-start")):
        found = [
            images.read(path)
            for word in words
            for i in range(count)
            if (path := run.folder / "images" / f"{kind}-{word.replace(' ', '_')}-{i:02d}"
                f"{suffix}.png").exists()
        ]  # fmt: skip
        if found:
            which = "start" if suffix else kind
            big = [one.repeat(2, 0).repeat(2, 1) if one.shape[0] < 64 else one for one in found]
            path = given.out / f"{name}-{which}.png"
            images.write_png(path, images.tile(big, columns=count))


def pair(given: argparse.Namespace, stage: str, first: str, second: str) -> None:
    """The whole search of two classifiers, with everything that is measured."""
    folder = given.out / stage
    began = time.monotonic()
    if not (folder / "DONE").exists():
        disagree(
            first, second, classes=given.classes, count=given.count, generator=given.generator,
            verify=given.real, judge=given.judge, persist=given.persist if stage == "pair" else (),
            changes=given.changes, score=given.score, memory=given.memory, half=given.half,
            out=folder, resume=(folder / "run.json").exists(), seed=given.seed,
            device=given.device,
        )  # fmt: skip
    took = time.monotonic() - began
    run = Run.open(folder)
    rows = run.table("disagreements")
    words = list(dict.fromkeys(row["class"] for row in rows))
    sheets(given, run, stage, words, given.count)
    found = run.numbers
    for way in ("first", "second"):
        key = f"disagree.{way}"
        up, down = found[f"{key}.p_up"], found[f"{key}.p_down"]
        met = up.value >= 0.8 and down.value <= 0.2
        say(f"{stage}, {way} raised: p_up {up.value:.3f}, p_down {down.value:.3f}, apart "
            f"{found[f'{key}.succeeded'].value:.2f}, n {up.n}; bars met: {met}")  # fmt: skip
        for name, number in found.items():
            if name.startswith((f"{key}.gap_", f"{key}.sides_")) or name == f"{key}.real":
                shown = [v if v is None else round(v, 3) for v in plain({"": number})[""]]
                say(f"  {name} {shown}")
    say(f"{run.manifest.get('verdict', 'no real images were given')}\n{took:.1f} s")
    by_class = {
        f"{word} {way}": [
            sum(row[key] for row in part) / len(part) for key in ("p_up", "p_down", "succeeded")
        ]
        for word in words
        for way in ("first", "second")
        if (part := [row for row in rows if row["class"] == word and row["way"] == way])
    }
    keep(given, stage, {
        "first": first, "second": second, "settings": given.changes, "seconds": took,
        "verdict": run.manifest.get("verdict"), "by_class": by_class, "numbers": plain(found),
        "drawable": [{k: r[k] for k in ("class", "word", "agreement")}
                     for r in run.table("drawable")],
    })  # fmt: skip


def units(given: argparse.Namespace) -> None:
    """Pictures of units chosen by seed, against the best of all training images."""
    net = load(given.neurons, device="cpu")
    width = head(net).in_features
    order = torch.randperm(width, generator=torch.Generator().manual_seed(given.seed))
    chosen = sorted(order[: given.units].tolist())
    folder = given.out / "neurons"
    began = time.monotonic()
    if not (folder / "DONE").exists():
        neurons(
            given.neurons, unit=chosen, method="diffusion", data=given.train,
            generator=given.generator, count=given.pictures, memory=given.memory,
            changes=given.neuron_changes, out=folder, resume=(folder / "run.json").exists(),
            seed=given.seed, device=given.device,
        )  # fmt: skip
    took = time.monotonic() - began
    run = Run.open(folder)
    rows = run.table("neurons")
    table = {}
    for unit in chosen:
        mine = [row for row in rows if row["unit"] == unit]
        made = [row["activation"] for row in mine if row["how"] == "optimised"]
        table[unit] = {
            "optimised": sum(made) / len(made), "highest": max(made),
            **{row["how"]: row["activation"] for row in mine if row["how"] != "optimised"},
            "word": mine[-1]["word"],
        }  # fmt: skip
        say(f"unit {unit:4}: {json.dumps(table[unit])}")
    for key, number in run.numbers.items():
        say(f"{key}: {round(number.value * number.n)} of {number.n}")
    say(f"{took:.1f} s")
    for name in ("figure-000", "figure-cross"):
        path = run.folder / "images" / f"{name}.png"
        if path.exists():
            shutil.copy2(path, given.out / f"neurons-{name}.png")
    keep(given, "neurons", {
        "model": given.neurons, "units": chosen, "settings": given.neuron_changes,
        "seconds": took, "table": table, "numbers": plain(run.numbers),
    })  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "stages", nargs="+", choices=("sweep", "pair", "clip", "neurons", "all"), metavar="STAGE"
    )
    parser.add_argument("--generator")
    parser.add_argument("--first", default="zoo:cifar10-plain-small")
    parser.add_argument("--second", default="zoo:cifar10-ratio-0.25")
    parser.add_argument("--judge", action="append", default=[])
    parser.add_argument("--persist", action="append", default=[])
    parser.add_argument("--clip")
    parser.add_argument("--real")
    parser.add_argument("--train")
    parser.add_argument("--neurons", default="zoo:cifar10-plain-small")
    parser.add_argument("--units", type=int, default=20)
    parser.add_argument("--pictures", type=int, default=4)
    parser.add_argument("--class", dest="classes", action="append", default=[])
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--few", type=int, default=2, help="images per class in a sweep")
    parser.add_argument("--arm", action="append", metavar="NAME:K=V,K=V")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="K=V")
    parser.add_argument("--neuron-set", dest="neuron_changes", action="append", default=[],
                        metavar="K=V")  # fmt: skip
    parser.add_argument("--score", default="logarithms", choices=("difference", "logarithms"))
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--memory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/disagree-study"))
    given = parser.parse_args()
    given.classes = given.classes or ["all"]
    return given


def main() -> None:
    given = arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    stages = ["pair", "clip", "neurons"] if "all" in given.stages else given.stages
    for stage in stages:
        if stage == "sweep":
            sweep(given)
        elif stage == "pair":
            pair(given, "pair", given.first, given.second)
        elif stage == "clip" and (given.clip or "all" not in given.stages):
            if not given.clip:
                raise SystemExit("the stage clip needs --clip clip:FOLDER")
            pair(given, "clip", given.clip, given.first)
        elif stage == "neurons":
            units(given)


if __name__ == "__main__":
    main()
