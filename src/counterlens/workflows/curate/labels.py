"""Label repair: rank likely label errors of one's own images, review them, write the corrections.

Folds of the images take turns: a softmax regression on the features of a network is fitted on the
others and asked about the fold. So no image is judged by a head that was fitted on its own label;
the network before the head may have seen it, and the report says so.

Paper: Northcutt, Jiang, Chuang 2021 (northcutt2021).
Differs: see `filters.out_of_fold`; the head alone is fitted anew in each fold.
"""

import csv
import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from counterlens import metrics
from counterlens.classifier import Classifier
from counterlens.data.metadata import suffix_of
from counterlens.data.sets import encoded
from counterlens.errors import InputError, RunExists
from counterlens.filters.label_errors import Suspects
from counterlens.filters.out_of_fold import Probabilities, doubtful, fold_of
from counterlens.images import ImageSet, fitting_size
from counterlens.progress import within
from counterlens.review import Store, decisions, store_path
from counterlens.review.shortlist import shortlist
from counterlens.runs import Number, Run, atomic, write_text
from counterlens.workflows._shared.objects import Objects, headline
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import facts, logger, running
from counterlens.workflows.curate.options import LabelsOptions, RelabelOptions
from counterlens.workflows.repair import features
from counterlens.workflows.repair.groups import Codes, content_hashes
from counterlens.workflows.repair.heads import Matrix, Scale, Start, logistic
from counterlens.workflows.train.datasets import check_labels, default_cache

STRENGTHS = (0.01, 0.1, 1.0)  # C of the heads; the one of the highest likelihood out of fold
KIND = "labels"
SHOWN = 24


@takes(LabelsOptions)
def labels(data: object, options: LabelsOptions) -> Result:
    """Rank the images of a labelled set whose label is likely wrong, and set them up for review.

    Args:
        data: labelled images, usually those that a model is trained on.

    >>> import counterlens as cl
    >>> result = cl.curate.labels("photos/", model="timm:resnet18")            # doctest: +SKIP
    >>> result.table("shortlist")[0]["answer"]                               # doctest: +SKIP
    """
    objects = Objects(options.device, options.limit, options.seed, options.trust_remote_code)
    spec = objects.model_spec(options.model)
    classifier = objects.load(spec)
    images = objects.open(
        objects.set_spec(data), size=fitting_size(classifier.preprocess),
        channels=classifier.channels,
    )  # fmt: skip
    _check(images, options)
    log = logger(options)
    name = f"labels-{images.name}"
    with running("curate labels", options, name=name, inputs={"data": images.name}) as run:
        run.note(**facts(classifier, images, seed=options.seed))
        run.note(model=headline(spec, classifier), kind=KIND)
        run.note(data_fingerprint=images.fingerprint)
        probs = out_of_fold(classifier, images, options)
        suspects, counted = doubtful(probs, images.labels)
        run.add_numbers(_numbers(probs, suspects, images, options))
        _write(run, images, probs, suspects, counted, options.most)
        log(f"{len(suspects.rows)} of {len(images)} labels are in doubt")
    log(f"next: counterlens curate review {run.folder} --reviewer NAME; reject wrong labels")
    return Result(run)


def _check(images: ImageSet, options: LabelsOptions) -> None:
    check_labels(images)
    if options.folds < 2:
        raise InputError(f"folds is {options.folds}, expected 2 or more.")
    sizes = np.bincount(images.labels, minlength=len(images.classes))
    small = int(sizes.argmin())
    if sizes[small] < options.folds:
        raise InputError(
            f"{images.classes[small]} has {sizes[small]} images, expected at least one for each of "
            f"the {options.folds} folds: give more images, or fewer folds=N."
        )


def out_of_fold(classifier: Classifier, images: ImageSet, options: LabelsOptions) -> Probabilities:
    """Probabilities of each image by a head that was fitted on the other folds."""
    folder = options.features if options.features is not None else default_cache()
    store = features.FeatureStore.open(folder, classifier)
    x = features.compute(classifier, images, store, name=f"features of {images.name}")
    keys = content_hashes(images)
    folds = fold_of(keys, images.labels, options.folds, options.seed)
    tried = np.zeros((len(STRENGTHS), len(images), len(images.classes)))
    for k in range(options.folds):
        with within(f"fold {k + 1} of {options.folds}"):
            tried[:, folds == k] = _held_out(
                x.astype(np.float64), images.labels, folds == k, images
            )
    own = tried[:, np.arange(len(images)), images.labels]
    best: Probabilities = tried[int(np.log(np.maximum(own, 1e-300)).mean(1).argmax())]
    return best


def _held_out(x: Matrix, y: Codes, fold: np.ndarray, images: ImageSet) -> np.ndarray:
    """Probabilities of some images by softmax regressions on the others, one for each strength."""
    scale, classes, rows = Scale.of(x[~fold]), len(images.classes), []
    now = Start(np.zeros((classes, x.shape[1])), np.zeros(classes), np.ones(classes, dtype=bool))
    for strength in STRENGTHS:
        now = logistic(scale.apply(x[~fold]), y[~fold], now, strength=strength)
        rows.append(softmax(scale.apply(x[fold]) @ now.weight.T + now.bias, axis=1))
    return np.stack(rows)


