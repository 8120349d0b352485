"""Is a pixel counterfactual class evidence or noise? Independent classifiers say what they see.

Claims to be tested: 200 CIFAR-10 test images, a seeded class neither true nor predicted, l2 1.5,
APGD 500 steps, 8-bit PNGs read back from disk. One judge sees the target in 60 % or more of the
pictures that cifar10-ratio-0.25 made and in 20 % or less of those a plain model made.

The judge that decides, fixed before any of the candidates was trained:
  1. it is no guide, and no picture was made with it; its training run is another one;
  2. it answers at least 90 % of the 10,000 test images right;
  3. it answers at least 85 % right when they carry Gaussian noise as long as the budget (l2 1.5):
     small noise that means nothing does not fool it.
  The first of DECIDING that meets all three decides; it must be the same for all guides. When none
  does, no claim is made. Every judge asked is reported, whatever it says.
Known before (60 steps, 100 images): an adversarially trained judge (l2 0.5) sees the target in 23 %
of RATIO's pictures, plain ones in 58 to 67 %, but plain ones also see it in 99 % of another plain
model's noise. That is why the candidates are trained with random noise (cifar10-noise-judge) or
against a small budget (cifar10-at-0.1). Judges that average their answer over noise draws
(`--smooth`) are listed, too.

Result (H200, results/evidence_study.json, n = 200 each): cifar10-noise-judge meets the rule and
decides (90.1 % clean, 90.1 % under noise). It sees the target in 11.5 % [7.8, 16.7] and 4.5 %
[2.4, 8.3] of the pictures that two plain models made: 20 % or less, as claimed. For RATIO the claim
of 60 % fails: the first weights of cifar10-ratio-0.25 56.5 % [49.6, 63.2], cifar10-ratio-small
56.0 % [49.1, 62.7]; on the next 200 images (`--skip 200`) 53.0 and 62.0 %. Training on makes it
worse: 53.5, 48.0 and, as shipped now, 47.0 % [40.2, 53.9] (the last on a CPU).
They answer their own target in 51.5 to 61.0 % only. cifar10-at-0.5: 64.0 % [57.1, 70.3]. The best
of four searches gave 57.5 and 56.0 %, from still wider balls 57.0 and 55.5 %: not worth an option.
Before the search began in wider balls all were 5 to 6 points lower; three more RATIO models were
tried then (40.5 to 52.0 %).
Averaging an ordinary judge over noise is no way out: with sigma 0.1 a plain one answers only 19.5
% [17.2, 22.1] of 1,000 clean images right.
Run: python benchmarks/evidence_study.py --data pack:cifar10_test.npz --out DIR
     [--guide NAME=SPEC ...] [--judge NAME=SPEC ...] [--smooth SIGMA ...] [--count 200]
     [--steps 500] [--minutes 5] [--device auto]
Results are in DIR/evidence_study.json as they come. Pictures lie in DIR/GUIDE-…/ and are not made
again, so judges can be added later.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterlens.classifier import Classifier, pick_device
from counterlens.data import open_set
from counterlens.explanations.counterfactuals.pixel import (
    confidences,
    counterfactuals,
    size_of,
    temperature_of,
)
from counterlens.explanations.counterfactuals.targets import seeded
from counterlens.images import read, write_png
from counterlens.metrics.intervals.closed_form import wilson
from counterlens.models import load
from counterlens.models.weights import weights_hash
from counterlens.runs import key_part, write_json

DECIDING = ("cifar10-noise-judge", "cifar10-at-0.1")
GUIDES = ("zoo:cifar10-plain-small", "zoo:cifar10-ratio-small", "zoo:cifar10-ratio-0.25")
JUDGES = (*GUIDES, "zoo:cifar10-at-0.5")
RADIUS, SURE, DRAWS, ACCURATE, STEADY = 1.5, 0.9, 32, 0.90, 0.85


@dataclass(frozen=True)
class Judge:
    """Who is asked: a classifier, perhaps averaged over noise."""

    name: str
    net: Classifier
    sigma: float = 0.0

    def answers(self, x: Tensor) -> Tensor:
        """The class each image is taken for; noise is drawn anew from a fixed seed."""
        rng = torch.Generator().manual_seed(0)
        found = []
        for part in torch.split(x, 250):
            if not self.sigma:
                found.append(confidences(self.net, part).argmax(1))
                continue
            total = torch.zeros(len(part), len(self.net.classes))
            for _ in range(DRAWS):
                noise = self.sigma * torch.randn(part.shape, generator=rng)
                total += confidences(self.net, (part + noise).clamp(0, 1))
            found.append(total.argmax(1))
        return torch.cat(found)


def named(text: str, device: str) -> tuple[str, Classifier]:
    """The classifier of NAME=SPEC or SPEC."""
    name, given, spec = text.rpartition("=")
    net = load(spec, device=device)
    return (name if given else net.name), net


def pixels(spec: str, count: int | None = None, skip: int = 0) -> tuple[Tensor, Tensor, list[str]]:
    """The first images of a set, or those after some, their labels and ids."""
    images = open_set(spec)
    rows = range(skip, min(skip + (count or len(images)), len(images)))
    x = torch.from_numpy(np.stack([images.read(i) for i in rows])).permute(0, 3, 1, 2)
    y = torch.from_numpy(images.labels[rows.start : rows.stop])
    return x.float().div(255).contiguous(), y, [str(images.ids[i]) for i in rows]


def made(
    guide: Classifier, x: Tensor, target: Sequence[int], folder: Path, steps: int
) -> tuple[Tensor, dict[str, Any]]:
    """The guide's pictures, read back from their files, and whether they keep their budget."""
    paths = [folder / f"{i:03d}.png" for i in range(len(x))]
    began = time.monotonic()
    fresh = not all(path.exists() for path in paths)
    if fresh:
        found = counterfactuals(guide, x, [[t] for t in target], radii=[RADIUS], steps=steps)
        for path, point in zip(paths, found.points, strict=True):
            write_png(path, point)
    z = torch.stack([torch.from_numpy(read(p)).permute(2, 0, 1) for p in paths]).float() / 255
    lengths = [
        size_of(((b - a).double() * 255).round().numpy(), "l2") for a, b in zip(x, z, strict=True)
    ]
    facts: dict[str, Any] = {"longest": max(lengths), "inside": max(lengths) <= RADIUS}
    if fresh:
        facts["seconds"] = round(time.monotonic() - began, 1)
        facts["same_as_searched"] = bool(torch.equal(z, found.points))
    return z, facts


