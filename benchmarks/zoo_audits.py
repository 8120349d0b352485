"""What models said about every image, clean and attacked, read from the folders of their audits.

For zoo_orderings.py.
"""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from counterlens import metrics
from counterlens.data import name_of
from counterlens.errors import InputError
from counterlens.runs import LogitSet, Run, key_part, stored_logits
from counterlens.workflows._shared.names import named
from counterlens.workflows.audit.attacks.spec import parse_attack
from counterlens.workflows.reproduce.cards import with_audit
from counterlens.workflows.train import recipes

STANDARD, OOD_ATTACK = "standard", "l2:1.0"
KNOWN = "the known images"
_SAME = 0.02  # two devices may choose neighbours on the grid of temperatures


Rows = dict[str, Any]
"""From the id of an image to its value: a flag or a score."""


@dataclass
class Points:
    """What one model said about every image; what no audit measured is absent.

    Args:
        card: numbers, kinds of the sets and architecture, as a card has them.
        weights: their hash.
        right: which known images are answered right; `known`: their scores.
        robust: which images stayed right, by column of the table and version of the attack.
        outside, worst, doubled: per set, scores of the images, of the worst points around them,
            and of those that a search of twice the steps met.
        marks: fingerprints of the images; `audits`: names of the folders read.
    """

    card: dict[str, Any]
    weights: str
    temperature: float
    right: Rows
    known: Rows
    robust: dict[tuple[str, str], Rows] = field(default_factory=dict)
    outside: dict[str, Rows] = field(default_factory=dict)
    worst: dict[str, Rows] = field(default_factory=dict)
    doubled: dict[str, Rows] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=dict)
    audits: list[str] = field(default_factory=list)

    @property
    def kinds(self) -> dict[str, str]:
        """Every set of the audits, and whether it is noise, seen in training or unseen."""
        return dict(self.card["audit"]["ood"])

    def of(self, column: str) -> dict[str, Rows]:
        """The scores that a column of the table is made of."""
        return self.worst if column == "WC-AUC" else self.outside


def opened(texts: Sequence[str]) -> dict[str, list[Run]]:
    """Audits of each row of the table, from [NAME=]AUDIT."""
    audits: dict[str, list[Run]] = {}
    for text in texts:
        name, folder = named(text)
        run = Run.open(Path(folder))
        facts = run.manifest
        if facts["command"] != "audit" or not run.done:
            raise InputError(f"{folder} is no finished audit.")
        row = _row([name] if folder != text else [facts["model"], facts["name"]])
        audits.setdefault(row, []).append(run)
    return audits