def _numbers(
    probs: Probabilities, suspects: Suspects, images: ImageSet, options: LabelsOptions
) -> dict[str, Number]:
    import torch

    text = f"out of fold, {options.folds} folds, softmax regression on features"
    right = torch.from_numpy(probs.argmax(1) == images.labels)
    flagged = torch.zeros(len(images), dtype=torch.bool)
    flagged[torch.from_numpy(suspects.rows)] = True
    return {
        "labels.agree": metrics.share(right, f"answers that are the label; {text}"),
        "labels.doubtful": metrics.share(
            flagged, f"images that count for another class in the confident joint; {text}"
        ),
    }


def _write(
    run: Run, images: ImageSet, probs: Probabilities, suspects: Suspects, counted: Codes, most: int
) -> None:
    """The shortlist with its pictures, as the review reads it."""
    rows, gallery = [], []
    for rank, (i, score) in enumerate(
        zip(suspects.rows[:most].tolist(), suspects.score[:most].tolist(), strict=True), 1
    ):
        pixels, blob = images.read(i), encoded(images.read, i)
        name = f"images/doubt-{rank:04d}{suffix_of(blob)}"
        with atomic(run.folder / name) as part:
            part.write_bytes(blob)
        row = {
            "rank": rank,
            "id": str(images.ids[i]),
            "label": images.classes[int(images.labels[i])],
            "answer": images.classes[int(counted[i])],
            "confidence": float(probs[i, counted[i]]),
            "doubt": score,
            "image": name,
            "sha256": hashlib.sha256(blob).hexdigest(),
            "width": int(pixels.shape[1]),
            "height": int(pixels.shape[0]),
        }
        rows.append(row)
        if rank <= SHOWN:
            gallery.append({**row, "group": "shortlist", "predicted": row["answer"]})
    run.write_table("shortlist", rows)
    run.write_table("gallery", gallery)
    listed = zip(images.ids, images.labels.tolist(), strict=True)
    run.write_table(
        "labelled", [{"id": str(i), "label": images.classes[label]} for i, label in listed]
    )


@takes(RelabelOptions)
def relabel(run: Path | str | Run | Result, options: RelabelOptions) -> dict[str, Any]:
    """Write the labels as reviewers left them; returns how many were changed and dropped.

    A label that reviewers rejected becomes the class that they gave as a tag (#dog); without such a
    tag the row is dropped, or takes the answer of the model where `take_answers` says so. Contested
    images keep their label and are counted.

    Args:
        run: result or folder of `curate labels`.
    """
    opened = Run.open(Path(run if isinstance(run, Path | str) else run.folder))
    if opened.manifest.get("kind") != KIND:
        raise InputError(f"{opened.folder} is no run of counterlens curate labels.")
    if options.to.exists():
        raise RunExists(f"{options.to} exists: choose another file, to=FILE.csv.")
    path = store_path(opened.folder)
    if not path.exists():
        raise InputError(
            f"nobody has reviewed {opened.folder}. Review it: counterlens curate review "
            f"{opened.folder} --reviewer NAME."
        )
    doubts = {row["id"]: row for row in shortlist(opened)}
    rows = opened.table("labelled")
    classes = sorted({row["label"] for row in rows})
    latest = Store.open(path).latest()
    decided = decisions(list(doubts), latest, least=options.least)
    tags: dict[str, list[str]] = {}
    for verdict in latest:
        if verdict.verdict == "reject":
            tags.setdefault(verdict.item, []).extend(verdict.tags)
    out, counts = [], {"kept": 0, "changed": 0, "dropped": 0, "contested": 0, "pending": 0}
    for row in rows:
        outcome = decided[row["id"]].outcome if row["id"] in decided else "accept"
        label = row["label"]
        if outcome == "reject":
            answer = doubts[row["id"]]["answer"] if options.take_answers else ""
            label = _named(tags.get(row["id"], []), classes) or answer
        kind = "dropped" if not label else "changed" if label != row["label"] else "kept"
        counts[outcome if outcome in ("contested", "pending") else kind] += 1
        if label:
            out.append((row["id"], label, row["label"]))
    write_text(options.to, _csv(options.root, out))
    logger(options)(f"{options.to}: {', '.join(f'{n} {what}' for what, n in counts.items())}")
    return {"manifest": str(options.to), **counts}


def _named(tags: Sequence[str], classes: Sequence[str]) -> str:
    """The class that tags name; several classes name none."""
    plain = {_plain(name): name for name in classes}
    named = {plain[_plain(tag)] for tag in tags if _plain(tag) in plain}
    return named.pop() if len(named) == 1 else ""


def _plain(name: str) -> str:
    return name.casefold().replace("_", " ").replace("-", " ").strip()


def _csv(root: Path | None, rows: Sequence[tuple[str, str, str]]) -> str:
    """path, id, label and the label as it was; paths are ids below the root."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("path", "id", "label", "label_before"))
    for name, label, before in rows:
        writer.writerow((str(root / name) if root is not None else name, name, label, before))
    return text.getvalue()
