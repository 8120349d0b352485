"""Outdata: make a pool of pictures fit to stand for "anything else" in training.

Paper: Augustin et al. 2020 (ratio2020), section 4: out-distribution without near-duplicates of
       the data; Hendrycks et al. 2019, Outlier Exposure.
Differs: any pool will do, since the 80 million tiny images are withdrawn. Pictures go that are
       copies of the data or show its classes, by class name or by features; and what stays is
       tested for low-level traces that would tell it apart without looking at its content.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from counterlens import images, zoo
from counterlens.classifier import Classifier
from counterlens.data import open_set, subset
from counterlens.errors import InputError
from counterlens.images import ImageSet
from counterlens.label_spaces.matching import pair_classes
from counterlens.models import load
from counterlens.runs import Number, Run
from counterlens.screen import lowlevel
from counterlens.screen.copies import Signatures, copies, signatures
from counterlens.types import Preprocess
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import Log, logger, running
from counterlens.workflows.curate.options import OutdataOptions
from counterlens.workflows.curate.outdata_files import show_removed, write_remaining
from counterlens.workflows.curate.outdata_rules import (
    COPY,
    Removal,
    alike,
    by_name,
    embed,
)

CHECKED = 2000
"""Pictures of each set whose low-level statistics are compared."""


@takes(OutdataOptions)
def outdata(inside: str, pool: str, options: OutdataOptions) -> Result:
    """Clean a pool of copies of the data and of images of its classes; test what remains.

    Args:
        inside: spec of the data with its classes.
        pool: spec of the images to clean.
    """
    if not 0 < options.typical < 1:
        raise InputError(f"typical is {options.typical}, expected a share between 0 and 1.")
    log = logger(options)
    own, others = open_set(inside), open_set(pool, limit=options.limit, seed=options.seed)
    if not own.classes:
        raise InputError(f"{inside} has no classes, expected a folder with a sub-folder per class.")
    _check_names(others, (*options.drop, *options.keep))
    classifier = _judge(options.model, own, options.device)
    name, inputs = f"{own.name}-{others.name}", {"in": inside, "pool": pool}
    with running("outdata", options, name=name, inputs=inputs) as run:
        run.note(
            data=f"{others.name} against {own.name}",
            model=classifier.name if classifier else None,
            data_fingerprint={s.name: s.fingerprint for s in (own, others)},
            notes={s.name: list(s.notes) for s in (own, others) if s.notes},
        )
        if classifier is None:
            _notice(run, own)
        removed = _removals(own, others, classifier, options, log)
        left = np.array([i for i in range(len(others)) if i not in removed], dtype=np.int64)
        if not len(left):
            raise InputError(f"nothing of {pool} is left: all {len(others)} images show the data.")
        log(f"{len(left)} images stay; comparing low-level statistics")
        remaining = subset(others, left)
        _tables(run, others, own, removed)
        show_removed(run, own, others, removed)
        run.add_numbers(_counts(removed, len(others)))
        _low_level(run, own, remaining, classifier, options.seed)
        run.note(kept=write_remaining(run.folder, remaining))
    log(f'train with it: counterlens train RECIPE --out-data "{run.manifest["kept"]}"')
    return Result(run)


def _removals(
    own: ImageSet,
    others: ImageSet,
    classifier: Classifier | None,
    options: OutdataOptions,
    log: Log,
) -> dict[int, Removal]:
    """Rows of the pool that go, and why: copies before class names before features."""
    log(f"{len(own)} images of {own.name}, {len(others)} of {others.name}: hashing")
    removed = {
        c.other: Removal(COPY, c.own, f"{c.bits} of 64 bits differ", float(c.bits))
        for c in copies(_signed(own), _signed(others), most_bits=options.most_bits)
    }
    removed = {**by_name(own, others, options.drop, options.keep), **removed}
    if classifier is None:
        return removed
    log(f"features of {classifier.name}")
    near = embed(classifier, own), embed(classifier, others)
    similar = alike(own, others, *near, typical=options.typical, keep=options.keep)
    return {**similar, **removed}


def _check_names(others: ImageSet, names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in others.classes]
    if unknown:
        raise InputError(
            f"{others.name} has no class {unknown[0]!r}, expected one of its "
            f"{len(others.classes)} classes, such as {', '.join(map(repr, others.classes[:3]))}."
        )


def _judge(model: str, own: ImageSet, device: str) -> Classifier | None:
    """The classifier whose features are used; by default a shipped one of the same classes."""
    if model == "none":
        return None
    if model != "auto":
        return load(model, device=device)
    cards = [zoo.card(name) for name in zoo.names()]
    # a model that was trained against a pool has learnt to push it away: plain ones come first
    cards.sort(key=lambda card: card.get("recipe", {}).get("loss") != "plain")
    for card in cards:
        pairs = pair_classes(card["classes"], own.classes)
        if len(own.classes) == len(card["classes"]) and all(i >= 0 for i, _ in pairs):
            return load(f"zoo:{card['name']}", device=device)
    return None


def _notice(run: Run, own: ImageSet) -> None:
    line = (
        f"No classifier of the classes of {own.name} was given and none is shipped, so pictures "
        "that show them under other names were not looked for. Give one: --model SPEC."
    )
    run.write_table("notes", [{"note": line}])


def _signed(some: ImageSet) -> Signatures:
    return signatures(some.read(i) for i in range(len(some)))


def _tables(run: Run, others: ImageSet, own: ImageSet, removed: dict[int, Removal]) -> None:
    rows = [
        {
            "id": others.ids[i],
            "class": others.classes[others.labels[i]] if others.labels[i] >= 0 else None,
            "reason": why.reason,
            "near": own.ids[why.own] if why.own is not None else None,
            "detail": why.detail,
        }
        for i, why in sorted(removed.items())
    ]
    run.write_table("removed", rows)
    by_class = Counter((row["class"], row["reason"], row["detail"]) for row in rows if row["class"])
    whole = [
        {"class": name, "reason": reason, "detail": detail, "pictures": n}
        for (name, reason, detail), n in by_class.most_common()
        if reason != COPY and "picture" not in str(detail)
    ]
    run.write_table("removed_classes", whole)


def _counts(removed: dict[int, Removal], total: int) -> dict[str, Number]:
    counts = Counter(why.reason for why in removed.values())
    left = total - len(removed)
    text = "pictures that stay in the pool; a count, exact"
    numbers = {"outdata.kept": Number(left / total, total, left / total, left / total, text)}
    for reason, count in counts.most_common():
        share = count / total
        key = f"outdata.{reason.replace(' ', '_')}.removed"
        numbers[key] = Number(share, total, share, share, f"{count} of {total} pictures; exact")
    return numbers


def _low_level(
    run: Run, own: ImageSet, remaining: ImageSet, classifier: Classifier | None, seed: int
) -> None:
    """How far colour, edges and codec alone tell the data from what is left of the pool."""
    view = classifier.preprocess if classifier else Preprocess(own.read(0).shape[:2])
    a, b = (_features(some, view, seed) for some in (own, remaining))
    numbers = {"outdata.all.auroc": lowlevel.auroc(a, b, seed)}
    for group, part in lowlevel.GROUPS.items():
        numbers[f"outdata.{group}.auroc"] = lowlevel.auroc(a[:, part], b[:, part], seed)
    run.add_numbers(numbers)
    rows = [{"feature": name, "gap": gap} for name, gap in lowlevel.most_different(a, b, most=8)]
    run.write_table("telling", rows)


def _features(some: ImageSet, view: Preprocess, seed: int) -> np.ndarray:
    rows = np.arange(len(some))
    if len(some) > CHECKED:
        rows = np.sort(np.random.default_rng(seed).choice(len(some), CHECKED, replace=False))
    return np.stack(
        [
            lowlevel.features(images.prepared(some.read, int(i), view).transpose(1, 2, 0))
            for i in rows
        ]
    )
