"""What models say about every image, clean and attacked, kept point by point on disk.

For zoo_orderings.py. One file for each model and quantity, whole or not there; a file names its
images (by a hash of their pixels) and its search, so that nothing of another protocol is taken up.
"""

import argparse
import copy
import hashlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterlens import metrics
from counterlens.ball import Ball
from counterlens.classifier import Classifier
from counterlens.data import open_set
from counterlens.errors import InputError
from counterlens.images import ImageSet
from counterlens.models import load
from counterlens.models.parts import head_name
from counterlens.models.weights import weights_hash
from counterlens.runs import atomic, key_part, read_json, write_json
from counterlens.search import Settings, robust, worst_confidence
from counterlens.search.protocols import stages_of
from counterlens.workflows.robustness import model_logits, parse_attack, pixels

ABOUT = "about.json"
RADIUS = 1.0  # of the l2 ball around images of other things
_SAME = 0.02  # two devices may choose neighbours on the grid of temperatures


@dataclass
class Points:
    """What one model said about every image; quantities that were not measured are absent.

    Args:
        about: temperature and its source, architecture, what the card says.
        robust: per attack, which images stayed right.
        outside, worst, doubled: per set, logits of the images, of the worst points around them,
            and of those that a search of twice the steps met.
    """

    about: dict[str, Any]
    logits: Tensor
    labels: Tensor
    robust: dict[str, Tensor] = field(default_factory=dict)
    outside: dict[str, Tensor] = field(default_factory=dict)
    worst: dict[str, Tensor] = field(default_factory=dict)
    doubled: dict[str, Tensor] = field(default_factory=dict)

    @property
    def right(self) -> Tensor:
        """Which images are answered right without attack."""
        return self.logits.argmax(1) == self.labels

    def scores(self, logits: Tensor) -> Any:
        """Log-odds of the confidence after temperature."""
        return metrics.answers(logits, temperature=self.about["temperature"]).score.numpy()


Made = Callable[[Classifier, float], Mapping[str, Any]]


@dataclass(frozen=True)
class Piece:
    """One quantity of every model.

    Args:
        kind: the field of `Points` it belongs to.
        key: the attack or the set.
        mark: which images and which search, so that nothing of another protocol is taken up.
        made: from the classifier and its temperature to arrays.
    """

    kind: str
    key: str
    mark: str
    made: Made

    @property
    def file(self) -> str:
        """Name of the file the points of a model are kept in."""
        return f"{self.kind}-{key_part(self.key)}-{self.mark}.npz"


def heated(net: Classifier, temperature: float) -> Classifier:
    """The classifier with its logits divided by the temperature, for a search to see."""
    made = copy.deepcopy(net)
    layer = made.net.get_submodule(head_name(made.net, len(made.classes)))
    with torch.no_grad():
        for weight in layer.parameters():
            weight.div_(temperature)
        x = torch.rand(2, net.channels, *net.preprocess.size).to(net.mean.device)
        if not torch.allclose(made(x), net(x) / temperature, rtol=1e-3, atol=1e-3):
            raise InputError(f"the logits of {net.name} are not those of its last linear layer.")
    return made


def said(images: ImageSet, net: Classifier, _: float) -> dict[str, Any]:
    """Logits and labels of a set."""
    x = pixels(images, np.arange(len(images)), net)
    return {"logits": model_logits(net, x, net).numpy(), "labels": images.labels}


def attacked(
    images: ImageSet, rows: range, attack: str, seed: int, net: Classifier, _: float
) -> dict[str, Any]:
    """Which of these images stay right."""
    ball = parse_attack(attack)
    x = pixels(images, np.arange(rows.start, rows.stop), net)
    y = torch.from_numpy(images.labels[rows.start : rows.stop])
    stages = stages_of("standard", len(net.classes), ball.norm)[0][:2]
    how = Settings(seed=seed + rows.start, trust=False)
    found = robust(net, x, y, ball, version=stages, settings=how)
    return {"robust": found.robust.numpy(), "broken_by": np.array(found.broken_by)}


def strangers(
    images: ImageSet, steps: int, restarts: int, seed: int, net: Classifier, heat: float
) -> dict[str, Any]:
    """Logits of the most confident points met around these images, searched after temperature."""
    x = pixels(images, np.arange(len(images)), net)
    how, ball = Settings(seed=seed), Ball("l2", RADIUS)
    hot = heated(net, heat)
    found = worst_confidence(hot, x, ball, steps=steps, restarts=restarts, settings=how)
    return {"logits": model_logits(net, found.points, net).numpy()}


def content(images: ImageSet) -> str:
    """Hash of the pictures and labels: the same wherever they were read from."""
    digest = hashlib.blake2b(images.labels.tobytes(), digest_size=4)
    for i in range(len(images)):
        digest.update(images.read(i).tobytes())
    return digest.hexdigest()


