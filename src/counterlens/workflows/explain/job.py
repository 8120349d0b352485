"""One call of explain: who is explained, on which images, and by what means."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from counterlens.ball import Norm
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
    """

    model: LatentDiffusion
    settings: EditSettings
    captions: tuple[str, ...] = ()
    captioner: Callable[[Sequence[Pixels]], list[str]] | None = None
    masks: tuple[str, ...] = ()
    memory: str | None = None
    segment: Segment | None = None


@dataclass(frozen=True)
class Job:
    """One call of explain: who is asked, about what, and how."""

    run: Run
    classifier: Classifier
    judges: tuple[Classifier, ...]
    pictures: Pictures
    probs: Probs
    targets: list[list[int]]
    norm: Norm
    radii: tuple[float, ...] | None
    steps: int
    seed: int
    batch: int | None
    say: Callable[[str], None]
    editing: Editing | None = None
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
