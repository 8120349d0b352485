"""What all attacks of an audit share: which images, as pixels, with which progress and state."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from counterlens.classifier import Classifier
from counterlens.data.sets import sample_rows
from counterlens.images import ImageSet, prepare
from counterlens.notation import seconds
from counterlens.progress import doing
from counterlens.runs import Run, atomic
from counterlens.search import AttackSettings
from counterlens.search.ensemble.forecast import in_words
from counterlens.types import Images
from counterlens.workflows.audit.settings import Settings

_CLEAR = "\r\033[K"  # start of the line, and nothing on it
_FIRST, _LONG = 3.0, 30.0  # seconds until a duration is reported, and those worth reporting


def pixels(images: ImageSet, rows: Int64[np.ndarray, "n"], classifier: Classifier) -> Images:
    """These pictures as the classifier sees them, in [0, 1]."""
    planes = [
        prepare(images.read(int(i)), classifier.preprocess, channels=classifier.channels)
        for i in rows
    ]
    return torch.from_numpy(np.stack(planes)).float() / 255


def attacked_rows(
    labels: Int64[np.ndarray, "n"], options: Settings, most: int | None = None
) -> tuple[Int64[np.ndarray, "m"], str]:
    """Which images are attacked, and how to say so before their number.

    The first ones, as the field does, unless the set is sorted by class, as folders are (in any
    order of classes): then the first would be of a few, and as many are drawn by the seed.
    """
    count = min(options.attack_points, most or options.attack_points)
    if len(labels) <= count:
        return np.arange(len(labels)), "all"
    if np.count_nonzero(np.diff(labels)) < len(np.unique(labels)):  # each class in one run
        drawn = sample_rows(len(labels), count, options.seed)
        return drawn, f"{count} drawn by seed {options.seed} of the"
    return np.arange(count), f"the first {count} of the"


def search_settings(run: Run, name: str, options: Settings, quiet: bool) -> AttackSettings:
    """How the searches of an audit run: seed, batch, budget, and state to resume from."""
    return AttackSettings(
        seed=options.seed,
        batch=options.batch or "auto",
        budget=seconds(options.budget),
        state=run.path("state", name),
        progress=None if quiet else _progress(name),
    )


def _progress(name: str) -> Callable[[Mapping[str, Any]], None]:
    """Progress of an attack: one line that is written over, or a line a minute in a log."""
    screen, announced = sys.stderr.isatty(), False
    last = 0.0 if screen else time.monotonic()  # a short attack leaves nothing in a log

    def report(facts: Mapping[str, Any]) -> None:
        nonlocal last, announced
        left = None if facts["left"] is None else facts["left"][1]
        doing(f"{name}: {facts['stage']}, images", facts["done"], facts["of"], left=left)
        if (
            not announced
            and facts["device"] == "cpu"
            and facts["left"]
            and facts["elapsed"] >= _FIRST
        ):
            announced = True
            if facts["left"][1] >= _LONG:
                print(
                    f"{_CLEAR if screen else ''}{_duration(name, facts['left'])}", file=sys.stderr
                )
        if time.monotonic() - last < (1 if screen else 60):
            return
        last = time.monotonic()
        text = (
            f"{name}: {facts['stage']} {facts['done']} of {facts['of']}, "
            f"{facts['robust']} of {facts['points']} still right"
        )
        sys.stderr.write(f"{_CLEAR}{text}" if screen else f"{text}\n")
        sys.stderr.flush()

    return report


def _duration(name: str, left: tuple[float, float]) -> str:
    """How long an attack will take on this CPU, and what would be quicker."""
    return (
        f"{name}: about {in_words(left)} more on this CPU. Quicker: --attack-version fast, fewer "
        "--attack-points, or --budget 10m for bounds; on a GPU: --device cuda."
    )


def end_progress() -> None:
    """Wipe the progress line of a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(_CLEAR)


def model_logits(
    model: Callable[[Images], Tensor], points: Images, classifier: Classifier, batch: int = 256
) -> Tensor:
    """What the model says about these images, on the CPU."""
    device = classifier.mean.device
    with torch.inference_mode():
        return torch.cat(
            [model(part.to(device)).float().cpu() for part in torch.split(points, batch)]
        )


@contextmanager
def table_file(run: Run, name: str) -> Iterator[IO[bytes]]:
    """A file beside the tables, whole or not there."""
    with atomic(run.path("tables", name)) as part, part.open("wb") as file:
        yield file


def write_trust(run: Run, attack: str, trust: Mapping[str, Any]) -> None:
    """The signs behind a verdict, in place of those of an earlier try."""
    rows = [row for row in run.table("trust") if row["attack"] != attack]
    flags = [
        {"attack": attack, "flag": f["name"], "status": f["status"], "detail": f["detail"]}
        for f in trust["flags"]
    ]
    run.write_table("trust", [*rows, *flags])


def budget_ended(settled: int, n: int) -> str:
    return f"budget ended, {settled} of {n} settled"
