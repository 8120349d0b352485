"""Accuracy under corruptions: per corruption and severity, their mean, and mCE on ImageNet.

Paper: Hendrycks and Dietterich 2019 (corruptions2019).
Differs: the errors of AlexNet are those of ImageNet-C's files, which are JPEG of quality 85; images
       corrupted in memory have no such second compression, and their mCE says so. Other data than
       ImageNet at 224 pixels has the mean accuracy alone.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64

from counterlens import metrics
from counterlens.classifier import Classifier
from counterlens.data import open_set, subset
from counterlens.data.corruptions import COMMON, SEVERITIES, parse_corruptions
from counterlens.data.sources.corrupted import corrupted_set
from counterlens.errors import InputError
from counterlens.images import ImageSet
from counterlens.label_spaces.imagenet import imagenet_index
from counterlens.metrics.intervals.closed_form import mean_interval
from counterlens.predictions import predict
from counterlens.progress import doing
from counterlens.runs import Number, Run, atomic, key_part
from counterlens.workflows.audit.protocol import Protocol, choose
from counterlens.workflows.audit.settings import Settings

_Hits = Bool[np.ndarray, "n"]
PUBLISHED = ("cifar10-c", "cifar100-c", "imagenet-c")
ALEXNET_CLEAN = 0.435
ALEXNET = {  # mean error over the five severities of ImageNet-C
    "gaussian_noise": 0.8864,
    "shot_noise": 0.8945,
    "impulse_noise": 0.9226,
    "defocus_blur": 0.8199,
    "glass_blur": 0.8263,
    "motion_blur": 0.7859,
    "zoom_blur": 0.7984,
    "snow": 0.8668,
    "frost": 0.8266,
    "fog": 0.8193,
    "brightness": 0.5646,
    "contrast": 0.8532,
    "elastic_transform": 0.6461,
    "pixelate": 0.7178,
    "jpeg_compression": 0.6065,
}


def parse_severities(text: str) -> tuple[int, ...]:
    """`1,3,5` as numbers, in order.

    >>> parse_severities("5, 1")
    (1, 5)
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or any(word not in map(str, SEVERITIES) for word in words):
        raise InputError(f"severities are {text!r}, expected some of 1, 2, 3, 4, 5, with commas.")
    return tuple(sorted({int(word) for word in words}))


def check_corruptions(settings: Settings) -> None:
    """Refuse what cannot work before anything is loaded."""
    severities = parse_severities(settings.severities)
    files = settings.corruption_files
    if settings.corruptions:
        parse_corruptions(settings.corruptions)
    elif files:
        raise InputError(
            "corruption_files is given without corruptions. Name some: corruptions=common."
        )
    if files and files.partition("@")[0] not in PUBLISHED:
        raise InputError(
            f"corruption_files is {files!r}, expected NAME@ROOT with a name of "
            f"{', '.join(PUBLISHED)}."
        )
    if files:
        _published(settings, parse_corruptions(settings.corruptions or "")[0], severities[0], 1)


def _published(settings: Settings, name: str, severity: int, limit: int | None) -> ImageSet:
    """One corruption at one severity from the published files."""
    which, _, root = str(settings.corruption_files).partition("@")
    spec = f"{name}-{severity}=known:{which}/{name}/{severity}@{root}"
    return open_set(spec, limit=limit, seed=settings.seed)


def corruption_numbers(
    run: Run,
    classifier: Classifier,
    images: ImageSet,
    protocol: Protocol,
    reported: Int64[np.ndarray, "n"],
    clean: _Hits,
    settings: Settings,
) -> None:
    """Accuracy of every corruption at every severity, as numbers and as the table of the report.

    Args:
        reported: rows of the labelled set that are reported on; they are the ones corrupted.
        clean: which of these are answered right without a corruption.
    """
    names = parse_corruptions(settings.corruptions or "")
    severities = parse_severities(settings.severities)
    base = subset(images, reported)
    hits: dict[str, list[_Hits]] = {}
    rows: list[dict[str, object]] = []
    for name in names:
        for severity in severities:
            doing(f"corruption {name}, severity {severity}")
            right = _right(run, classifier, base, protocol, reported, name, severity, settings)
            hits.setdefault(name, []).append(right)
            number = metrics.share(torch.from_numpy(right), "")
            rows.append(
                {
                    "corruption": name,
                    "severity": severity,
                    "accuracy": number.value,
                    "low": number.low,
                    "high": number.high,
                    "n": number.n,
                }
            )
    run.write_table("corruptions", rows)
    source = "read from " + settings.corruption_files if settings.corruption_files else "made here"
    numbers = _means(hits, severities, source, settings.seed)
    if _is_imagenet(classifier, protocol):
        numbers |= mce_numbers(hits, severities, clean, source, settings)
    run.add_numbers(numbers)


