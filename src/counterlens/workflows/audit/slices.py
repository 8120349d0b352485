"""Slices of an audit: groups that nobody named, found by features and errors, confirmed on others.

    slices         number, name, status, n, error, expected, excess, low, high, again, class, …
    slice_images   image, slice, half, right: every image that was searched; slice is empty for most

`slice_images` is what `--groups slices:RUN` reads, by the ids of the images.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from scipy.special import softmax

from counterlens.classifier import Classifier
from counterlens.data.columns import MEASURES
from counterlens.data.masks import own_masks
from counterlens.data.sources.slices import NONE, SPEC, slices_by_id
from counterlens.errors import InputError
from counterlens.images import ImageSet, prepared
from counterlens.metrics.intervals.closed_form import BoolArray
from counterlens.metrics.slices import (
    REPEATS,
    TESTED,
    JointDensity,
    Slice,
    find_slices,
    standardised,
)
from counterlens.models import load, parts
from counterlens.progress import within
from counterlens.runs import Number, Run, stored_logits
from counterlens.workflows.audit import gallery
from counterlens.workflows.audit.settings import Settings

_BATCH, _SHOWN = 64, 8
_CLEAR, _SEEN, _MOST = 0.8, 0.2, 0.6
"""Standardised differences that name a slice and that are listed; share of a class that names it.
"""
_WORDS: Mapping[str, tuple[str, str]] = {
    "brightness": ("dark", "bright"),
    "contrast": ("low contrast", "high contrast"),
    "sharpness": ("blurred", "sharp"),
    "colourfulness": ("colourless", "colourful"),
    "aspect": ("tall", "wide"),
    "side": ("small picture", "large picture"),
    "mask area": ("small object", "large object"),
}
_COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "grey",
            "white", "black")  # fmt: skip
_PHRASES = (
    "a dark photograph", "a bright photograph", "a blurred photograph", "a photograph at night",
    "a black and white photograph", "a drawing", "a close-up", "an object far away",
    "several objects", "a photograph with a frame", "a photograph with text", "a person",
    *(f"a photograph on a {colour} background" for colour in _COLOURS),
)  # fmt: skip


def check_slices(settings: Settings) -> None:
    """Refuse an encoder without slices, or one that is no image–text pair."""
    given = settings.slice_encoder
    if given is None:
        return
    if not settings.slices:
        raise InputError(
            "a slice encoder is given without slices, which alone would use it. "
            "Give both: slices=True."
        )
    if "clip" not in given.partition("#")[0]:
        raise InputError(
            f"slice_encoder is {given!r}, expected an image–text pair: zoo:cifar10-clip or "
            "clip:ARCH@TAG, with phrases of your own as zoo:cifar10-clip#=a red car|a blue car."
        )


@dataclass(frozen=True)
class Encoder:
    """What the slices are found with.

    Args:
        network: its features are what enters its last layer.
        phrases: texts whose cosines are its logits; none for the audited model itself.
    """

    network: Classifier
    phrases: tuple[str, ...] = ()


def open_encoder(settings: Settings, classifier: Classifier) -> Encoder | None:
    """The encoder of an audit that looks for slices; a model without features is refused here."""
    if not settings.slices:
        return None
    if settings.slice_encoder is None:
        try:
            parts.head_name(classifier.net, len(classifier.classes))
        except InputError as error:
            raise InputError(
                f"slices: {error} Give an image–text pair whose features are used instead: "
                "slice_encoder='zoo:cifar10-clip'."
            ) from None
        return Encoder(classifier)
    spec = settings.slice_encoder
    whole = spec if "#=" in spec else f"{spec.partition('#')[0]}#={'|'.join(_PHRASES)}"
    network = load(whole, device=settings.device, trust_remote_code=settings.trust_remote_code)
    return Encoder(network, network.classes)


def write_slices(
    run: Run,
    encoder: Encoder | None,
    images: ImageSet,
    classes: Sequence[str],
    settings: Settings,
) -> None:
    """Find slices among the reported images, name them, and write numbers, tables and pictures."""
    if encoder is None:
        return
    inside = next(one for one in stored_logits(run).values() if one.role == "in")
    place = {name: i for i, name in enumerate(images.ids)}
    rows = np.array([place[name] for name in inside.ids], dtype=np.int64)
    shares = softmax(np.asarray(inside.logits, dtype=np.float64) / inside.temperature, axis=1)
    answers = shares.argmax(1)
    with within("computing features for slices"):
        features, cosines = encode(encoder, images, rows)
    facts = _facts(images, rows, settings.data, cosines, encoder.phrases)
    measures = {name: values for name, values in facts.items() if name in _WORDS}
    with within("looking for slices"):
        slices, fits = find_slices(
            features, inside.labels, answers, measures=measures, seed=settings.seed
        )
    named = [_name(s, facts, inside.labels, answers, classes) for s in slices]
    both = list(zip(slices, named, strict=True))
    run.write_table("slices", [_row(k, s, name) for k, (s, name) in enumerate(both, 1)])
    run.write_table(
        "slice_images", _image_rows(inside.ids, slices, named, fits, answers == inside.labels)
    )
    run.add_numbers(_numbers(slices, named, len(rows)))
    for k, one in enumerate(slices, 1):
        order = _nearest(features, one.members)
        shown: list[dict[str, object]] = [
            {
                "row": int(rows[i]),
                "label": classes[int(inside.labels[i])],
                "predicted": classes[int(answers[i])],
                "confidence": float(shares[i].max()),
            }
            for i in order
        ]
        gallery.add(run, images, f"slice:{k}", shown)


def encode(
    encoder: Encoder, images: ImageSet, rows: np.ndarray
) -> tuple[np.ndarray, JointDensity | None]:
    """What enters the last layer for these images; of a pair also the cosines to its phrases."""
    network = encoder.network
    pieces, cosines = [], []
    device = network.mean.device
    for start in range(0, len(rows), _BATCH):
        planes = [
            prepared(images.read, int(i), network.preprocess, channels=network.channels)
            for i in rows[start : start + _BATCH]
        ]
        x = torch.from_numpy(np.stack(planes)).to(device).float() / 255
        with torch.no_grad():
            own = parts.features(network, x)
            if encoder.phrases:
                cosines.append(parts.head(network)(own).double().cpu().numpy())
        pieces.append(own.float().cpu().numpy())
    return np.concatenate(pieces), np.concatenate(cosines) if cosines else None


def _facts(
    images: ImageSet,
    rows: np.ndarray,
    data: str,
    cosines: JointDensity | None,
    phrases: Sequence[str],
) -> dict[str, Float64[np.ndarray, "n"]]:
    """What is measured of each image, and how near it is to each phrase."""
    masks = own_masks(data, images)
    columns: dict[str, list[float]] = {name: [] for name in MEASURES}
    columns |= {"mask area": []} if masks else {}
    for i in rows.tolist():
        pixels = images.read(i)
        for name, measure in MEASURES.items():
            columns[name].append(measure(pixels))
        if masks:
            mask = masks[1](i)
            columns["mask area"].append(float("nan") if mask is None else float(mask.mean()))
    facts = {name: np.array(values) for name, values in columns.items()}
    if cosines is not None:
        facts |= {f"“{phrase}”": cosines[:, k] for k, phrase in enumerate(phrases)}
    return facts


@dataclass(frozen=True)
class Name:
    """What a slice is called, and why.

    Args:
        text: its class, its mistake, its measured attributes, a phrase.
        label, share: its most frequent class and the share of it.
        differs: attributes and phrases by their standardised difference, the largest first.
    """

    text: str
    label: str
    share: float
    differs: tuple[tuple[str, float], ...]


def _name(
    one: Slice,
    facts: Mapping[str, Float64[np.ndarray, "n"]],
    labels: np.ndarray,
    answers: np.ndarray,
    classes: Sequence[str],
) -> Name:
    """In words: differences are to other images, those of at least 0.8 standard deviations."""
    inside: BoolArray = one.members
    label, count = Counter(labels[inside].tolist()).most_common(1)[0]
    share = count / int(inside.sum())
    differs = sorted(
        ((name, standardised(values, inside)) for name, values in facts.items()),
        key=lambda pair: -abs(pair[1]),
    )
    words = [one.rule] if one.rule else []
    words += [_WORDS[n][int(d > 0)] for n, d in differs if n in _WORDS and abs(d) >= _CLEAR][:2]
    words += [n for n, d in differs if n not in _WORDS and d >= _CLEAR][:1]
    wrong = inside & (answers != labels)
    mistakes = Counter(answers[wrong].tolist()).most_common(1)
    subject = classes[label] if share >= _MOST else "several classes"
    if mistakes and mistakes[0][1] >= _MOST * wrong.sum():
        subject += f", mostly taken for {classes[mistakes[0][0]]}"
    text = f"{subject}: {', '.join(words)}" if words else subject
    return Name(text, classes[label], share, tuple(differs[:5]))


def _row(number: int, one: Slice, name: Name) -> dict[str, Any]:
    check = one.check
    return {
        "slice": number,
        "name": name.text,
        "confirmed": one.confirmed,
        "images": int(one.members.sum()),
        "n": check.n if check else 0,
        "error": check.error if check else None,
        "expected": check.expected if check else None,
        "excess": check.value if check else None,
        "low": check.low if check else None,
        "high": check.high if check else None,
        "fit_excess": one.fit.value,
        "again": one.again,
        "repeats": REPEATS,
        "class": name.label,
        "class_share": name.share,
        "differs": "; ".join(
            f"{what} {by:+.1f} sd".replace("-", "−")
            for what, by in name.differs
            if abs(by) >= _SEEN
        ),
    }


def _image_rows(
    ids: Sequence[str],
    slices: Sequence[Slice],
    named: Sequence[Name],
    fits: BoolArray,
    right: BoolArray,
) -> list[dict[str, Any]]:
    """One row per image; an image in two slices belongs to the first, the clearer one."""
    own = [""] * len(ids)
    for k, (one, name) in reversed(list(enumerate(zip(slices, named, strict=True), 1))):
        if one.confirmed:
            for i in np.flatnonzero(one.members).tolist():
                own[i] = f"{k}: {name.text}"
    halves = ["fit" if flag else "check" for flag in fits]
    return [
        {"image": i, "slice": s, "half": h, "right": bool(r)}
        for i, s, h, r in zip(ids, own, halves, right, strict=True)
    ]


def _numbers(slices: Sequence[Slice], named: Sequence[Name], n: int) -> dict[str, Number]:
    confirmed = float(sum(one.confirmed for one in slices))
    text = (
        f"slices that err more than other images of their classes, of at most {TESTED} picked on "
        "one half; confirmed where the excess on the other half has its interval above 0, the "
        "intervals of all candidates holding together (Bonferroni)"
    )
    out = {"slices.confirmed": Number(confirmed, n, confirmed, confirmed, text)}
    for k, (one, name) in enumerate(zip(slices, named, strict=True), 1):
        if one.check is not None:
            text = f"{name.text}: error less that of its classes on the other half; Bonferroni"
            check = one.check
            out[f"slices.{k}.excess"] = Number(check.value, check.n, check.low, check.high, text)
    return out


def _nearest(features: np.ndarray, members: BoolArray) -> list[int]:
    """The members nearest to their mean."""
    rows = np.flatnonzero(members)
    own = features[rows].astype(np.float64)
    order = ((own - own.mean(0)) ** 2).sum(1).argsort(kind="stable")[:_SHOWN]
    return [int(i) for i in rows[order]]


def slices_of(text: str, images: ImageSet) -> list[str]:
    """The slice of each image of a set, from the run of `slices:RUN`; `no slice` for most."""
    own = slices_by_id(text.removeprefix(SPEC))
    known = [str(i) for i in images.ids if str(i) in own]
    if not known:
        raise InputError(
            f"{text}: none of the images of {images.name} was searched in that run; expected ids "
            f"such as {next(iter(own))}."
        )
    return [own.get(str(i), NONE) for i in images.ids]
