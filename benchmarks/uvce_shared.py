"""What the stages of uvce_study.py share: pictures, networks, clock, results, and shares."""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from counterlens.classifier import Classifier
from counterlens.data import open_set
from counterlens.data.synthetic import captions
from counterlens.explanations.counterfactuals.pixel import confidences
from counterlens.explanations.counterfactuals.targets import class_named
from counterlens.explanations.counterfactuals.uvce import UVCE, EditSettings, Prepared, prepare
from counterlens.generators.diffusion import model as latent
from counterlens.generators.diffusion.memory import free_memory
from counterlens.metrics.intervals.closed_form import mean_interval, newcombe_paired, wilson
from counterlens.models import load
from counterlens.workflows._shared.generation.generate import changed


class Study:
    """What all stages share: pictures, generator, classifiers, the clock and the results."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.began = given, time.monotonic()
        self.device = torch.device(given.device)
        self.nets: dict[str, Classifier] = {}
        self.out = Path(given.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.path = self.out / "uvce_study.json"
        self.results: dict[str, Any] = {}
        if self.path.exists():
            self.results = json.loads(self.path.read_text())
        if given.stage != "512":  # which makes its own networks and picture
            self.open(given)

    def open(self, given: argparse.Namespace) -> None:
        """The generator and the pictures."""
        self.model = latent.load(given.generator, device=self.device)
        chain = replace(UVCE.chain, updates=given.updates)
        self.settings = replace(
            UVCE, chain=chain, inner=given.inner, rate=given.rate,
            latent_weight=given.weight / 10, pixel_weight=given.weight, small_sigma=given.sigma,
        )  # fmt: skip
        for text in given.changes:
            self.settings = varied(self.settings, text)
        data = open_set(given.data, limit=None)
        rows = range(min(len(data), given.pool))
        pixels = [torch.from_numpy(data.read(i)).permute(2, 0, 1) for i in rows]
        self.x = torch.stack(pixels).float() / 255
        self.labels = torch.tensor([int(data.labels[i]) for i in rows])
        self.classes, self.ids = data.classes, [str(data.ids[i]) for i in rows]
        self.prompts = [captions.prompt(self.classes[k]) for k in self.labels.tolist()]
        self.words = [captions.word(name) for name in self.classes]
        self.ready: dict[int, tuple[Prepared, int]] = {}
        self.say(f"{len(self.x)} pictures, {self.model.name} on {self.device}")

    def say(self, line: str) -> None:
        print(f"[{time.monotonic() - self.began:6.1f} s] {line}", flush=True)

    def keep(self, key: str, value: Any) -> None:
        self.results[key] = value
        self.path.write_text(json.dumps(self.results, indent=1, default=float))
        shown = {k: v for k, v in value.items() if k not in ("rows", "psnr", "confidences")}
        self.say(f"{key}: {json.dumps(shown, default=float)}")

    def memory(self) -> str | None:
        """Half of what is free: classifiers keep their share of a batch, too."""
        if self.given.memory or self.device.type == "cpu":
            return str(self.given.memory or "4GB")
        return str(free_memory(self.device) // 2)

    def late(self) -> bool:
        return time.monotonic() - self.began > 60 * self.given.minutes

    def net(self, spec: str) -> Classifier:
        if spec not in self.nets:
            self.nets[spec] = load(spec, device=str(self.device))
        return self.nets[spec]

    def places(self, net: Classifier) -> torch.Tensor:
        """Where each class of the data is in a classifier."""
        return torch.tensor([class_named(net.classes, name) for name in self.classes])

    def answers(self, net: Classifier, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Confidences in the classes of the data, and the answers among them."""
        with torch.no_grad():
            probs = torch.cat([confidences(net, part) for part in torch.split(x, 512)])
        probs = probs[:, self.places(net)]
        return probs, probs.argmax(1)

    def prepared(self, rows: Sequence[int]) -> Prepared:
        """Inversions of some pictures; those there are not made again."""
        missing = [i for i in rows if i not in self.ready]
        if missing:
            began = time.monotonic()
            found = prepare(
                self.model, self.x[missing], [self.prompts[i] for i in missing],
                [self.words[self.labels[i]] for i in missing], settings=self.settings,
            )  # fmt: skip
            self.ready |= {i: (found, k) for k, i in enumerate(missing)}
            self.say(f"prepared {len(missing)} in {time.monotonic() - began:.1f} s")
        return joined([self.ready[i] for i in rows])


