"""`repair`: try remedies on one set of images, prove the picked one on another."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from counterlens.classifier import Classifier
from counterlens.data import open_set
from counterlens.data.sets import subset
from counterlens.errors import InputError
from counterlens.images import ImageSet, prepared
from counterlens.label_spaces.matching import pair_classes
from counterlens.models import load, parts
from counterlens.models.sources.repaired import save_repaired
from counterlens.models.weights import weights_hash
from counterlens.progress import within
from counterlens.report import render
from counterlens.runs import Number, Run, new_folder
from counterlens.workflows.repair import groups as grouping
from counterlens.workflows.repair import receipt
from counterlens.workflows.repair.groups import Codes, Grouped
from counterlens.workflows.repair.remedies import (
    REMEDIES,
    Examples,
    Head,
    Matrix,
    plain,
    shuffled,
)

_BATCH = 64
_BLIND = ("temperature", "prior")  # they do not look at groups


@dataclass(frozen=True)
class _Data:
    fix: ImageSet
    check: ImageSet
    fix_by: Grouped
    check_by: Grouped
    fit: Codes
    choose: Codes


def repair(
    model: str,
    fix: str | ImageSet,
    check: str | ImageSet,
    *,
    groups: str,
    remedies: Sequence[str] = tuple(REMEDIES),
    want: str = "groups.worst",
    allow: Sequence[str] = (),
    plan: bool = False,
    out: Path | None = None,
    seed: int = 0,
    device: str = "auto",
    trust_remote_code: bool = False,
) -> Run:
    """Refit the last linear layer, pick one remedy, prove on other images what it changed.

    The run folder loads as `repaired:FOLDER`; the model itself is not touched.

    Args:
        model: spec of the classifier; its last layer must be linear.
        fix: labelled images; split by content hash, one half fits, the other chooses.
        check: other labelled images; they prove and decide nothing before.
        groups: a column of both sets; a group is a class with one of its values.
        remedies: which to try, names of `REMEDIES`.
        want: what should rise, `groups.worst` or `accuracy.top1`.
        allow: losses beyond which must be ruled out, e.g. `accuracy.top1:-0.01`.
        plan: only count the groups and say what could be shown.
        out: folder to create. Default: a new one under runs/.
        seed: of the split, the draws and the shuffled groups.
        device: where to compute.
        trust_remote_code: allow code that comes with the weights.
    """
    limits = _checked(remedies, want, allow)
    classifier = load(model, device=device, trust_remote_code=trust_remote_code)
    parts.head_name(classifier.net, len(classifier.classes))
    data = _data(classifier.classes, fix, check, groups, seed)
    if "dfr" in remedies:
        grouping.refuse_small(data.fix_by.take(data.fit))
    settings: dict[str, Any] = {"model": model, "fix": data.fix.name, "check": data.check.name}
    settings |= {"groups": groups, "remedies": list(remedies), "want": want, "allow": list(allow)}
    settings |= {"plan": plan, "seed": seed, "device": device}
    run = Run.create(out or new_folder("repair", classifier.name), "repair", settings)
    run.write_table("sizes", _sizes(data))
    run.note(
        model=model,
        data=data.check.name,
        classes=len(classifier.classes),
        weights_hash=weights_hash(classifier),
        data_fingerprint=data.check.fingerprint,
        seed=seed,
        device=str(classifier.mean.device),
    )
    if plan:
        run.add_numbers({"repair.smallest_shown": _smallest(data)})
    else:
        _repair(run, classifier, data, remedies, want, limits)
    render(run)
    run.finish()
    return run


def _checked(remedies: Sequence[str], want: str, allow: Sequence[str]) -> dict[str, float]:
    unknown = [name for name in remedies if name not in REMEDIES]
    if unknown or not remedies:
        raise InputError(
            f"--remedies names {unknown[0] if unknown else 'nothing'}, expected some of "
            f"{', '.join(REMEDIES)}."
        )
    if want not in receipt.KEYS:
        raise InputError(f"--want {want!r}: expected {' or '.join(receipt.KEYS)}.")
    return receipt.parse_allow(allow)


def _data(
    classes: Sequence[str], fix: str | ImageSet, check: str | ImageSet, column: str, seed: int
) -> _Data:
    """Open, relabel, group and split; refuse what would make the proof worthless."""
    sets: list[ImageSet] = []
    labels: list[Codes] = []
    texts: list[list[str]] = []
    for given in (fix, check):
        images = open_set(given, seed=seed) if isinstance(given, str) else given
        grouping.column_texts(images, column)
        places = [place for place, _ in pair_classes(classes, images.classes)]
        found = np.array([*places, -1], dtype=np.int64)[images.labels]
        known = np.flatnonzero(found >= 0)
        if not len(known):
            raise InputError(f"{images.name} has no labelled image of a class of the model.")
        images = subset(images, known)
        sets.append(images)
        labels.append(found[known])
        texts.append(grouping.column_texts(images, column))
    names = tuple(classes)
    fix_by, check_by = grouping.grouped_pair(
        (labels[0], labels[1]), (texts[0], texts[1]), names, column
    )
    with within("looking for images in both sets"):
        hashes = grouping.content_hashes(sets[0]), grouping.content_hashes(sets[1])
        prints = grouping.seen(sets[0]), grouping.seen(sets[1])
        grouping.refuse_shared((sets[0], sets[1]), hashes, prints)
        fit, choose = grouping.split(hashes[0], prints[0], seed)
    missing = [names[k] for k in range(len(names)) if k not in fix_by.labels[fit]]
    if missing or not len(choose):
        what = f"no image of {missing[0]} to fit on" if missing else "no image to choose on"
        raise InputError(f"--fix leaves {what}: give more images of every class of the model.")
    return _Data(sets[0], sets[1], fix_by, check_by, fit, choose)


def _sizes(data: _Data) -> list[dict[str, Any]]:
    fit, choose = data.fix_by.take(data.fit).sizes(), data.fix_by.take(data.choose).sizes()
    whole, check = data.fix_by.sizes(), data.check_by.sizes()
    return [
        {
            "group": data.fix_by.group_name(g),
            "fix": whole.get(g, 0),
            "fit": fit.get(g, 0),
            "choose": choose.get(g, 0),
            "check": check.get(g, 0),
        }
        for g in sorted({*whole, *check})
    ]


def _smallest(data: _Data) -> Number:
    sizes = list(data.check_by.sizes().values())
    least, protocol = receipt.smallest_shown(sizes), "gain around 50 % in the smallest group"
    if least is None:
        return Number.missing(f"{min(sizes)} check images can show no gain", protocol, min(sizes))
    return Number(least, min(sizes), least, least, protocol)


def _repair(
    run: Run,
    classifier: Classifier,
    data: _Data,
    remedies: Sequence[str],
    want: str,
    limits: dict[str, float],
) -> None:
    seed = int(run.manifest["settings"]["seed"])
    with within("computing features"):
        x, check_x = _features(classifier, data.fix), _features(classifier, data.check)
    layer = parts.head(classifier)
    weight = layer.weight.detach().double().cpu().numpy()
    bias = np.zeros(len(weight)) if layer.bias is None else layer.bias.detach().double().cpu()
    old = Head(weight, np.asarray(bias))
    fit = Examples(x[data.fit], data.fix_by.take(data.fit))
    choose = Examples(x[data.choose], data.fix_by.take(data.choose))
    heads = {}
    for name in (name for name in REMEDIES if name in remedies):
        with within(f"fitting {name}"):
            heads[name] = REMEDIES[name](old, fit, choose, np.random.default_rng(seed))
    picked = pick(old, heads, choose, want, limits)
    run.write_table("tried", _tried(old, heads, choose, picked))
    check = Examples(check_x, data.check_by)
    before, after = (h.answers(check.x) == check.by.labels for h in (old, heads[picked]))
    proof = receipt.certify(before, after, check.by, want=want, allow=limits)
    with within("fitting placebos"):
        placebos = _placebos(picked, old, fit, choose, seed)
    rows = _placebo_rows(picked, heads[picked], placebos, check, want)
    run.write_table("receipt", proof.rows)
    run.write_table("placebos", rows)
    run.write_table(
        "verdict",
        [
            {
                "verdict": proof.verdict,
                "remedy": picked,
                "why": f"Remedy {picked}. {proof.why}",
                "placebo": _sentence(picked, rows),
            }
        ],
    )
    top = proof.changes["accuracy.top1"]
    run.add_numbers(
        {
            "repair.accuracy_change": top,
            "repair.worst_group_change": proof.changes["groups.worst"],
        }
    )
    new = heads[picked]
    save_repaired(
        run.folder,
        str(run.manifest["settings"]["model"]),
        classifier,
        torch.from_numpy(new.weight),
        torch.from_numpy(new.bias),
    )


def _features(classifier: Classifier, images: ImageSet) -> Matrix:
    """What enters the last layer, one row per image."""
    rows = []
    channels, device = classifier.mean.numel(), classifier.mean.device
    for start in range(0, len(images), _BATCH):
        stop = min(start + _BATCH, len(images))
        planes = [
            prepared(images.read, i, classifier.preprocess, channels=channels)
            for i in range(start, stop)
        ]
        batch = torch.from_numpy(np.stack(planes)).to(device).float() / 255
        with torch.no_grad():
            rows.append(parts.features(classifier, batch).double().cpu().numpy())
    return np.concatenate(rows)


def pick(
    old: Head, heads: dict[str, Head], choose: Examples, want: str, limits: dict[str, float]
) -> str:
    """The remedy with the largest gain on the images that choose, within the limits if any is."""
    score = {"groups.worst": choose.worst, "accuracy.top1": choose.accuracy}

    def fits(head: Head) -> bool:
        return all(score[key](head) - score[key](old) >= limit for key, limit in limits.items())

    within_limits = [name for name, head in heads.items() if fits(head)] or list(heads)
    return max(within_limits, key=lambda name: score[want](heads[name]))


def _tried(
    old: Head, heads: dict[str, Head], choose: Examples, picked: str
) -> list[dict[str, Any]]:
    return [
        {
            "remedy": name,
            "accuracy": choose.accuracy(head),
            "worst_group": choose.worst(head),
            "n": len(choose.x),
            "picked": name == picked,
        }
        for name, head in {"none": old, **heads}.items()
    ]


def _placebos(
    picked: str, old: Head, fit: Examples, choose: Examples, seed: int
) -> dict[str, Head]:
    """The head refitted plainly, and the picked remedy with the column shuffled."""
    rng = np.random.default_rng([seed, 1])
    made = {"plain refit": plain(old, fit, choose, rng)}
    if picked not in _BLIND:
        mixed = [Examples(part.x, shuffled(part.by, rng)) for part in (fit, choose)]
        made[f"{picked}, shuffled groups"] = REMEDIES[picked](old, mixed[0], mixed[1], rng)
    return made


def _placebo_rows(
    picked: str, head: Head, placebos: dict[str, Head], check: Examples, want: str
) -> list[dict[str, Any]]:
    right = head.answers(check.x) == check.by.labels
    rows = []
    for name, other in placebos.items():
        theirs = other.answers(check.x) == check.by.labels
        change = (
            receipt.worst_change(theirs, right, check.by.groups)
            if want == "groups.worst"
            else receipt.accuracy_change(theirs, right)
        )
        rows.append(
            {
                "placebo": name,
                "accuracy": check.accuracy(other),
                "worst_group": check.worst(other),
                "remedy": picked,
                "ahead_by": change.value,
                "low": change.low,
                "high": change.high,
            }
        )
    return rows


def _sentence(picked: str, rows: Sequence[dict[str, Any]]) -> str:
    level = [str(row["placebo"]) for row in rows if row["low"] <= 0]
    blind = f" {picked} does not look at groups, so shuffling them changes nothing."
    tail = blind if picked in _BLIND else ""
    if level:
        return f"Not shown to beat the placebo: {'; '.join(level)}.{tail}"
    return f"Ahead of every placebo on the check images.{tail}"
