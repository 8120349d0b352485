"""Universal counterfactuals of an attribute that is no class: the same car in another colour.

A zero-shot classifier of two texts, "a red automobile" against "a blue automobile", guides; real
test images of the class whose middle is measured as the first colour, and which the classifier
calls so, are turned to the second text. Asked afterwards, as 8-bit images:

  reached     the two-text classifier answers the second text
  measured    the mean colour of the middle half has the second text's name (pixels, no network)
  still       a classifier that took no part still answers the class
  background  l2 outside the mask, and the same of prompt-to-prompt alone

Two scales of the cosines: 1, as in the paper's (21), where the softmax of two texts stays near a
half, and the pair's own trained scale.

Result: docs/papers/digin2024.md, "Attributes", and results/attribute_study.json: the text is
reached in 11 or 12 of 12, the colour measured in 8 to 11 of 12 cars, in 1 to 3 of 12 trucks asked
to be white (they are grey).
Run: python benchmarks/attribute_study.py --clip clip:FOLDER --generator FOLDER \
         --data pack:test.npz --out DIR [--ask automobile:red:blue ...] [--count 12] [--scale own]
Everything is written to DIR/attribute_study.json as it comes, sheets beside it.
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterlens.classifier import Classifier
from counterlens.data import open_set
from counterlens.data.synthetic import captions
from counterlens.explanations.counterfactuals.memory import plan_edits as plan
from counterlens.explanations.counterfactuals.pixel import confidences
from counterlens.explanations.counterfactuals.rounds import eight_bits
from counterlens.explanations.counterfactuals.targets import class_named
from counterlens.explanations.counterfactuals.uvce import (
    UVCE,
    Change,
    EditSettings,
    Prepared,
    class_term,
    prepare,
    uvce,
)
from counterlens.explanations.figure import Panel, grid
from counterlens.generators.diffusion import model as latent
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.metrics.closeness import masked_l2
from counterlens.metrics.intervals.closed_form import mean_interval, wilson
from counterlens.models import load
from counterlens.search import frozen

ASKED = ("automobile:red:blue", "automobile:blue:red", "truck:red:white", "bird:brown:red")
JUDGE = "zoo:cifar10-plain-small"


def share(flags: Tensor) -> dict[str, Any]:
    hits, n = int(flags.sum()), len(flags)
    low, high = wilson(hits, n)
    return {"value": hits / n, "low": low, "high": high, "n": n}


def mean(values: Tensor, bounds: tuple[float, float]) -> dict[str, Any]:
    table = values.double().numpy()
    low, high = mean_interval(table, bounds) if len(table) > 1 else (None, None)
    return {"value": float(table.mean()), "low": low, "high": high, "n": len(table)}


def colours(x: Tensor) -> list[str]:
    """The measured colour of each image's middle; "" where it is no clear one."""
    found = captions.measure((x * 255).round().byte())
    return [captions.COLOURS[k] for k in found.colour.tolist()]


def two_texts(spec: str, thing: str, pair: tuple[str, str], scale: str, device: str) -> Classifier:
    """The classifier of the two texts; the temperature of its card holds the scale."""
    texts = [captions.prompt(f"{colour} {thing}") for colour in pair]
    net = load(f"{spec}#={'|'.join(texts)}", device=device)
    if scale == "own":
        whole = load(spec, device=device)
        own = whole.net.get_submodule("head").weight.norm(dim=1).mean().item()
        net.card["temperature"] = 1 / own
    else:
        net.card["temperature"] = 1 / float(scale)
    return net


def edited(
    model: LatentDiffusion, net: Classifier, ready: Prepared, thing: str, pair: tuple[str, str],
    settings: EditSettings, memory: str | None,
) -> dict[str, Tensor]:  # fmt: skip
    """Counterfactuals of all pictures, as many at a time as fit."""
    kept, size = plan(model, settings, len(ready.x), memory, [net])
    parts = []
    for at in range(0, len(ready.x), size):
        part = ready.rows(range(at, min(at + size, len(ready.x))))
        n = len(part.x)
        with frozen(net):
            made = uvce(
                model, part, [class_term(net, torch.ones(n, dtype=torch.long))],
                [Change(captions.prompt(f"{pair[1]} {thing}"),
                        (f"{pair[0]} {thing}", f"{pair[1]} {thing}"))] * n,
                settings=settings, seeds=torch.arange(at, at + n, device=model.device),
                stored=kept,
            )  # fmt: skip
        parts.append(made)
    names = ("images", "start_images", "reconstruction", "masks")
    return {name: torch.cat([getattr(one, name).cpu() for one in parts]) for name in names}


