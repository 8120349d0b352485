"""What explain workflows share: the job, picture files, and results that show themselves."""

import base64
import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.ball import Norm
from counterlens.classifier import Classifier
from counterlens.explanations.counterfactuals.uvce import EditSettings
from counterlens.explanations.figure import Format, Panel, grid
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.images import Pixels, write_png
from counterlens.models.segmenter import Segment
from counterlens.runs import Run, atomic, key_part
from counterlens.types import Probs
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


@dataclass(frozen=True)
class Explanation:
    """A finished explanation; in a notebook it shows its figure and its rows."""

    run: Run

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row per picture that was made."""
        for name in (
            "counterfactuals",
            "uvce",
            "maps",
            "edits",
            "neurons",
            "disagreements",
            "gradients",
        ):
            if found := self.run.table(name):
                return found
        return []

    @property
    def figures(self) -> list[Path]:
        """The figures as PNG files; a PDF lies beside each."""
        return sorted((self.run.folder / "images").glob("figure*.png"))

    def _repr_png_(self) -> bytes | None:
        return self.figures[0].read_bytes() if self.figures else None

    def _repr_html_(self) -> str:
        pictures = ""
        for path in self.figures:
            data = base64.b64encode(path.read_bytes()).decode()
            source = f"data:image/png;base64,{data}"
            pictures += f'<img alt="{path.stem}" style="max-width:100%" src="{source}"><br>'
        where = html.escape(str(self.run.folder / "report.html"))
        return f"{pictures}<p>Report: <code>{where}</code></p>"


def save(run: Run, name: str, image: Float[Tensor, "c h w"]) -> str:
    """Write a picture into the run unless it is there; its path inside the run."""
    path = run.path("images", name)
    if not path.exists():
        write_png(path, image)
    return f"images/{name}"


def save_figure(run: Run, name: str, rows: list[list[Panel]], **settings: Any) -> str:
    """Write a grid as PNG and PDF; the PNG's path inside the run."""
    kinds: tuple[Format, ...] = ("png", "pdf")
    for kind in kinds:
        data = grid(rows, format=kind, **settings)
        with atomic(run.path("images", f"{name}.{kind}")) as part:
            part.write_bytes(data)
    return f"images/{name}.png"


def difference(z: Float[Tensor, "c h w"], x: Float[Tensor, "c h w"]) -> Float[Tensor, "c h w"]:
    """The change as a picture: grey where there is none, scaled to its largest value."""
    change = z - x
    largest = change.abs().max()
    return 0.5 + change / (2 * largest) if largest > 0 else torch.full_like(x, 0.5)
