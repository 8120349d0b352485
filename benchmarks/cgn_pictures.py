"""The figures of the CGN study, from what `cgn_study.py` left.

Result: docs/papers/images/cgn-figure*.png, shown in docs/papers/cgn2021.md.
Run: python benchmarks/cgn_study.py figures --runs runs/kept --to runs/figures        (and the data)

Figure 1: originals beside counterfactuals, three sets. Figure 4 (d): mean IoU by arm. Figure 6:
masks without the edge loss and with it. Figure 7: how many trainings have how many intact digits,
and their classifiers' accuracy. Figures 3, 4 and 10 are those of the runs' own reports, side by
side.
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image

from counterlens.data.synthetic.digit_factors import open_digits
from counterlens.data.synthetic.mnist_variants import variant
from counterlens.explanations.figure import canvas
from counterlens.generators.cgn import model as cgn
from counterlens.images import tile, write_png
from counterlens.workflows.cgn.generate import make_shard

HOW = {
    "plain-coloured": "no edge loss",
    "edge-coloured": "edge loss of the study",
    "unlevelled-coloured": "edge loss 1, border start, rate falls",
    "cgn-coloured": "and a levelled critic",
}


def draw(given: argparse.Namespace) -> None:
    """All figures whose runs are there."""
    given.to.mkdir(parents=True, exist_ok=True)
    samples(given)
    masks(given)
    counts(given)
    overlaps(given)
    scatter(given)
    reports(given)


def told(path: Path) -> None:
    """Say what was drawn."""
    print(path, flush=True)


def samples(given: argparse.Namespace) -> None:
    """Figure 1: for each set a row of ten originals, two of counterfactuals."""
    digits = open_digits(given.mnist)
    cells: list[Any] = []
    for which in given.sets:
        folder = given.runs / f"cgn-{which}" / "seed-0"
        if not folder.is_dir():
            continue
        data = variant(which, "train", digits, textures=given.textures)
        pixels, labels = data.pixels(), data.labels
        rows = [int((labels == digit).nonzero()[0]) for digit in range(10)]
        shard = make_shard(cgn.load(folder)[0], 0, 300)
        first = [pixels[row] for row in rows]
        made = [
            [shard.x[(shard.y == digit).nonzero()[k, 0]] for digit in range(10)] for k in range(2)
        ]
        for line in (first, *made):
            cells += [one.permute(1, 2, 0).cpu().numpy() for one in line]
    if cells:
        write_png(given.to / "figure-1.png", large(tile(cells, columns=10)))
        told(given.to / "figure-1.png")


@torch.no_grad()
def masks(given: argparse.Namespace) -> None:
    """Figure 6: masks of ten digits and the pictures they make, one pair of rows a training."""
    cells: list[Any] = []
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(10, 1, cgn.NOISE, generator=generator)
    y, places = torch.arange(10)[:, None], torch.rand(10, 1, 2, cgn.PLACES, generator=generator)
    for name in HOW:
        folder = given.runs / name / "seed-0"
        if not folder.is_dir():
            continue
        net, _ = cgn.load(folder)
        mask, front, behind = net(u, y, places)
        whole = cgn.compose(mask, front, behind)
        for picture in (mask.expand(-1, -1, 3, -1, -1), (whole + 1) / 2):
            pixels = (picture[:, 0].clamp(0, 1) * 255).round().to(torch.uint8)
            cells += [one.permute(1, 2, 0).numpy() for one in pixels]
    if cells:
        write_png(given.to / "figure-6.png", large(tile(cells, columns=10)))
        told(given.to / "figure-6.png")


def counts(given: argparse.Namespace) -> None:
    """Figure 7: share of trainings by number of intact digits; a seed's kept try for ours."""
    found: dict[str, list[int]] = {}
    for name, how in HOW.items():
        rows = table(given.runs / name, "attempts")
        if not rows:
            continue
        first = [row["intact"] for row in rows if row["attempt"] == 0]
        found[f"{how}, one try"] = first
        if any(row["attempt"] for row in rows):
            seeds = {row["seed"] for row in rows}
            found[f"{how}, new starts"] = [
                max(row["intact"] for row in rows if row["seed"] == seed) for seed in seeds
            ]
    if not found:
        return
    figure = canvas(6.4, 3.6)
    axes = figure.add_subplot()
    width = 0.8 / len(found)
    for i, (how, values) in enumerate(found.items()):
        share = Counter(values)
        places = [n + (i - len(found) / 2 + 0.5) * width for n in range(11)]
        heights = [share[n] / len(values) for n in range(11)]
        label = f"{how}: {np.mean(values):.1f} of 10, n = {len(values)}"
        axes.bar(places, heights, width, label=label)
    axes.set_xlabel("digits with intact masks")
    axes.set_ylabel("share of trainings")
    axes.set_xticks(range(11))
    axes.legend(fontsize=7)
    figure.savefig(given.to / "figure-7.png", facecolor="white")
    told(given.to / "figure-7.png")