def measured(
    found: dict[str, Tensor], x: Tensor, net: Classifier, judge: Classifier, place: int, goal: str
) -> dict[str, Any]:
    z, start = eight_bits(found["images"]), eight_bits(found["start_images"])
    outside = 1 - found["masks"]
    result: dict[str, Any] = {}
    for name, made in (("", z), ("prompt_only_", start), ("before_", x)):
        probs = confidences(net, made)
        result |= {
            f"{name}reached": share(probs.argmax(1) == 1),
            f"{name}confidence": mean(probs[:, 1], (0, 1)),
            f"{name}measured": share(torch.tensor([c == goal for c in colours(made)])),
            f"{name}still": share(confidences(judge, made).argmax(1) == place),
        }
    away, away_start = masked_l2(z, x, outside), masked_l2(start, x, outside)
    top = float(max(away.max(), away_start.max()))
    return result | {
        "background": mean(away, (0, top)), "background_prompt_only": mean(away_start, (0, top)),
        "background_change": mean(away - away_start, (-top, top)),
        "inside": mean(masked_l2(z, x, 1 - outside), (0, math.sqrt(x[0].numel()))),
    }  # fmt: skip


def sheet(path: Path, x: Tensor, found: dict[str, Tensor], net: Classifier, title: str) -> None:
    """A row per picture, with its confidence in the second text and its measured colour."""
    pictures = {"original": x, "made again": found["reconstruction"],
                "mask": found["masks"].expand(-1, 3, -1, -1),
                "prompt only": found["start_images"], "attribute": found["images"]}  # fmt: skip
    lines: list[list[Panel]] = [[] for _ in x]
    for name, images in pictures.items():
        made = eight_bits(images)
        said, names = confidences(net, made)[:, 1], colours(made)
        for k, line in enumerate(lines):
            told = "" if name == "mask" else f"{said[k]:.2f} {names[k]}"
            line.append(Panel(made[k], told))
    heads = list(pictures)
    path.write_bytes(grid(lines, heads=heads, sides=[""] * len(lines), title=title, cell=0.8))


def study(given: argparse.Namespace, asked: str, x: Tensor, labels: Tensor,
          classes: Sequence[str], model: LatentDiffusion, keep: Any) -> None:  # fmt: skip
    """One pair of texts at every scale."""
    thing, *pair = asked.split(":")
    first, second = pair
    ours = labels == list(classes).index(thing)
    named = torch.tensor([c == first for c in colours(x)])
    net = two_texts(given.clip, thing, (first, second), "own", given.device)
    calls = confidences(net, x).argmax(1) == 0
    rows = torch.nonzero(ours & named & calls).flatten()[: given.count]
    facts = {"of_the_class": int(ours.sum()), "measured_as_first": int((ours & named).sum()),
             "called_so": int((ours & named & calls).sum()), "taken": len(rows)}  # fmt: skip
    print(f"{asked}: {facts}", flush=True)
    if not len(rows):
        keep(asked, facts)
        return
    judge = load(given.judge, device=given.device)
    place = class_named(judge.classes, thing)
    chain = replace(UVCE.chain, steps=given.steps, updates=given.updates)
    settings = replace(UVCE, chain=chain, inner=given.inner)
    began = time.monotonic()
    some = x[rows]
    source = [captions.prompt(f"{first} {thing}")] * len(rows)
    ready = prepare(model, some, source, [thing] * len(rows), settings=settings)
    for scale in given.scale:
        net = two_texts(given.clip, thing, (first, second), scale, given.device)
        found = edited(model, net, ready, thing, (first, second), settings, given.memory)
        result = measured(found, some, net, judge, place, second)
        keep(f"{asked}, scale {scale}", {
            **facts, "scale": 1 / net.card["temperature"], "rows": rows.tolist(), **result,
            "seconds": time.monotonic() - began,
        })  # fmt: skip
        name = f"{asked.replace(':', '-')}-{scale}.png"
        sheet(given.out / name, some, found, net, f"{thing}, {first} to {second}, scale {scale}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clip", required=True, help="clip:FOLDER or zoo:NAME of a pair")
    parser.add_argument("--generator", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ask", action="append", metavar="CLASS:COLOUR:COLOUR")
    parser.add_argument("--scale", action="append", metavar="NUMBER|own")
    parser.add_argument("--judge", default=JUDGE)
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--pool", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=UVCE.chain.steps)
    parser.add_argument("--updates", type=int, default=UVCE.chain.updates)
    parser.add_argument("--inner", type=int, default=UVCE.inner)
    parser.add_argument("--memory")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    data = open_set(given.data)
    count = min(len(data), given.pool)
    pixels = np.stack([data.read(i) for i in range(count)])
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    labels = torch.from_numpy(np.asarray(data.labels[:count]).copy())
    model = latent.load(given.generator, device=torch.device(given.device))
    path = given.out / "attribute_study.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def keep(key: str, value: dict[str, Any]) -> None:
        results[key] = value
        path.write_text(json.dumps(results, indent=1))
        print(f"{key}: {json.dumps({k: v for k, v in value.items() if k != 'rows'})}", flush=True)

    given.scale = given.scale or ["1", "own"]
    for asked in given.ask or ASKED:
        study(given, asked, x, labels, data.classes, model, keep)


if __name__ == "__main__":
    main()