def varied(settings: EditSettings, text: str) -> EditSettings:
    """Settings changed by SIGMA:WEIGHT, or by KEY=VALUE,KEY=VALUE of the edit or of its chain."""
    if "=" not in text:
        sigma, weight = (float(part) for part in text.split(":"))
        return replace(
            settings, small_sigma=sigma, latent_weight=weight / 10, pixel_weight=weight
        )  # fmt: skip
    for part in text.split(","):
        key, value = part.split("=")
        if key == "weight":
            settings = replace(settings, latent_weight=float(value) / 10, pixel_weight=float(value))
        elif key in ("inject", "blend"):
            settings = replace(settings, **{key: tuple(float(v) for v in value.split("/"))})
        elif hasattr(settings, key):
            settings = replace(settings, **{key: type(getattr(settings, key))(value)})
        else:
            settings = replace(settings, chain=changed(settings.chain, [part]))
    return settings


def joined(parts: Sequence[tuple[Prepared, int]]) -> Prepared:
    """Rows of several preparations as one; all of one batch is the usual case."""
    sources = list(dict.fromkeys(id(found) for found, _ in parts))
    if len(sources) == 1:
        return parts[0][0].rows([k for _, k in parts])
    singles = [found.rows([k]) for found, k in parts]

    def cat(values: Sequence[Any]) -> Any:
        first = values[0]
        if isinstance(first, torch.Tensor):
            return torch.cat(list(values))
        if isinstance(first, dict):
            return {key: cat([value[key] for value in values]) for key in first}
        if isinstance(first, tuple):
            return tuple(cat(column) for column in zip(*values, strict=True))
        names = first.__dataclass_fields__
        return type(first)(**{n: cat([getattr(v, n) for v in values]) for n in names})

    inversion = cat([replace(s.inversion, error=s.inversion.error.T) for s in singles])
    return Prepared(
        cat([s.x for s in singles]),
        tuple(s.source[0] for s in singles),
        replace(inversion, error=inversion.error.T),
        cat([s.maps for s in singles]),
        tuple(s.words[0] for s in singles),
        cat([s.masks for s in singles]),
        tuple(s.mask_source[0] for s in singles),
    )


def eight_bits(x: torch.Tensor) -> torch.Tensor:
    """As a PNG file holds it."""
    return (x.cpu() * 255).round() / 255


def decibels(made: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """PSNR of each image."""
    return (
        -10 * (eight_bits(made) - x).double().square().flatten(1).mean(1).clamp_min(1e-12).log10()
    )


def share(flags: Any) -> dict[str, Any]:
    hits, n = int(np.sum(np.asarray(flags))), len(flags)
    low, high = wilson(hits, n)
    return {"value": hits / n, "low": low, "high": high, "n": n}


def mean(values: Any, bounds: tuple[float, float] = (-1e3, 1e3)) -> dict[str, Any]:
    table = np.asarray(values, dtype=np.float64)
    low, high = mean_interval(table, bounds) if len(table) > 1 else (None, None)
    return {"value": float(table.mean()), "low": low, "high": high, "n": len(table)}


def paired(first: torch.Tensor, second: torch.Tensor) -> dict[str, Any]:
    """The difference of two shares on the same images."""
    a, b = first.bool(), second.bool()
    counts = [int(t.sum()) for t in (a & b, a & ~b, ~a & b, ~a & ~b)]
    low, high = newcombe_paired(*counts)
    return {"value": (counts[1] - counts[2]) / len(a), "low": low, "high": high, "n": len(a)}
