"""One call of explain: who is explained, on which images, and by what means."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from counterlens.classifier import Classifier
from counterlens.explanations.counterfactuals.uvce import EditSettings
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.images import Pixels
from counterlens.models.segmenter import Segment
from counterlens.runs import Run, key_part
from counterlens.types import Probs
from counterlens.workflows._shared.figures import save
from counterlens.workflows._shared.pictures import Pictures


@dataclass(frozen=True)
class Editing:
    """How pictures are changed by a generator.

    Args:
        model: the generator.
        settings: of the edit.
        captions: one for all pictures or one for each; none: a template, or the captioner's.
        captioner: pictures to phrases.
        masks: files, one for all pictures or one for each; none: by attention.
        segment: a segmenter that is shown points where the word is attended to.
        memory: budget such as 12GB; None takes most of what is free.
        sampling: guidance and steps before `--set`, for the manifest.
    """

    model: LatentDiffusion
    settings: EditSettings
    captions: tuple[str, ...] = ()
    captioner: Callable[[Sequence[Pixels]], list[str]] | None = None
    masks: tuple[str, ...] = ()
    memory: str | None = None
    segment: Segment | None = None
    sampling: tuple[float, int] = (0.0, 0)


@dataclass(frozen=True)
class ExplainJob:
    """One call of explain: which classifier is explained, on which pictures.

    Args:
        judges: other classifiers, which are shown what comes out.
        probs: the classifier's confidences in each picture.
        targets: of each picture, classes in the classifier's numbering.
        log: takes lines of progress.
        radii: of a search in pixel space; None: by the size of the picture.
        editing: with diffusion: how a generator changes the pictures.
        generator: with dvce.
        robust: with dvce, a robust classifier that helps.
    """

    run: Run
    classifier: Classifier
    judges: tuple[Classifier, ...]
    pictures: Pictures
    probs: Probs
    targets: list[list[int]]
    seed: int
    log: Callable[[str], None]
    radii: tuple[float, ...] | None = None
    editing: Editing | None = None
    generator: LatentDiffusion | None = None
    robust: Classifier | None = None

    def label(self, i: int) -> str | None:
        """The true class of picture i in words, if known."""
        label = self.pictures.labels[i]
        return self.classifier.classes[label] if label >= 0 else None

    def original(self, i: int) -> str:
        """Write picture i as the model sees it, once; its path inside the run."""
        name = f"{i:03d}-{key_part(self.pictures.ids[i])[-40:]}.png"
        return save(self.run, name, self.pictures.x[i])

    def row(self, i: int) -> dict[str, Any]:
        """The facts of picture i that every table repeats."""
        sure, answer = self.probs[i].max(0)
        return {
            "id": self.pictures.ids[i],
            "label": self.label(i),
            "predicted": self.classifier.classes[int(answer)],
            "confidence": round(float(sure), 6),
            "original": self.original(i),
        }