def same_images(marks: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Fingerprints of all images, refused where two models or audits saw others by one name."""
    first: dict[str, tuple[str, str]] = {}
    for where, seen in marks.items():
        for images, mark in seen.items():
            before, other = first.setdefault(images, (mark, where))
            if before != mark:
                raise InputError(
                    f"{images} differ: {other} saw {before}, {where} {mark} "
                    "(data_fingerprint). Audit both on the same files."
                )
    return {images: mark for images, (mark, _) in first.items()}


def _row(names: Sequence[str]) -> str:
    paths = [Path(name.removeprefix("zoo:")) for name in names]
    paths = [path.parent if path.name == "model" else path for path in paths]  # a run of training
    rows = [path.name.removeprefix("cifar10-") for path in paths]
    known = [row for row in rows if f"cifar10-{row}" in recipes.names()]
    if not known:
        told = ", ".join(name for name in recipes.names() if name.startswith("cifar10-"))
        raise InputError(f"{rows[0]} is no recipe, expected NAME=AUDIT, NAME one of {told}.")
    return known[0]


def gathered(
    row: str, runs: Sequence[Run], seen: Sequence[str], before: Points | None = None
) -> Points:
    """All audits of a model, put together.

    Args:
        before: points kept of earlier audits of the same weights; what the runs measured anew
            replaces theirs, and scores are after their temperature.
    """
    hashes = {run.manifest.get("weights_hash"): run.folder for run in runs}
    if len(hashes) > 1:
        told = " and ".join(f"{folder} ({str(key)[:12]})" for key, folder in hashes.items())
        raise InputError(f"{row}: {told} are audits of different weights. Name them: NAME=AUDIT.")
    weights = str(*hashes)
    if before and before.weights != weights:
        raise InputError(
            f"{row}: its audits are of other weights ({weights[:12]}) than its kept points "
            f"({before.weights[:12]}). Leave one of them out."
        )
    logits = [stored_logits(run) for run in runs]
    inside = [kept for one in logits for kept in one.values() if kept.role == "in"]
    if not inside:
        raise InputError(f"{runs[0].folder} holds no logits of known images.")
    best = max(inside, key=lambda kept: len(kept.ids))
    right = _rows(best.ids, best.logits.argmax(1) == best.labels)
    temperature = before.temperature if before else best.temperature
    known = scored(best.ids, best.logits, temperature)
    points = Points(
        carded(runs, seen), weights, temperature, right, known,
        marks=same_images({str(run.folder): _marks(run) for run in runs}),
        audits=[run.folder.name for run in runs],
    )  # fmt: skip
    for run, kept in zip(runs, logits, strict=True):
        _add_sets(points, run, kept)
        settings = run.manifest["settings"]
        for attack in settings["attack"]:
            ball = parse_attack(attack)
            key = f"{ball.norm} {float(ball.radius)}", settings["attack_version"]
            path = run.folder / "tables" / f"adversarial-{key_part(attack)}.npz"
            if path.exists():
                _more(points.robust, key, _rows(*_arrays(path, "all_ids", "robust")))
    return joined(row, before, points) if before else points


def joined(row: str, before: Points, after: Points) -> Points:
    """Earlier and later points of the same weights; of what both have, the later.

    A set whose images are others than before is taken from the later audits alone.
    """
    moved = [name for name, mark in after.marks.items() if before.marks.get(name, mark) != mark]
    if KNOWN in moved:
        same_images({"its kept points": before.marks, row: after.marks})
    stale = tuple(f"ood.{key_part(name)}." for name in moved)
    numbers = {k: n for k, n in before.card["numbers"].items() if not k.startswith(stale)}
    for key, number in after.card["numbers"].items():
        numbers[key] = max(number, numbers.get(key, number), key=lambda found: found["n"])
    robust = dict(before.robust)
    for which, rows in after.robust.items():
        robust[which] = max(rows, robust.get(which, {}), key=len)
    sets: dict[str, dict[str, Rows]] = {}
    for name in ("outside", "worst", "doubled"):
        old = {k: rows for k, rows in getattr(before, name).items() if k not in moved}
        sets[name] = {**old, **getattr(after, name)}
    return replace(
        after,
        card={**after.card, "numbers": numbers, "audit": {"ood": {**before.kinds, **after.kinds}}},
        robust=robust,
        marks={**before.marks, **after.marks},
        audits=[*before.audits, *after.audits],
        **sets,
    )


def _marks(run: Run) -> dict[str, str]:
    facts = run.manifest
    return {
        KNOWN if images == facts["data"] else images: mark
        for images, mark in facts["data_fingerprint"].items()
    }


def _add_sets(points: Points, run: Run, kept: Mapping[str, LogitSet]) -> None:
    settings = run.manifest["settings"]
    if settings["ood"] and settings["ood_attack"] not in (None, OOD_ATTACK):
        raise InputError(
            f"{run.folder} searched within {settings['ood_attack']}, expected {OOD_ATTACK}."
        )
    for name in map(name_of, settings["ood"]):
        if key_part(name) not in kept:
            continue
        clean = kept[key_part(name)]
        if abs(clean.temperature - points.temperature) > _SAME * points.temperature:
            raise InputError(
                f"{run.folder} has temperature {clean.temperature:.4g}, another audit of the model "
                f"{points.temperature:.4g}. Audit both with the same --calibrate."
            )
        _more(points.outside, name, scored(clean.ids, clean.logits, points.temperature))
        path = run.folder / "tables" / f"worst-{key_part(name)}.npz"
        if path.exists():
            ids, logits = _arrays(path, "ids", "logits")
            _more(points.worst, name, scored(ids, logits, points.temperature))


def scored(ids: Any, logits: Any, temperature: float) -> Rows:
    """Log-odds of the confidence after temperature."""
    said = metrics.answers(torch.from_numpy(np.array(logits)), temperature=temperature)
    return _rows(ids, said.score.numpy().astype(np.float32))


def _rows(ids: Sequence[str], values: Any) -> Rows:
    return dict(zip(map(str, ids), values, strict=True))


def _more(found: dict[Any, Rows], key: Any, rows: Rows) -> None:
    """Keep the rows of the most images; those there on a tie."""
    found[key] = max(found.get(key, {}), rows, key=len)


def _arrays(path: Path, *names: str, weights: str | None = None) -> list[Any]:
    """Arrays of a file, one row per image each; refused where the file tells other weights."""
    try:
        with np.load(path) as file:
            arrays = [file[name] for name in names]
            if len(set(map(len, arrays))) > 1:
                raise ValueError("they differ in length")
            made = str(file["weights_hash"]) if "weights_hash" in file.files else weights
    except (KeyError, OSError, ValueError, TypeError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is no .npz file with {', '.join(names)}: {error}.") from error
    if made != weights:
        raise InputError(f"{path} is of other weights than the audit: {made}, not {weights}.")
    return arrays


def carded(runs: Sequence[Run], seen: Sequence[str]) -> dict[str, Any]:
    """Numbers of the audits, each from the most images; other attacks than `standard` apart."""
    numbers: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    for run in runs:
        names = {name_of(spec) for spec in run.manifest["settings"].get("ood", ())}
        card = with_audit({}, run, seen=[name for name in seen if name in names])
        kinds |= card["audit"]["ood"]
        version = card["audit"]["attack_version"]
        for key, number in card["numbers"].items():
            if key.startswith("robust.") and version != STANDARD:
                key = f"{key.removesuffix('.accuracy')}-{version}.accuracy"
            if key not in numbers or number["n"] > numbers[key]["n"]:
                numbers[key] = number
    about = runs[0].manifest.get("about", {})
    shape = {key: about.get(key) for key in ("parameters", "family", "attention")}
    return {"numbers": numbers, "audit": {"ood": kinds}, "architecture": shape}


def add_doubled(points: Points, folder: Path) -> None:
    """Take up what a search of twice the steps met around the same images."""
    files = {f"{key_part(name)}.npz": name for name in points.worst}
    paths = sorted(folder.glob("*.npz"))
    strange = [path.name for path in paths if path.name not in files]
    if strange or not paths:
        came = strange[0] if strange else "no .npz file"
        raise InputError(f"{folder} has {came}, expected some of {', '.join(files)}.")
    for path in paths:
        ids, logits = _arrays(path, "ids", "logits", weights=points.weights)
        points.doubled[files[path.name]] = scored(ids, logits, points.temperature)