def overlaps(given: argparse.Namespace) -> None:
    """Figure 4 (d): IoU of Grad-CAM and digit, median over seeds, and every seed as a dot."""
    sets = {which: table(given.runs / f"table-{which}", "classifiers") for which in given.sets}
    arms = list(dict.fromkeys(row["arm"] for rows in sets.values() for row in rows))
    if not arms:
        return
    figure = canvas(6.4, 3.4)
    axes = figure.add_subplot()
    width = 0.8 / len(arms)
    for i, arm in enumerate(arms):
        for k, rows in enumerate(sets.values()):
            values = [row["iou"] for row in rows if row["arm"] == arm]
            if not values:
                continue
            place = k + (i - len(arms) / 2 + 0.5) * width
            label = arm if k == 0 else None
            axes.bar(place, median(values), width, color=f"C{i}", label=label)
            axes.scatter([place] * len(values), values, s=6, color="black", zorder=3)
    axes.set_xticks(range(len(sets)), list(sets))
    axes.set_ylabel("mean IoU of heat map and digit")
    axes.legend(fontsize=7)
    figure.savefig(given.to / "figure-4d.png", facecolor="white")
    told(given.to / "figure-4d.png")


def scatter(given: argparse.Namespace) -> None:
    """Intact masks against the accuracy of the classifier, by the way the CGNs were trained."""
    figure = canvas(4.4, 3.4)
    axes = figure.add_subplot()
    for name, how in HOW.items():
        of = "table-" + name.removeprefix("cgn-")
        rows = [row for row in table(given.runs / of, "classifiers") if row["arm"] == "cgn"]
        if not rows:
            continue
        dots = [row["intact"] for row in rows], [100 * row["test"] for row in rows]
        axes.scatter(*dots, alpha=0.6, label=f"{how}, n = {len(rows)}")
    axes.set_xlabel("digits with intact masks")
    axes.set_ylabel("test accuracy in %, 10,000 pictures")
    axes.legend(fontsize=7)
    figure.savefig(given.to / "masks.png", facecolor="white")
    told(given.to / "masks.png")


def reports(given: argparse.Namespace) -> None:
    """Figures 3, 4 and 10: one picture of each set's report, side by side."""
    wanted = {
        "3": ("table", "plane", 0.55),
        "4": ("table", "heat", 0.4),
        "10": ("sizes", "sizes", 1),
    }
    for number, (stage, name, scale) in wanted.items():
        places = [given.runs / f"{stage}-{which}/images/figure-{name}.png" for which in given.sets]
        found = [Image.open(path).convert("RGB") for path in places if path.exists()]
        if found:
            sizes = [(round(one.width * scale), round(one.height * scale)) for one in found]
            whole = [np.asarray(one.resize(size)) for one, size in zip(found, sizes, strict=True)]
            path = given.to / f"figure-{number}.png"
            Image.fromarray(np.concatenate(whole, 1)).quantize(200).save(path, optimize=True)
            told(path)


def table(run: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a run's table, none if it is not there."""
    path = run / "tables" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def large(pixels: Any) -> Any:
    """Three times the size."""
    return np.asarray(pixels).repeat(3, 0).repeat(3, 1)
