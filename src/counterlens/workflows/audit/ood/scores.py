"""Several OOD scores in one audit, fitted on images that are not reported on.

Paper: as in metrics/ood_scores.
Differs: nothing is tuned on unknown images.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.images import ImageSet
from counterlens.label_spaces.matching import pair_classes
from counterlens.metrics.ood_scores import (
    FEATURE_SCORES,
    FittedScore,
    LinearHead,
    fit,
    odin,
    parse_scores,
)
from counterlens.models.parts import FeatureNet, head
from counterlens.progress import doing
from counterlens.runs import Run, atomic, key_part
from counterlens.types import Labels, Scores
from counterlens.workflows.audit.attacks.search import pixels
from counterlens.workflows.audit.ood.score_attack import ClassColumns, attack_scores
from counterlens.workflows.audit.ood.tables import Scored, set_numbers, write_tables
from counterlens.workflows.audit.outputs import Outputs
from counterlens.workflows.audit.protocol import Inside, Protocol, choose
from counterlens.workflows.audit.settings import Settings
from counterlens.workflows.audit.temperature import set_apart

LEAST = 20  # images to fit on
CPU = torch.device("cpu")
_BATCH = 128


@dataclass(frozen=True)
class FitImages:
    """Images that scores are fitted on: some rows of a set, none of them reported on."""

    images: ImageSet
    rows: Int64[np.ndarray, "n"]
    source: str


def check_scores(settings: Settings, names: Sequence[str]) -> None:
    """Refuse what cannot work before anything is loaded.

    Args:
        names: of the unknown sets.
    """
    if not settings.ood_score:
        if settings.ood_fit or settings.ood_near:
            option = "ood_fit" if settings.ood_fit else "ood_near"
            raise InputError(
                f"{option} is given without OOD scores, which alone use it. "
                "Name some: ood_score=all."
            )
        return
    parse_scores(settings.ood_score)
    if not names:
        raise InputError("OOD scores are given without unknown images. Give some: ood=SPEC.")
    unknown = [name for name in settings.ood_near if name not in names]
    if unknown:
        raise InputError(
            f"near set {unknown[0]!r} is none of the OOD sets {', '.join(names)}. Name one of them."
        )
    reserved = [name for name in names if key_part(name) in ("near", "far", "all")]
    if reserved:
        raise InputError(f"an OOD set is named {reserved[0]!r}, as a group is. Name it NAME=SPEC.")


def check_unknown(
    classifier: Classifier, images: ImageSet, outside: Sequence[ImageSet], anyway: bool
) -> None:
    """Refuse OOD sets with images of classes that the model knows, by their names."""
    for other in outside:
        if anyway or not other.classes or other.space is not None:
            continue
        pairs = pair_classes(classifier.classes, other.classes)
        known = [k for k, (i, how) in enumerate(pairs) if i >= 0 and how != "index"]
        count = int(np.isin(other.labels, known).sum())
        if count:
            several = ", ".join(repr(other.classes[k]) for k in known[:3])
            raise InputError(
                f"OOD set {other.name} holds {count} of {len(other)} images of classes that the "
                f"model knows ({several}{', …' if len(known) > 3 else ''}), so they are not out of "
                "distribution. Leave these classes out, or go on with anyway=True."
            )


def fit_images(
    settings: Settings,
    classifier: Classifier,
    images: ImageSet,
    held: ImageSet | None,
    fitted: ImageSet | None,
) -> FitImages | None:
    """The images to fit scores on: of `ood_fit`, else those that the temperature is fitted on."""
    if not settings.ood_score:
        return None
    names = [name for name in parse_scores(settings.ood_score) if name in FEATURE_SCORES]
    if names:
        try:
            FeatureNet(classifier)
        except InputError as error:
            raise InputError(
                f"{error} So {', '.join(names)} cannot be computed: ask for "
                "ood_score=msp,max_logit,energy,entropy,odin."
            ) from error
    given = fitted or held
    if given is not None:
        if given.fingerprint == images.fingerprint:
            raise InputError(
                f"{given.name} is the set that is reported on; scores are fitted on other images."
            )
        known = np.flatnonzero(choose(classifier, given).known)
        chosen = FitImages(given, known, f"{len(known)} images of {given.name}")
    else:
        apart = np.flatnonzero(set_apart(images.ids, choose(classifier, images).known))
        source = f"{len(apart)} images of {images.name} set apart by id and not reported on"
        chosen = FitImages(images, apart, source)
    if len(chosen.rows) < LEAST and names:
        raise InputError(
            f"{chosen.source} to fit {', '.join(names)} on, expected {LEAST} or more. "
            "Give others: ood_fit=SPEC."
        )
    return chosen


class LastLayerInputs:
    """What enters the last linear layer, once per set, stored for a resumed run."""

    def __init__(self, run: Run, classifier: Classifier, settings: Settings) -> None:
        net = FeatureNet(classifier)
        self.head = head(classifier)
        self.model = Classifier(
            net,
            self.head.in_features,
            [0.0] * classifier.channels,
            [1.0] * classifier.channels,
            preprocess=classifier.preprocess,
            name=classifier.name,
        )
        self.outputs = Outputs(run, self.model, settings, "features")

    def __call__(self, images: ImageSet, role: str) -> Float[Tensor, "n d"]:
        """Features of a whole set."""
        return self.outputs(images, role)


class ScoreBench:
    """Scores of an audit, each fitted once for the outputs that count.

    Args:
        known: the labelled set, which of its rows are reported on, and all outputs for these.
        fit_on: the images to fit on, with the outputs for the whole of their set.
    """

    def __init__(
        self,
        run: Run,
        classifier: Classifier,
        settings: Settings,
        known: tuple[ImageSet, Int64[np.ndarray, "n"], Tensor],
        fit_on: tuple[FitImages, Tensor],
    ) -> None:
        self.run, self.classifier = run, classifier
        self.names = parse_scores(settings.ood_score or "")
        wanted = any(name in FEATURE_SCORES for name in self.names)
        self.features = LastLayerInputs(run, classifier, settings) if wanted else None
        images, rows, outputs = known
        self.known = images, rows, outputs
        self.fit_on, self.fit_outputs = fit_on
        self.labels = choose(classifier, self.fit_on.images).labels[self.fit_on.rows]
        self._fits: dict[tuple[ClassColumns, torch.device], dict[str, FittedScore]] = {}
        self._inside: dict[ClassColumns, dict[str, Scores]] = {}

    def of(self, other: ImageSet, outputs: Tensor, view: Inside, rows: Tensor) -> dict[str, Scored]:
        """Every score of an unknown set and of the known images that it is distinguished from.

        Args:
            rows: which of the reported images these are.
        """
        columns = score_columns(view.protocol)
        if columns not in self._inside:
            images, reported, known = self.known
            self._inside[columns] = self._scores(columns, images, reported, known, "in")
        unknown = self._scores(columns, other, np.arange(len(other)), outputs, "ood")
        inside, fits = self._inside[columns], self.fits(columns)
        return {name: Scored(fits[name], inside[name][rows], unknown[name]) for name in self.names}

    def fits(self, columns: ClassColumns, device: torch.device = CPU) -> dict[str, FittedScore]:
        """Every score, fitted for some outputs of the model, with its constants on the device."""
        if (columns, device) not in self._fits:
            chosen = torch.from_numpy(self.fit_on.rows)
            same = self.fit_on.images.fingerprint == self.known[0].fingerprint
            logits = _columns(self.fit_outputs[chosen], columns)
            features = None
            if self.features:
                features = self.features(self.fit_on.images, "in" if same else "fit")[chosen]
                features = features.to(device)
            labels, logits = torch.from_numpy(self.labels).to(device), logits.to(device)
            layer = self.features.head if self.features else None
            self._fits[columns, device] = {
                name: fitted_score(name, features, logits, labels, layer, columns)
                for name in self.names
            }
        return self._fits[columns, device]

    def _scores(
        self,
        columns: ClassColumns,
        images: ImageSet,
        rows: Int64[np.ndarray, "m"],
        outputs: Tensor,
        role: str,
    ) -> dict[str, Scores]:
        """Scores of some rows of a set whose outputs are given for these rows."""
        logits = _columns(outputs, columns)
        features = self.features(images, role)[torch.from_numpy(rows)] if self.features else logits
        scores = {}
        for name, one in self.fits(columns).items():
            if name == "odin":
                scores[name] = _odin(self.run, self.classifier, columns, images, rows, role)
            else:
                scores[name] = one.score(features if name in FEATURE_SCORES else logits)
        return scores


def score_columns(protocol: Protocol) -> ClassColumns:
    """The outputs that scores look at: those of the protocol, all where it forms groups."""
    map_ = protocol.matching.map
    return map_.columns if map_.rule == "subset" else None


def _columns(outputs: Tensor, columns: ClassColumns) -> Tensor:
    return outputs if columns is None else outputs[:, list(columns)]


def fitted_score(
    name: str,
    features: Tensor | None,
    logits: Tensor,
    labels: Labels,
    layer: torch.nn.Linear | None,
    columns: ClassColumns,
) -> FittedScore:
    """A score of features or of logits, fitted; ODIN needs no fit."""
    if name == "odin":
        return FittedScore(name, "ODIN, T = 1000, step 0.0014 of [0, 1]", lambda x: x.new_zeros(0))
    if name in FEATURE_SCORES:
        assert features is not None and layer is not None
        return fit(name, features, labels, restricted_head(layer, columns, features))
    count = logits.shape[1]
    identity = LinearHead(torch.eye(count).to(logits).double(), logits.new_zeros(count).double())
    return fit(name, logits, labels, identity)


def restricted_head(layer: torch.nn.Linear, columns: ClassColumns, like: Tensor) -> LinearHead:
    """The last linear layer, or some of its outputs, in double precision."""
    weight = layer.weight.detach().double().to(like.device)
    bias = weight.new_zeros(len(weight))
    if layer.bias is not None:
        bias = layer.bias.detach().to(weight)
    chosen = list(range(len(weight)) if columns is None else columns)
    return LinearHead(weight[chosen], bias[chosen])


def _odin(
    run: Run,
    classifier: Classifier,
    columns: ClassColumns,
    images: ImageSet,
    rows: Int64[np.ndarray, "n"],
    role: str,
) -> Scores:
    """ODIN needs the pixels; kept for a resumed run."""
    count = len(classifier.classes) if columns is None else len(columns)
    path = run.path("state", f"odin-{role}-{key_part(images.name)}-{count}.npy")
    if path.exists():
        return torch.from_numpy(np.load(path))
    device = classifier.mean.device
    scores = []
    for start in range(0, len(rows), _BATCH):
        doing(f"ODIN on {images.name}, images", start, len(rows))
        x = pixels(images, rows[start : start + _BATCH], classifier).to(device)
        scores.append(odin(lambda z: _columns(classifier(z), columns), x).cpu())
    joined = torch.cat(scores)
    with atomic(Path(path)) as temporary, temporary.open("wb") as file:
        np.save(file, joined.numpy())
    return joined


def open_bench(
    run: Run,
    classifier: Classifier,
    settings: Settings,
    known: tuple[ImageSet, Int64[np.ndarray, "n"], Tensor],
    fit_on: FitImages,
    outputs_of: Callable[[ImageSet, str], Tensor],
) -> ScoreBench:
    """The scores of an audit, with the outputs for the images that they are fitted on."""
    same = fit_on.images.fingerprint == known[0].fingerprint
    fit_outputs = outputs_of(fit_on.images, "in" if same else "fit")
    return ScoreBench(run, classifier, settings, known, (fit_on, fit_outputs))


def score_sets(
    bench: ScoreBench,
    settings: Settings,
    inside: Inside,
    outside: Sequence[tuple[ImageSet, Tensor]],
) -> None:
    """Numbers and tables of every score on every unknown set and group, attacked where requested.

    Args:
        outside: the unknown sets with the outputs of the model.
    """
    run, seed = bench.run, settings.seed
    every = replace(inside, outputs=torch.arange(len(inside.labels))[:, None])
    scored = {}
    for other, outputs in outside:
        view = inside.against(other, bench.classifier)
        rows = every.against(other, bench.classifier).outputs[:, 0]
        scores = scored[other.name] = bench.of(other, outputs, view, rows)
        run.add_numbers(set_numbers(other.name, scores, bench.fit_on.source, seed))
        if settings.ood_attack:
            fits = bench.fits(score_columns(view.protocol), bench.classifier.mean.device)
            columns = score_columns(view.protocol)
            attack_scores(run, bench.classifier, settings, other, scores, fits, columns)
    write_tables(run, scored, settings.ood_near, seed)