def share(flags: Tensor) -> dict[str, Any]:
    """How many, with a 95 % Wilson interval."""
    hits, n = int(flags.sum()), len(flags)
    low, high = wilson(hits, n)
    return {"value": hits / n, "low": low, "high": high, "n": n}


def trial(judge: Judge, x: Tensor, y: Tensor) -> dict[str, Any]:
    """What the rule asks of a judge: accuracy, clean and under noise as long as the budget."""
    rng = torch.Generator().manual_seed(1)
    noise = torch.randn(x.shape, generator=rng)
    noise *= RADIUS / noise.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    clean = share(judge.answers(x) == y)
    noisy = share(judge.answers((x + noise).clamp(0, 1)) == y)
    meets = clean["value"] >= ACCURATE and noisy["value"] >= STEADY
    return {"clean": clean, "noisy": noisy, "meets": bool(meets), "smoothed": judge.sigma}


def decided(results: dict[str, Any]) -> str | None:
    """The judge the rule names; the trial of each must be in the results."""
    guides = set(results["guides"])
    fit = [j for j in DECIDING if results["judges"].get(j, {}).get("meets") and j not in guides]
    return fit[0] if fit else None


def study(given: argparse.Namespace) -> dict[str, Any]:
    """Make the pictures of every guide and ask every judge about them."""
    began = time.monotonic()
    device = str(pick_device(given.device))
    x, y, ids = pixels(given.data, given.count, given.skip)
    all_x, all_y, _ = pixels(given.data, given.trial)
    guides = dict(named(text, device) for text in given.guide or GUIDES)
    judges = [Judge(*named(text, device)) for text in given.judge or JUDGES]
    judges += [Judge(f"{j.name}~{s:g}", j.net, s) for s in given.smooth for j in judges]
    path = Path(given.out) / "evidence_study.json"
    results: dict[str, Any] = {
        "protocol": f"l2 {RADIUS}, APGD {given.steps} steps, {len(x)} images from {given.skip} of "
        f"{given.data}",
        "device": device, "rule": list(DECIDING), "guides": {}, "judges": {},
    }  # fmt: skip

    def keep(line: str) -> None:
        results["decides"] = decided(results)
        write_json(path, results)
        print(f"[{time.monotonic() - began:6.1f} s] {line}", flush=True)

    views: dict[str, tuple[Tensor, Tensor]] = {}
    for name, net in guides.items():
        before = confidences(net, x).argmax(1)
        target = [
            seeded(10, {int(a), int(b)}, f"{given.seed} {i}")[0]
            for i, a, b in zip(ids, y, before, strict=True)
        ]
        heat, mark = temperature_of(net), weights_hash(net)[:8]
        marks = f"{mark}-{heat:.4g}-{given.steps}-{given.seed}-{given.skip}"
        folder = Path(given.out) / f"{key_part(name)}-{marks}"
        folder.mkdir(parents=True, exist_ok=True)
        z, facts = made(net, x, target, folder, given.steps)
        wanted = torch.tensor(target)
        probs = confidences(net, z)
        own = probs.gather(1, wanted[:, None])[:, 0]
        results["guides"][name] = {
            "temperature": heat, **facts,
            "reached": share(probs.argmax(1) == wanted), "sure": share(own >= SURE), "judged": {},
        }  # fmt: skip
        views[name] = z, wanted
        row = results["guides"][name]
        keep(f"{name}: reached {row['reached']['value']:.1%}, sure {row['sure']['value']:.1%}")
    for judge in judges:
        if time.monotonic() - began > 60 * given.minutes:
            keep("out of time")
            break
        start = judge.answers(x)
        for name, (z, wanted) in views.items():
            if guides[name] is judge.net or name == judge.name.partition("~")[0]:
                continue
            seen = judge.answers(z) == wanted
            row = results["guides"][name]["judged"]
            row[judge.name] = share(seen) | {"before": share(start == wanted)["value"]}
            keep(f"{judge.name} sees {name}'s target in {row[judge.name]['value']:.1%}")
        some = 1000 if judge.sigma else len(all_x)  # a smoothed one asks 32 times and never decides
        results["judges"][judge.name] = trial(judge, all_x[:some], all_y[:some])
        one = results["judges"][judge.name]
        keep(f"{judge.name}: clean {one['clean']['value']:.1%}, noise {one['noisy']['value']:.1%}")
    return results


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="sample:cifar10")
    parser.add_argument("--out", required=True)
    parser.add_argument("--guide", action="append")
    parser.add_argument("--judge", action="append")
    parser.add_argument("--smooth", action="append", type=float, default=[])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--skip", type=int, default=0, help="images left out first, to choose on")
    parser.add_argument("--trial", type=int, help="images of the judges' trial; default: all")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--device", default="auto")
    found = study(parser.parse_args())
    judge = found["decides"]
    print(f"judge by the rule: {judge or 'none'}")
    for name, row in found["guides"].items():
        said = row["judged"].get(judge)
        if said:
            print(f"  {name}: {said['value']:.1%} [{said['low']:.1%}, {said['high']:.1%}]")


if __name__ == "__main__":
    main()