def _right(
    run: Run,
    classifier: Classifier,
    base: ImageSet,
    protocol: Protocol,
    reported: Int64[np.ndarray, "n"],
    name: str,
    severity: int,
    settings: Settings,
) -> _Hits:
    """Which corrupted images are answered right; kept for a resumed run."""
    path = run.path("state", f"corruption-{name}-{severity}.npy")
    if path.exists():
        stored: _Hits = np.load(path)
        return stored
    called = f"{name}-{severity}"
    if settings.corruption_files:
        opened = _published(settings, name, severity, settings.limit)
        protocol, labels = choose(classifier, opened), None
    else:
        opened, labels = corrupted_set(base, name, severity, name=called), protocol.labels[reported]
    outputs = predict(
        classifier,
        opened,
        batch=settings.batch or "auto",
        workers="auto" if settings.workers is None else settings.workers,
        progress=not settings.quiet,
    )
    answers = protocol.logits(outputs.logits).argmax(1).numpy()
    true = protocol.labels if labels is None else labels
    right: _Hits = (answers == true)[true >= 0]
    with atomic(Path(path)) as part, part.open("wb") as file:
        np.save(file, right)
    return right


def _means(
    hits: dict[str, list[_Hits]], severities: Sequence[int], source: str, seed: int
) -> dict[str, Number]:
    """The mean over severities of each corruption, and over the fifteen where all are there."""
    over = ", ".join(map(str, severities))
    out = {}
    for name, several in hits.items():
        text = f"{name}, mean over severities {over}; {source}"
        out[f"corruption.{key_part(name)}.accuracy"] = _mean(several, text, seed)
    if all(name in hits for name in COMMON):
        every = [one for name in COMMON for one in hits[name]]
        text = f"mean over the {len(COMMON)} common corruptions at severities {over}; {source}"
        out["corruption.common.accuracy"] = _mean(every, text, seed)
    return out


def _mean(several: Sequence[_Hits], text: str, seed: int) -> Number:
    if len({len(one) for one in several}) > 1:
        return Number.missing("the sets have different numbers of images", text)
    values = np.asarray(np.mean(several, axis=0, dtype=np.float64))
    low, high = mean_interval(values, (0.0, 1.0), seed=seed)
    value = float(values.mean())
    return Number(value, len(values), low, high, f"{text}; BCa bootstrap over images")


def _is_imagenet(classifier: Classifier, protocol: Protocol) -> bool:
    map_ = protocol.matching.map
    thousand = len(classifier.classes) == 1000 and imagenet_index(classifier.classes) is not None
    whole = map_.rule == "subset" and len(map_.columns) == 1000
    return thousand and whole and classifier.preprocess.size == (224, 224)


def mce_numbers(
    hits: dict[str, list[_Hits]],
    severities: Sequence[int],
    clean: _Hits,
    source: str,
    settings: Settings,
) -> dict[str, Number]:
    """mCE and relative mCE against AlexNet, where all fifteen at all severities are there.

    Equation: corruptions2019 §3   CE_c = Σ_s E_{s,c} / Σ_s E^Alex_{s,c}, mCE = mean_c CE_c
    """
    text = f"error over AlexNet's on ImageNet-C, mean over 15 corruptions; {source}"
    if not settings.corruption_files:
        text += ": in memory, not the JPEG files of ImageNet-C, frost textures made by code"
    missing = [name for name in COMMON if name not in hits]
    if missing or tuple(severities) != SEVERITIES:
        reason = f"{missing[0]} is missing" if missing else "not all five severities were run"
        gone = Number.missing(f"mCE needs all fifteen at all severities: {reason}", text)
        return {"corruption.common.mce": gone, "corruption.common.relative_mce": gone}
    errors = {name: 1 - np.mean(hits[name], axis=0, dtype=np.float64) for name in COMMON}
    per_image: Float64[np.ndarray, "n"] = np.mean(
        [errors[name] / ALEXNET[name] for name in COMMON], axis=0
    )
    low, high = mean_interval(per_image, (0.0, 1 / min(ALEXNET.values())), seed=settings.seed)
    value, n = float(per_image.mean()), len(per_image)
    out = {
        "corruption.common.mce": Number(value, n, low, high, f"{text}; BCa bootstrap over images")
    }
    if len(clean) != n:
        relative = Number.missing("the clean images are others than the corrupted ones", text)
    else:
        gaps = [(errors[name] - (1 - clean)) / (ALEXNET[name] - ALEXNET_CLEAN) for name in COMMON]
        values: Float64[np.ndarray, "n"] = np.asarray(np.mean(gaps, axis=0))
        low, high = mean_interval(values, (-np.inf, np.inf), seed=settings.seed)
        how = f"{text}; clean errors subtracted from both (AlexNet {ALEXNET_CLEAN:.1%})"
        relative = Number(float(values.mean()), n, low, high, f"{how}; BCa bootstrap over images")
    return {**out, "corruption.common.relative_mce": relative}