def pieces(given: argparse.Namespace, data: ImageSet, sets: Mapping[str, ImageSet]) -> list[Piece]:
    """Everything to measure of each model, the most wanted first."""
    size, seed = given.chunk, given.seed

    marks = {images.name: content(images) for images in (data, *sets.values())}

    def of(images: ImageSet) -> str:
        return f"{marks[images.name]}-{len(images)}"

    def chunks(attack: str) -> list[Piece]:
        parts = [range(i, min(i + size, len(data))) for i in range(0, len(data), size)]
        names = [f"{of(data)}-{seed}-{rows.start:05d}-{rows.stop:05d}" for rows in parts]
        return [
            Piece("robust", attack, mark, partial(attacked, data, rows, attack, seed))
            for mark, rows in zip(names, parts, strict=True)
        ]

    def around(name: str, times: int) -> Piece:
        steps, start = times * given.steps, seed + times - 1
        mark = f"{of(sets[name])}-{start}-{steps}x{given.restarts}"
        made = partial(strangers, sets[name], steps, given.restarts, start)
        return Piece("worst" if times == 1 else "doubled", name, mark, made)

    return [
        Piece("logits", "clean", of(data), partial(said, data)),
        *(Piece("outside", name, of(one), partial(said, one)) for name, one in sets.items()),
        *chunks(given.attack[0]),
        *(around(name, 1) for name in sets),
        *(around(name, 2) for name in given.double),
        *(piece for attack in given.attack[1:] for piece in chunks(attack)),
    ]


def gathered(folder: Path, files: Sequence[tuple[str, str, str]]) -> Points | None:
    """What is kept of a model; a quantity of which a part is missing is left out.

    Args:
        files: kind, key and name of every file that the study wants.
    """
    found: dict[tuple[str, str], list[dict[str, Tensor]]] = {}
    for kind, key, name in files:
        path = folder / name
        found.setdefault((kind, key), []).append(_arrays(path) if path.exists() else {})
    whole = {where: parts for where, parts in found.items() if all(parts)}
    if ("logits", "clean") not in whole:
        return None
    (clean,) = whole.pop(("logits", "clean"))
    points = Points(read_json(folder / ABOUT), clean["logits"], clean["labels"])
    for (kind, key), parts in whole.items():
        held = "robust" if kind == "robust" else "logits"
        getattr(points, kind)[key] = torch.cat([part[held] for part in parts])
    return points


def _arrays(path: Path) -> dict[str, Tensor]:
    with np.load(path) as file:
        return {k: torch.from_numpy(file[k]) for k in file.files if file[k].dtype.kind != "U"}


def described(net: Classifier, calibrate: str) -> dict[str, Any]:
    """Facts of a model: its temperature, from the card or fitted, and its architecture."""
    card = net.card
    if "calibration.temperature" in card.get("numbers", {}):
        heat, source = float(card["temperature"]), "card"
    else:
        held = said(open_set(calibrate), net, 1.0)
        logits, labels = (torch.from_numpy(held[k]) for k in ("logits", "labels"))
        heat, source = metrics.by_ece(logits, labels), f"fitted on {calibrate}"
    return {
        "temperature": heat, "temperature_from": source, "weights_hash": weights_hash(net),
        "architecture": card.get("architecture"), "name": net.name,
        "standard": card.get("numbers", {}).get("robust.l2-0.5.accuracy"),
    }  # fmt: skip


@dataclass(frozen=True)
class Opened:
    """A model: its row of the table, the network, its temperature and the folder of its points."""

    row: str
    net: Classifier
    temperature: float
    folder: Path


def opened(text: str, given: argparse.Namespace) -> Opened:
    """The model of NAME=SPEC or SPEC; its facts are kept beside its points."""
    name, named, spec = text.rpartition("=")
    net = load(spec, device=given.device)
    row = (name if named else net.name).removeprefix("zoo:").removeprefix("cifar10-")
    folder = Path(given.out) / "points" / f"{row}-{weights_hash(net)[:8]}"
    if not (folder / ABOUT).exists():
        write_json(folder / ABOUT, {"row": row, **described(net, given.calibrate)})
    heat = read_json(folder / ABOUT)["temperature"]
    if "calibration.temperature" in net.card.get("numbers", {}):
        now = net.card["temperature"]
        if abs(now - heat) > _SAME * heat:
            raise InputError(
                f"the points in {folder} were made at temperature {heat:.4g}, the card of {row} "
                f"says {now:.4g}. Give another --out, or remove that folder."
            )
    return Opened(row, net, heat, folder)


def measured(
    given: argparse.Namespace, models: Sequence[Opened], wanted: Sequence[Piece]
) -> list[str]:
    """Make the files that are missing, all models' first piece first; what no time was left for."""
    began, left = time.monotonic(), []
    for piece in wanted:
        for model in models:
            path = model.folder / piece.file
            if path.exists():
                continue
            if time.monotonic() - began >= 60 * given.minutes:
                left.append(f"{model.row}: {piece.kind} {piece.key}")
                continue
            start = time.monotonic()
            arrays = piece.made(model.net, model.temperature)
            with atomic(path) as part, part.open("wb") as file:
                np.savez_compressed(file, **arrays)
            now = time.monotonic()
            print(f"[{now - began:6.1f} s] {path.name} of {model.row}: {now - start:.1f} s")
            sys.stdout.flush()
    return left
