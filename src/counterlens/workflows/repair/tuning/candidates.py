"""Each fine-tuning as a candidate, beside its placebo."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.images import ImageSet
from counterlens.progress import within
from counterlens.workflows.repair import features
from counterlens.workflows.repair.candidates import Candidate, Tuned
from counterlens.workflows.repair.data import Data
from counterlens.workflows.repair.edits.made import Edited
from counterlens.workflows.repair.heads import Examples, Head, Problem
from counterlens.workflows.repair.options import RepairOptions
from counterlens.workflows.repair.remedies import shuffled
from counterlens.workflows.repair.tuning.recipes import Tuning, plain, tuning
from counterlens.workflows.repair.tuning.train import (
    TuningImages,
    images_of,
    shuffled_within,
    tune,
)


@dataclass
class Tuner:
    """Trains copies of a network and reads their features.

    Args:
        classifier: the model, unchanged.
        data: images, groups, splits.
        problem: what remedies start from.
        out: out-distribution images to train on.
        edit: versions of the images to fit on; None where no edit was named.
        options: of the command.
        folder: for checkpoints.
        old_head: reads the last layer of a network.
        log: takes a line of progress.
    """

    classifier: Classifier
    data: Data
    problem: Problem
    out: ImageSet | None
    edit: Edited | None
    options: RepairOptions
    folder: Path
    old_head: Callable[[Classifier], Head]
    log: Callable[[str], None]
    images: TuningImages | None = None

    def __call__(self, name: str) -> list[Candidate]:
        """The remedy and its placebo; one row that says why where it cannot work."""
        options = self.options
        try:
            one = tuning(name, options.changes, options.attack, options.out_data)
            images = self._images()
            with within(f"fitting {name}"):
                remedy = self._candidate(one, images, name, "remedy")
        except InputError as error:
            self.log(f"{name}: not tried. {error}")
            return [Candidate(name, "remedy", name, None, refused=str(error))]
        other, changed, label = self._placebo(one, images)
        if other == one and changed is images:  # plain training is its own placebo
            return [remedy]
        with within(f"fitting {label}"):
            placebo = self._candidate(other, changed, label, "placebo")
        return [remedy, replace(placebo, of=name)]

    def _images(self) -> TuningImages:
        if self.images is None:
            wrong = ~self.problem.fit.right(self.problem.old)
            self.images = images_of(
                self.classifier, self.data.fix, self.data.fit, self.data.fix_by, wrong, self.out,
                self.edit,
            )  # fmt: skip
        return self.images

    def _placebo(self, one: Tuning, images: TuningImages) -> tuple[Tuning, TuningImages, str]:
        rng = self.problem.rng(5)
        if one.kind == "jtt":
            wrong = shuffled_within(images.by, images.wrong, rng)
            return one, replace(images, wrong=wrong), f"{one.name}, random images"
        if one.kind == "pairs" and images.versions is not None:
            changed = replace(images, versions=images.versions.placebo())
            return one, changed, f"{one.name}, unrelated edits"
        if one.kind == "group-dro":
            return one, replace(images, by=shuffled(images.by, rng)), f"{one.name}, shuffled groups"
        return plain(one), images, f"{one.name}, plain training"

    def _candidate(self, one: Tuning, images: TuningImages, name: str, kind: str) -> Candidate:
        start = time.perf_counter()
        folder = self.folder / name.replace(":", "-").replace(", ", "-").replace(" ", "-")
        network = tune(self.classifier, one, images, folder, seed=self.options.seed, log=self.log)
        seconds = time.perf_counter() - start
        (folder / "checkpoint.pt").unlink(missing_ok=True)
        choose, check = (
            self._features(network, which, name) for which in (self.data.fix, self.data.check)
        )
        rows = self.data.choose
        tuned = Tuned(
            network,
            Examples(choose[rows], self.data.fix_by.take(rows)),
            Examples(check, self.data.check_by),
        )
        return Candidate(name, kind, name, self.old_head(network), seconds, tuned=tuned)

    def _features(self, network: Classifier, images: ImageSet, name: str) -> np.ndarray:
        computed = features.compute(
            network,
            images,
            features.FeatureStore(None, {}),
            name=f"{name}: features of {images.name}",
        )
        wide: np.ndarray = computed.astype(np.float64)
        return wide
